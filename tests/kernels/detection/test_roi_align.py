"""ROI_ALIGN against loops over samples, for every type and layout."""

import itertools
import math

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import (
    FLOAT_KINDS,
    KINDS,
    assert_stores,
    described,
    positions,
)
from tests.kernels.detection.regions import (
    ILLEGAL,
    Case,
    illegal_case,
    random_case,
    resample,
)
from tests.kernels.operations import F32, I32, Q8, Q8S, TOLERANCE, compute, tensor

ALIGN = OperationType.ROI_ALIGN
SAMPLES = [(0, 0), (1, 1), (2, 3), (4, 0)]
SIZES = [(1, 1), (2, 3), (4, 2)]


def samples(begin, end, outputs, count, length):
    """Yield, for each output, its samples as pairs of (pixel, weight)."""
    step = max(end - begin, 1) / outputs
    count = count or math.ceil(step)
    for index in range(outputs):
        start = begin + step * index
        places = [start + step * (sample + 0.5) / count for sample in range(count)]
        yield [interpolation(place, length) for place in places]


def interpolation(place, length):
    pixel = math.floor(place)
    if pixel >= length - 1:
        return [(length - 1, 1.0), (length - 1, 0.0)]
    return [(pixel, 1 - (place - pixel)), (pixel + 1, place - pixel)]


def naive(case, size, counts, weigh=lambda weight: weight):
    """Return the mean over each bin's samples; ``weigh`` may round their weights."""
    _, height, width, channels = case.maps.shape
    aligned = np.zeros((len(case.boxes), *size, channels))
    for region, box in enumerate(case.boxes):
        x1, y1, x2, y2 = box / np.array(case.ratios[::-1] * 2)
        image = case.maps[case.images[region]]
        rows = list(samples(y1, y2, size[0], counts[0], height))
        columns = list(samples(x1, x2, size[1], counts[1], width))
        for row, column in positions(*size):
            values = [
                weigh(wy * wx) * image[y, x]
                for pixels_y, pixels_x in itertools.product(rows[row], columns[column])
                for (y, wy), (x, wx) in itertools.product(pixels_y, pixels_x)
            ]
            aligned[region, row, column] = np.sum(values, axis=0) * 4 / len(values)
    return aligned


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("counts", SAMPLES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_each_bin_gives_the_mean_of_its_samples(kind, size, counts, nchw) -> None:
    for seed in range(3):
        case = random_case(seed)
        _, array = resample(ALIGN, kind, case, size, *counts, nchw=nchw)
        expected = naive(case, size, counts)
        np.testing.assert_allclose(array, expected, **TOLERANCE[kind.values])


def in_255ths(weight):
    return math.floor(np.float32(weight) / np.float32(1 / 255) + 0.5) / 255


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 4)])
@pytest.mark.parametrize("kind", KINDS[2:])
def test_quantised_pixels_are_weighed_by_255ths(kind, counts, nchw) -> None:
    size = 2, 4  # With powers of two only, float32 places samples exactly.
    for seed in range(6):
        case = random_case(seed)
        output, array = resample(
            ALIGN, kind, case, size, *counts, nchw=nchw, scales=(1 / 32, 1 / 29)
        )
        assert_stores(output, array, naive(case, size, counts, in_255ths))


@pytest.mark.parametrize("counts", SAMPLES)
def test_signed_codes_are_the_unsigned_ones_less_128(counts) -> None:
    case = random_case(7)
    unsigned, signed = (
        resample(ALIGN, kind, case, (2, 2), *counts, scales=(1 / 32, 1 / 40))[1]
        for kind in KINDS
        if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned, signed.astype(np.int16) + 128)


@pytest.mark.parametrize("kind", KINDS)
def test_no_regions_give_no_output(kind) -> None:
    case = random_case(0, regions=2)
    empty = case._replace(boxes=np.empty((0, 4)), images=np.empty(0, np.int32))
    assert resample(ALIGN, kind, empty, (2, 2), 0, 0)[1].shape == (0, 2, 2, 3)


def test_a_whole_region_keeps_the_pixels_of_its_size() -> None:
    ramp = np.arange(12.0).reshape(1, 3, 4, 1)
    case = Case(ramp, np.array([[0.5, 0.5, 2.5, 2.5]]), np.array([0]), (1.0, 1.0))
    _, array = resample(ALIGN, KINDS[0], case, (2, 2), 1, 1)
    assert array.ravel().tolist() == [5, 6, 9, 10]


@pytest.mark.parametrize(("ratio", "width"), [(0.7, 5), (1.3, 7), (3.0, 41)])
def test_a_region_may_reach_the_far_edge_whatever_rounding_does(ratio, width) -> None:
    edge = np.nextafter(np.float32(width) * np.float32(ratio), np.float32(np.inf))
    array = compute(
        ALIGN,
        [
            tensor(F32, np.ones((1, 1, width, 1))),
            tensor(F32, [[0, 0, edge, 0]]),
            tensor(I32, [0]),
            *(1, 1, 1.0, float(np.float32(ratio)), 0, 0, False),
        ],
        described(F32, (1, 1, 1, 1), 0),
    )
    assert array == 1


def test_sampling_that_would_exhaust_the_memory_fails() -> None:
    with pytest.raises(OperationFailedError, match="memory"):
        resample(ALIGN, KINDS[0], random_case(0), (2, 2), 2**20, 2**20)


@pytest.mark.parametrize("kind", FLOAT_KINDS)
@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_regions_fail(name, kind) -> None:
    with pytest.raises(OperationFailedError, match=ILLEGAL[name][2]):
        resample(ALIGN, kind, illegal_case(name), (2, 2), 0, 0)


@pytest.mark.parametrize("kind", KINDS[2:])
@pytest.mark.parametrize("name", list(ILLEGAL)[:6])
def test_illegal_quantised_regions_fail(name, kind) -> None:
    with pytest.raises(OperationFailedError, match=ILLEGAL[name][2]):
        resample(ALIGN, kind, illegal_case(name), (2, 2), 0, 0)
