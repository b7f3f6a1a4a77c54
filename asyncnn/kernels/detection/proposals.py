"""GENERATE_PROPOSALS: the best of the boxes that anchors and deltas propose.

Source: 1.3/types.hal (GENERATE_PROPOSALS).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC, image_shape
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import refine, require_boxes
from asyncnn.kernels.detection.numbers import (
    Integers,
    Reals,
    from_float32,
    to_float32,
)
from asyncnn.kernels.detection.suppression import falling, hard, pick_boxes
from asyncnn.kernels.kernel import Compute


def _compute(operation: BoundOperation) -> Sequence[Array]:
    """Refine the anchors at every location, then suppress all but the best boxes.

    An anchor at ``[row, column]`` is moved by ``row * height_ratio`` and ``column *
    width_ratio``, then refined by its deltas as in AXIS_ALIGNED_BBOX_TRANSFORM. Boxes
    stay if they are among the ``max_before_nms`` best, larger than ``min_size`` and
    centred before the image's far edges; hard suppression picks ``max_after_nms``.

    Inputs: ``scores: T [N, H, W, anchors]``; ``deltas: T [N, H, W, anchors * 4]`` as
    dx, dy, dw, dh; ``anchors: A [anchors, 4]`` as x1, y1, x2, y2; ``image_info: B [N,
    2]`` as height, width. Scalars: height_ratio, width_ratio, max_before_nms,
    max_after_nms (both without limit if not positive), iou_threshold, min_size, nchw.

    Outputs: ``scores: T [picked]``, ``boxes: B [picked, 4]``, ``batch_indices: int32
    [picked]``, for each image by falling score. Quantised scores keep their scale,
    boxes and anchors count eighths of a pixel.

    :raises OperationFailedError: if an anchor ends before it begins.

    Source: 1.3/types.hal (GENERATE_PROPOSALS).
    """
    stored_scores, deltas = _flat_maps(operation)
    scores = to_float32(stored_scores, operation.input(0))
    anchors = _placed_anchors(operation)
    require_boxes(operation, anchors)
    image_info = to_float32(operation.value(3), operation.input(3))
    refined = refine(anchors, deltas, image_info[:, np.newaxis])
    picks = [
        _pick(operation, *one) for one in zip(scores, refined, image_info, strict=True)
    ]
    images = np.repeat(np.arange(len(picks)), list(map(len, picks)))
    places = np.concatenate([np.empty(0, np.intp), *picks])
    return (
        stored_scores[images, places],
        from_float32(refined[images, places], operation.outputs[1]),
        images.astype(np.int32),
    )


def _flat_maps(operation: BoundOperation) -> tuple[Array, Reals]:
    """Return stored scores [N, n] and real deltas [N, n, 4] of all n anchor places."""
    nchw = operation.boolean(10)
    scores, deltas = operation.value(0), operation.value(1)
    if nchw:
        scores, deltas = (maps.transpose(NCHW_TO_NHWC) for maps in (scores, deltas))
    images, places = scores.shape[0], math.prod(scores.shape[1:])
    reals = to_float32(deltas, operation.input(1)).reshape(images, places, 4)
    return scores.reshape(images, places), reals


def _placed_anchors(operation: BoundOperation) -> Reals:
    """Return the anchors at every location [height * width * anchors, 4]."""
    _, height, width, _ = image_shape(operation, operation.boolean(10))
    anchors = to_float32(operation.value(2), operation.input(2))
    rows = np.arange(height, dtype=np.float32) * operation.real(4)
    columns = np.arange(width, dtype=np.float32) * operation.real(5)
    shifts = np.stack(np.broadcast_arrays(columns, rows[:, np.newaxis]), axis=-1)
    placed = shifts[:, :, np.newaxis, np.newaxis] + anchors.reshape(-1, 2, 2)
    return placed.reshape(-1, 4)


def _pick(
    operation: BoundOperation, scores: Reals, boxes: Reals, image_size: Reals
) -> Integers:
    """Return the indices of one image's proposals, best first."""
    before, after = operation.integer(6), operation.integer(7)
    candidates = np.arange(len(scores))
    if 0 < before < len(scores):
        candidates = falling(scores)[:before]
    usable = _is_usable(boxes[candidates], image_size, operation.real(9))
    survives = hard(operation.real(8))
    limit = after if after > 0 else -1
    return pick_boxes(scores, boxes, candidates[usable], limit, survives)


def _is_usable(boxes: Reals, image_size: Reals, min_size: float) -> NDArray[np.bool_]:
    sizes = boxes[:, 2:] - boxes[:, :2]
    centers = boxes[:, :2] + sizes / 2
    usable = (sizes > min_size) & (centers < image_size[::-1])
    return np.asarray(usable.all(axis=1))


DATA_DEPENDENT: dict[OperationType, Compute] = {
    OperationType.GENERATE_PROPOSALS: _compute,
}
