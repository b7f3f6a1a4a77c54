"""Boxes: which ones are legal, how much they overlap, and how deltas refine them.

A box is [x1, y1, x2, y2], or with the axes in the other order; here it makes no
difference. Detection kernels compute in float32 whatever the types of their operands
are, in the order of the reference's operations: what they compare with thresholds has
to agree to the last bit.

Non-maximum suppression picks the best box, weakens what overlaps it, and repeats. Among
equal scores the order of the candidates decides. Boxes that drop out leave gaps, which
are filled from the end of the list; that changes the order, so this is done exactly as
the reference does it.

AXIS_ALIGNED_BBOX_TRANSFORM refines boxes [boxes, 4] by deltas [boxes, classes * 4].

Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM, BOX_WITH_NMS_LIMIT); NN
common/cpu_operations/GenerateProposals.cpp.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.numerics import to_codes

Reals: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.intp]


def to_float32(values: Array, operand: BoundOperand) -> Reals:
    """Return what ``values`` of ``operand`` stand for; float32 ones as they are."""
    reals = values.astype(np.float32, copy=False)
    if operand.dtype.kind == "f":
        return reals
    return (reals - np.float32(operand.zero_point)) * np.float32(operand.scale)


def from_float32(reals: Reals, operand: BoundOperand) -> Array:
    """Return real values as ``operand`` stores them, rounded once and saturated."""
    if operand.dtype.kind == "f":
        return reals.astype(operand.dtype, copy=False)
    return to_codes(reals.astype(np.float64), operand)


def require_boxes(operation: BoundOperation, boxes: Reals) -> None:
    """Check boxes [..., 4].

    :raises OperationFailedError: if one ends before it begins.
    """
    legal = (boxes[..., :2] <= boxes[..., 2:]).all(axis=-1)
    if not legal.all():
        first = boxes[~legal][0].tolist()
        operation.require(False, f"box {first} ends before it begins")


def require_batch_indices(
    operation: BoundOperation, indices: Array, images: int
) -> None:
    """Check the image indices of boxes.

    :raises OperationFailedError: if one is outside ``[0, images)``.
    """
    legal = (indices >= 0) & (indices < images)
    if not legal.all():
        first = indices[~legal][0]
        operation.require(False, f"a box is of image {first}, there are {images}")


def refine(boxes: Reals, deltas: Reals, image_sizes: Reals) -> Reals:
    """Return boxes moved and scaled by deltas, then clipped to their image.

    ``boxes: [..., 4]`` and ``deltas: [..., 4]`` (dx and dy in sizes of the box, then
    the logarithms of the scaling of width and height) broadcast with ``image_sizes:
    [..., 2]`` (height, width).
    """
    begin, end = boxes[..., :2], boxes[..., 2:]
    sizes = end - begin
    centers = (begin + end) / 2 + deltas[..., :2] * sizes
    halves = np.exp(deltas[..., 2:]) * sizes / 2
    edges = image_sizes[..., ::-1]
    corners = [
        np.minimum(np.maximum(corner, 0), edges)
        for corner in (centers - halves, centers + halves)
    ]
    return np.concatenate(corners, axis=-1)


def intersection_over_union(boxes: Reals, box: Reals) -> Reals:
    """Return the shared part [n] of the union of each of ``boxes: [n, 4]`` and ``box``.

    It is NaN where both boxes are without area.
    """
    begin = np.maximum(boxes[:, :2], box[:2])
    end = np.minimum(boxes[:, 2:], box[2:])
    shared: Reals = np.maximum(end - begin, 0).prod(axis=1)
    return shared / (_areas(boxes) + _areas(box) - shared)


def _areas(boxes: Reals) -> Reals:
    areas: Reals = (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
    return areas


Survives: TypeAlias = Callable[[Integers, Reals], NDArray[np.bool_]]
"""Says which of the given candidates stay, by their overlap with the box just picked.

It may lower their scores.
"""

Pick: TypeAlias = Callable[[int, Integers], Integers]
"""Picks boxes of one class out of candidates."""


def hard(threshold: float) -> Survives:
    """Return the rule that drops every box with an overlap of ``threshold`` or more."""

    def survives(candidates: Integers, overlaps: Reals) -> NDArray[np.bool_]:
        return ~(overlaps >= threshold)

    return survives


def pick_boxes(
    scores: Reals, boxes: Reals, candidates: Integers, limit: int, survives: Survives
) -> Integers:
    """Return the candidates that are picked, in the order of picking.

    Candidates index ``scores: [n]`` and ``boxes: [n, 4]``. A negative ``limit`` is
    none.
    """
    order = candidates.copy()
    picked, end = 0, len(order)
    limit = end if limit < 0 else limit
    while picked < min(end, limit):
        best = picked + int(scores[order[picked:end]].argmax())
        order[[picked, best]] = order[[best, picked]]
        rest = order[picked + 1 : end]
        overlaps = intersection_over_union(boxes[rest], boxes[order[picked]])
        picked += 1
        end = picked + _close_gaps(rest, survives(rest, overlaps))
    return order[:picked]


def _close_gaps(items: Integers, kept: NDArray[np.bool_]) -> int:
    """Move what is kept to the front, the last into the first gap; return its count."""
    count = int(np.count_nonzero(kept))
    gaps = np.flatnonzero(~kept[:count])
    behind = count + np.flatnonzero(kept[count:])
    items[gaps] = items[behind[::-1]]
    return count


def pick_by_class(
    scores: Reals, threshold: float, limit: int, pick: Pick
) -> tuple[Integers, Integers]:
    """Return box and class indices of the ``limit`` best picks, best score first.

    Each class of ``scores: [n, classes]`` picks by itself among its boxes with a score
    above ``threshold``; class 0 is the background and picks none. A negative ``limit``
    is none.
    """
    picks = [
        pick(label, np.flatnonzero(scores[:, label] > threshold))
        for label in range(1, scores.shape[1])
    ]
    labels = np.repeat(np.arange(1, scores.shape[1]), list(map(len, picks)))
    rows = np.concatenate(picks)
    best = falling(scores[rows, labels])[: None if limit < 0 else limit]
    return rows[best], labels[best]


def falling(scores: Reals) -> Integers:
    """Return the order along the last axis from high to low; ties as they come."""
    return np.argsort(-scores, axis=-1, kind="stable")


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Move each box by its deltas, one set for each class, and clip it to its image.

    ``center + (dx, dy) * size`` becomes the centre, ``size * exp((dw, dh))`` the size.

    Inputs: ``boxes: B [boxes, 4]`` as x1, y1, x2, y2; ``deltas: T [boxes,
    classes * 4]`` as dx, dy, dw, dh; ``batch_indices: int32 [boxes]``; ``image_info: B
    [images, 2]`` as height, width. There may be no boxes.

    Output: ``B [boxes, classes * 4]``. Quantised boxes count eighths of a pixel.

    The run raises `OperationFailedError` if a box ends before it begins or a batch
    index is not an image's.
    """
    boxes, deltas, _, image_info = (operation.input(index) for index in range(4))
    output = operation.outputs[0]
    count, columns = deltas.require_shape()
    images = image_info.require_shape()[0]

    def run(inputs: Inputs, outputs: Outputs) -> None:
        places = to_float32(inputs[0], boxes)
        require_boxes(operation, places)
        require_batch_indices(operation, inputs[2], images)
        sizes = to_float32(inputs[3], image_info)[inputs[2]]
        moves = to_float32(inputs[1], deltas).reshape(count, columns // 4, 4)
        refined = refine(places[:, None], moves, sizes[:, None])
        outputs[0][...] = from_float32(refined.reshape(count, columns), output)

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM: _prepare
}
