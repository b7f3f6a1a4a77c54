"""HEATMAP_MAX_KEYPOINT: the peak of each heat map, finer than its pixels.

Source: 1.3/types.hal (HEATMAP_MAX_KEYPOINT); NN common/cpu_operations/
HeatmapMaxKeypoint.cpp.
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.shapes import NHWC_TO_NCHW
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.kernels.detection.boxes import (
    Integers,
    Reals,
    from_float32,
    require_boxes,
    to_float32,
)
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless

_MAX_SHIFT = np.float32(1.5)


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Find the largest value of each map and the peak of a parabola through it.

    The parabola is the second-order Taylor expansion over the 3 by 3 values around the
    (first) maximum; outside the map they are mirrored. The peak is at most 1.5 pixels
    away; without a distinct peak it is the maximum itself.

    Inputs: ``heatmaps: T [boxes, size, size, keypoints]``; ``boxes: B [boxes, 4]`` as
    x1, y1, x2, y2; ``nchw: bool``.

    Outputs: ``scores: T [boxes, keypoints]`` with a quantisation of their own, and
    ``keypoints: B [boxes, keypoints, 2]`` as x, y in the image, on which the map covers
    the box. Quantised boxes count eighths of a pixel.

    The run raises `OperationFailedError` if a box ends before it begins.
    """
    nchw = operation.boolean(2)
    heatmaps, boxes = operation.input(0), operation.input(1)
    score, keypoint = operation.outputs
    size = heatmaps.require_shape()[2]
    tolerance = 1e-3 if heatmaps.type is OperandType.TENSOR_FLOAT16 else 1e-5

    def run(inputs: Inputs, outputs: Outputs) -> None:
        places = to_float32(inputs[1], boxes)[:, np.newaxis]
        require_boxes(operation, places)
        maps = inputs[0] if nchw else inputs[0].transpose(NHWC_TO_NCHW)
        maxima = _maxima(maps)
        around = to_float32(_neighbours(maps, maxima), heatmaps)
        shifts, scores = _peaks(around, tolerance)
        begin, end = places[..., :2], places[..., 2:]
        relative = (maxima.astype(np.float32) + shifts + np.float32(0.5)) / size
        outputs[0][...] = from_float32(scores, score)
        outputs[1][...] = from_float32(relative * (end - begin) + begin, keypoint)

    return stateless(run)


def _maxima(maps: Array) -> Integers:
    """Return the column and row [boxes, keypoints, 2] of each map's first maximum."""
    boxes, keypoints, height, width = maps.shape
    flat = maps.reshape(boxes, keypoints, height * width).argmax(axis=2)
    return np.stack([flat % width, flat // width], axis=-1)


def _neighbours(maps: Array, maxima: Integers) -> Array:
    """Return the values [boxes, keypoints, 3, 3] around each maximum."""
    boxes, keypoints, size, _ = maps.shape
    beside = np.abs(maxima[..., np.newaxis] + np.arange(-1, 2))
    beside[beside == size] = size - 2
    columns, rows = beside[:, :, 0, np.newaxis, :], beside[:, :, 1, :, np.newaxis]
    box, keypoint = np.ogrid[:boxes, :keypoints]
    values: Array = maps[box[..., None, None], keypoint[..., None, None], rows, columns]
    return values


def _peaks(around: Reals, tolerance: float) -> tuple[Reals, Reals]:
    """Return where parabolas peak [..., 2], in pixels from the middle, and how high.

    With the gradient ``g`` and the Hessian ``A`` in the middle, the peak is at
    ``x = -A**-1 g``; its height is ``middle + g x + x A x / 2``.
    """
    grid = np.moveaxis(around, (-2, -1), (0, 1))
    middle = grid[1, 1]
    slope_x = (grid[1, 2] - grid[1, 0]) / 2
    slope_y = (grid[2, 1] - grid[0, 1]) / 2
    bend_x = grid[1, 0] - 2 * middle + grid[1, 2]
    bend_y = grid[0, 1] - 2 * middle + grid[2, 1]
    twist = (grid[2, 2] - grid[2, 0] - grid[0, 2] + grid[0, 0]) / 4
    product = bend_x * bend_y
    determinant = product - twist * twist
    is_distinct = np.abs(determinant) >= tolerance + tolerance * product
    shift = np.stack(
        [
            (twist * slope_y - bend_y * slope_x) / determinant,
            (twist * slope_x - bend_x * slope_y) / determinant,
        ],
        axis=-1,
    )
    shift = np.where(is_distinct[..., np.newaxis], shift, 0)
    reach = np.abs(shift).max(axis=-1, keepdims=True)
    shift *= _MAX_SHIFT / np.maximum(reach, _MAX_SHIFT)
    x, y = shift[..., 0], shift[..., 1]
    curvature = (bend_x * x + twist * y) * x + (twist * x + bend_y * y) * y
    return shift, middle + slope_x * x + slope_y * y + curvature / 2


KERNELS: dict[OperationType, Prepare] = {OperationType.HEATMAP_MAX_KEYPOINT: _prepare}
