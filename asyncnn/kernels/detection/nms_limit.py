"""BOX_WITH_NMS_LIMIT: the best boxes of every class and image.

Source: 1.3/types.hal (BOX_WITH_NMS_LIMIT).
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import require_boxes
from asyncnn.kernels.detection.numbers import (
    Integers,
    Reals,
    from_float32,
    to_float32,
)
from asyncnn.kernels.detection.suppression import Survives, pick_boxes, pick_by_class
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

    Source: 1.3/types.hal (BOX_WITH_NMS_LIMIT).
    """
    count, classes = operation.shape(0)
    scores = to_float32(operation.value(0), operation.input(0)).copy()
    stored_boxes = operation.value(1).reshape(count, classes, 4)
    boxes = to_float32(stored_boxes, operation.input(1))
    batch_indices = operation.value(2)
    require_boxes(operation, boxes)
    if (batch_indices < 0).any():
        raise OperationFailedError(f"{operation.type.name}: a batch index is negative")
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
    """Return the runs of equal batch indices."""
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
    match operation.integer(5):
        case 0:
            return partial(_hard, threshold=operation.real(6))
        case 1:
            return partial(_linear, threshold=operation.real(6))
        case 2:
            return partial(_gaussian, sigma=operation.real(7))
        case kernel:
            raise OperationFailedError(
                f"{operation.type.name}: {kernel} is not a kernel (0 to 2)"
            )


def _hard(overlaps: Reals, threshold: float) -> Reals:
    return (overlaps < threshold).astype(np.float32)


def _linear(overlaps: Reals, threshold: float) -> Reals:
    return np.where(overlaps < threshold, np.float32(1), 1 - overlaps)


def _gaussian(overlaps: Reals, sigma: float) -> Reals:
    weights: Reals = np.exp(-overlaps * overlaps / sigma)
    return weights


DATA_DEPENDENT: dict[OperationType, Compute] = {
    OperationType.BOX_WITH_NMS_LIMIT: _compute,
}
