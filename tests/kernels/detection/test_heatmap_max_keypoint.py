"""HEATMAP_MAX_KEYPOINT against paraboloids with known peaks, and a loop."""

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import (
    KINDS,
    assert_stores,
    described,
    encoded,
    positions,
    random_boxes,
)
from tests.kernels.operations import F16, F32, Q8, Q8S, compute_all, tensor

SCALE = 1 / 32


def locate(kind, maps, boxes, *, nchw=False):
    """Locate key points in NHWC maps, given in either layout."""
    boxes_count, *_, keypoints = maps.shape
    outputs = [
        described(kind.values, (boxes_count, keypoints), SCALE / 2),
        described(kind.boxes, (boxes_count, keypoints, 2), 0.125),
    ]
    arrays = compute_all(
        OperationType.HEATMAP_MAX_KEYPOINT,
        [
            encoded(kind.values, maps.transpose(0, 3, 1, 2) if nchw else maps, SCALE),
            encoded(kind.boxes, boxes),
            nchw,
        ],
        outputs,
    )
    return outputs, arrays


def naive_peak(values):
    """Return where the Taylor expansion around the maximum peaks, and its height."""
    size = len(values)
    row, column = divmod(int(values.argmax()), size)
    padded = np.pad(values, 1, mode="reflect")
    grid = padded[row : row + 3, column : column + 3]
    gradient = np.array([grid[1, 2] - grid[1, 0], grid[2, 1] - grid[0, 1]]) / 2
    twist = (grid[2, 2] - grid[2, 0] - grid[0, 2] + grid[0, 0]) / 4
    hessian = np.array(
        [
            [grid[1, 0] - 2 * grid[1, 1] + grid[1, 2], twist],
            [twist, grid[0, 1] - 2 * grid[1, 1] + grid[2, 1]],
        ]
    )
    shift = np.zeros(2)
    if abs(np.linalg.det(hessian)) > 1e-4:
        shift = -np.linalg.solve(hessian, gradient)
        shift *= min(1, 1.5 / max(*abs(shift), 1e-9))
    height = grid[1, 1] + gradient @ shift + shift @ hessian @ shift / 2
    return (np.array([column, row]) + shift + 0.5) / size, height


def naive(maps, boxes):
    scores = np.empty((maps.shape[0], maps.shape[3]))
    keypoints = np.empty((*scores.shape, 2))
    for box, keypoint in positions(*scores.shape):
        place, scores[box, keypoint] = naive_peak(maps[box, :, :, keypoint])
        begin, end = boxes[box, :2], boxes[box, 2:]
        keypoints[box, keypoint] = place * (end - begin) + begin
    return scores, keypoints


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_keypoints_are_the_peaks_of_taylor_expansions(kind, size, nchw) -> None:
    generator = np.random.default_rng(size)
    maps = generator.integers(-64, 64, (3, size, size, 4)) / 32
    boxes = random_boxes(generator, 3)
    outputs, arrays = locate(kind, maps, boxes, nchw=nchw)
    for output, array, expected in zip(
        outputs, arrays, naive(maps, boxes), strict=True
    ):
        assert_stores(output, array, expected)


@pytest.mark.parametrize(("x", "y"), [(2.25, 3.375), (3, 3), (1.5, 2.625)])
def test_the_peak_of_a_paraboloid_is_found_exactly(x, y) -> None:
    rows, columns = np.mgrid[:6, :6] + 0.5
    values = 3 - (columns - x) ** 2 - 0.5 * (rows - y) ** 2
    scores, keypoints = compute_all(
        OperationType.HEATMAP_MAX_KEYPOINT,
        [tensor(F32, values[None, :, :, None]), tensor(F32, [[10, 20, 22, 26]]), False],
        [described(F32, (1, 1), 0), described(F32, (1, 1, 2), 0)],
    )
    np.testing.assert_allclose(scores, [[3]], rtol=1e-6)
    np.testing.assert_allclose(keypoints, [[[10 + 2 * x, 20 + y]]], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flat_map_has_its_first_pixel_for_a_peak(kind) -> None:
    outputs, arrays = locate(kind, np.full((1, 4, 4, 1), 0.5), np.array([[0, 0, 8, 4]]))
    assert_stores(outputs[0], arrays[0], np.array([[0.5]]))
    assert_stores(outputs[1], arrays[1], np.array([[[1, 0.5]]]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_peak_far_from_the_maximum_is_brought_to_one_and_a_half_pixels(kind) -> None:
    values = np.array([[6, 7, 0], [4, 8, 7], [0, 7, 6]]) / 8
    box = np.array([[10, 20, 13, 23]])
    outputs, arrays = locate(kind, values[None, :, :, None], box)
    assert_stores(outputs[0], arrays[0], np.array([[9.25 / 8]]))
    assert_stores(outputs[1], arrays[1], np.array([[[12.5, 23]]]))


def test_signed_maps_give_what_unsigned_ones_give() -> None:
    generator = np.random.default_rng(0)
    maps = generator.integers(-64, 64, (2, 5, 5, 3)) / 32
    boxes = random_boxes(generator, 2)
    unsigned, signed = (
        locate(kind, maps, boxes)[1] for kind in KINDS if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned[0], signed[0].astype(np.int16) + 128)
    np.testing.assert_array_equal(unsigned[1], signed[1])


def test_float16_maps_need_a_more_distinct_peak() -> None:
    values = np.zeros((1, 3, 3, 1))
    values[0, :, 1, 0] = 0, 4 / 256, 3 / 256
    box = np.array([[0, 0, 3, 3]])
    _, (_, exact) = locate(KINDS[0], values, box)
    _, (_, coarse) = locate(KINDS[1], values, box)
    assert exact[0, 0, 1] > coarse[0, 0, 1] == 1.5


def test_no_boxes_give_no_keypoints() -> None:
    for kind in (kind for kind in KINDS if kind.values in (F32, F16)):
        _, arrays = locate(kind, np.empty((0, 3, 3, 2)), np.empty((0, 4)))
        assert [array.shape for array in arrays] == [(0, 2), (0, 2, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_box_that_ends_before_it_begins_fails(kind) -> None:
    with pytest.raises(OperationFailedError, match="ends before it begins"):
        locate(kind, np.zeros((1, 2, 2, 1)), np.array([[0, 2, 1, 1]]))
