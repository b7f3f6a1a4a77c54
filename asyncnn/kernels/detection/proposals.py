"""GENERATE_PROPOSALS and BOX_WITH_NMS_LIMIT: the best boxes of every class and image.

How many there are only the data show: outputs have shape [boxes, 4], scores [boxes].
Computed in float32; codes are read as real values and rounded at the end.

Source: 1.3/types.hal (GENERATE_PROPOSALS, BOX_WITH_NMS_LIMIT).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import NCHW_TO_NHWC, Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import (
    Integers,
    Reals,
    Survives,
    falling,
    from_float32,
    hard,
    pick_boxes,
    pick_by_class,
    refine,
    require_boxes,
    to_float32,
)
from asyncnn.kernels.kernel import Compute


def _compute(operation: BoundOperation) -> Sequence[Array]:
    """Pick boxes by score, lowering the scores of those that overlap a picked one.

    A score becomes ``score * f(IoU)``; ``f`` is 1 below the IoU threshold and above it
    0 (kernel 0, hard) or ``1 - IoU`` (1, linear), or everywhere ``exp(-IoU**2 /
    sigma)`` (2, Gaussian). Scores start above ``score_threshold`` and drop out below
    ``nms_score_threshold``.

    Inputs: ``scores: T [boxes, classes]``, class 0 being the background; ``boxes: B
    [boxes, classes * 4]`` as x1, y1, x2, y2; ``batch_indices: int32 [boxes]``, equal
    ones together. There may be no boxes. Scalars: score_threshold, max_detections for
    each image (negative: no limit), kernel, iou_threshold, sigma, nms_score_threshold.

    Outputs: ``scores: T [picked]``, ``boxes: B [picked, 4]``, ``classes: int32
    [picked]`` and ``batch_indices: int32 [picked]``, for each image by class and
    falling score. Quantised scores keep their scale, boxes count eighths of a pixel.

    :raises OperationFailedError: if a box ends before it begins, a batch index is
        negative, or there is no such kernel.
    """
    count, classes = operation.shape(0)
    scores = to_float32(operation.value(0), operation.input(0)).copy()
    stored_boxes = operation.value(1).reshape(count, classes, 4)
    boxes = to_float32(stored_boxes, operation.input(1))
    batch_indices = operation.value(2)
    require_boxes(operation, boxes)
    operation.require(not (batch_indices < 0).any(), "a batch index is negative")
    groups = [
        _pick(operation, scores, boxes, group) for group in _of_one_image(batch_indices)
    ]
    rows, labels = np.concatenate(groups, axis=1)
    return (
        from_float32(scores[rows, labels], operation.outputs[0]),
        stored_boxes[rows, labels],
        labels.astype(np.int32),
        batch_indices[rows],
    )


def _of_one_image(batch_indices: Array) -> list[slice]:
    bounds = np.flatnonzero(np.diff(batch_indices)) + 1
    starts, stops = [0, *bounds], [*bounds, len(batch_indices)]
    return [slice(a, b) for a, b in zip(starts, stops, strict=True)]


def _pick(
    operation: BoundOperation, scores: Reals, boxes: Reals, group: slice
) -> NDArray[np.intp]:
    """Pick among the boxes of one image and update their scores; give [rows, labels].

    The picks are sorted by class, then by falling score.
    """
    threshold, limit = operation.real(3), operation.integer(4)
    decay, lowest = _decay(operation), operation.real(8)
    scores, boxes = scores[group], boxes[group]

    def pick(label: int, candidates: Integers) -> Integers:
        column = scores[:, label]
        survives = _weaken(column, decay, lowest)
        return pick_boxes(column, boxes[:, label], candidates, limit, survives)

    rows, labels = pick_by_class(scores, threshold, limit, pick)
    by_class = np.argsort(labels, kind="stable")
    return np.stack([rows[by_class] + group.start, labels[by_class]])


def _weaken(scores: Reals, decay: Callable[[Reals], Reals], lowest: float) -> Survives:
    """Return the rule that lowers scores by ``decay`` and keeps all but low ones."""

    def survives(candidates: Integers, overlaps: Reals) -> NDArray[np.bool_]:
        lowered = scores[candidates] * decay(overlaps)
        scores[candidates] = lowered
        return ~(lowered < lowest)

    return survives


def _decay(operation: BoundOperation) -> Callable[[Reals], Reals]:
    """Return what scores are multiplied by, as a function of the overlap."""
    kernel = operation.integer(5)
    operation.require(0 <= kernel <= 2, f"{kernel} is not a kernel (0 to 2)")
    if kernel == 2:
        return partial(_gaussian, sigma=operation.real(7))
    return partial(_linear if kernel else _hard, threshold=operation.real(6))


def _hard(overlaps: Reals, threshold: float) -> Reals:
    return (overlaps < threshold).astype(np.float32)


def _linear(overlaps: Reals, threshold: float) -> Reals:
    return np.where(overlaps < threshold, np.float32(1), 1 - overlaps)


def _gaussian(overlaps: Reals, sigma: float) -> Reals:
    weights: Reals = np.exp(-overlaps * overlaps / sigma)
    return weights


def _compute_proposals(operation: BoundOperation) -> Sequence[Array]:
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
    """
    stored_scores, deltas = _flat_maps(operation)
    scores = to_float32(stored_scores, operation.input(0))
    anchors = _placed_anchors(operation)
    require_boxes(operation, anchors)
    image_info = to_float32(operation.value(3), operation.input(3))
    refined = refine(anchors, deltas, image_info[:, np.newaxis])
    picks = [
        _pick_proposals(operation, *one)
        for one in zip(scores, refined, image_info, strict=True)
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
    _, height, width, _ = operation.image_shape(operation.boolean(10))
    anchors = to_float32(operation.value(2), operation.input(2))
    rows = np.arange(height, dtype=np.float32) * operation.real(4)
    columns = np.arange(width, dtype=np.float32) * operation.real(5)
    shifts = np.stack(np.broadcast_arrays(columns, rows[:, np.newaxis]), axis=-1)
    placed = shifts[:, :, np.newaxis, np.newaxis] + anchors.reshape(-1, 2, 2)
    return placed.reshape(-1, 4)


def _pick_proposals(
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
    OperationType.BOX_WITH_NMS_LIMIT: _compute,
    OperationType.GENERATE_PROPOSALS: _compute_proposals,
}
