"""ROI_POOLING against loops over bins, for every type and layout."""

import math

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import FLOAT_KINDS, KINDS, decoded, positions
from tests.kernels.detection.regions import (
    ILLEGAL,
    Case,
    illegal_case,
    random_case,
    resample,
)
from tests.kernels.operations import Q8, Q8S

POOL = OperationType.ROI_POOLING


def bins(begin, end, outputs, length):
    """Yield the slice of pixels of each bin, in float32 like the reference."""
    begin, end = (math.floor(np.float32(corner) + 0.5) for corner in (begin, end))
    step = np.float32(end - begin + 1) / np.float32(outputs)
    for index in range(outputs):
        first = np.floor(step * np.float32(index) + np.float32(begin))
        last = np.ceil(step * np.float32(index + 1) + np.float32(begin))
        yield slice(min(int(first), length), min(int(last), length))


def naive(case, size):
    _, height, width, channels = case.maps.shape
    pooled = np.zeros((len(case.boxes), *size, channels))
    for region, (x1, y1, x2, y2) in enumerate(case.boxes):
        image = case.maps[case.images[region]]
        rows = list(bins(y1 / case.ratios[0], y2 / case.ratios[0], size[0], height))
        columns = list(bins(x1 / case.ratios[1], x2 / case.ratios[1], size[1], width))
        for row, column in positions(*size):
            part = image[rows[row], columns[column]]
            if part.size:
                pooled[region, row, column] = part.max((0, 1))
    return pooled


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_bin_gives_its_maximum(kind, size, nchw) -> None:
    for seed in range(6):
        case = random_case(seed)
        output, array = resample(POOL, kind, case, size, nchw=nchw)
        np.testing.assert_array_equal(decoded(output, array), naive(case, size))


def test_signed_codes_are_the_unsigned_ones_less_128() -> None:
    case = random_case(3)
    unsigned, signed = (
        resample(POOL, kind, case, (3, 2))[1]
        for kind in KINDS
        if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned, signed.astype(np.int16) + 128)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bins_behind_the_map_give_real_zero(kind, nchw) -> None:
    maps = np.full((1, 2, 2, 1), -1.0)
    case = Case(maps, np.array([[2.0, 0, 2, 2]]), np.array([0]), (1.0, 1.0))
    output, array = resample(POOL, kind, case, (3, 1), nchw=nchw)
    assert not decoded(output, array).any()
    inside = case._replace(boxes=np.array([[1.0, 0, 1, 2]]))
    output, array = resample(POOL, kind, inside, (3, 1), nchw=nchw)
    assert decoded(output, array).ravel().tolist() == [-1, -1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_regions_give_no_output(kind) -> None:
    case = random_case(0, regions=2)
    empty = case._replace(boxes=np.empty((0, 4)), images=np.empty(0, np.int32))
    assert resample(POOL, kind, empty, (2, 2))[1].shape == (0, 2, 2, 3)


@pytest.mark.parametrize("kind", FLOAT_KINDS)
@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_regions_fail(name, kind) -> None:
    with pytest.raises(OperationFailedError, match=ILLEGAL[name][2]):
        resample(POOL, kind, illegal_case(name), (2, 2))


@pytest.mark.parametrize("kind", KINDS[2:])
@pytest.mark.parametrize("name", list(ILLEGAL)[:6])
def test_illegal_quantised_regions_fail(name, kind) -> None:
    with pytest.raises(OperationFailedError, match=ILLEGAL[name][2]):
        resample(POOL, kind, illegal_case(name), (2, 2))
