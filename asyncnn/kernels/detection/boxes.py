"""Boxes: which ones are legal, how much they overlap, and how deltas refine them.

A box is [x1, y1, x2, y2], or with the axes in the other order; here it makes no
difference.
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.kernels.detection.numbers import Reals


def require_boxes(operation: BoundOperation, boxes: Reals) -> None:
    """Check boxes [..., 4].

    :raises OperationFailedError: if one ends before it begins.
    """
    legal = (boxes[..., :2] <= boxes[..., 2:]).all(axis=-1)
    if not legal.all():
        raise OperationFailedError(
            f"{operation.type.name}: box {boxes[~legal][0].tolist()} ends before "
            "it begins"
        )


def require_batch_indices(
    operation: BoundOperation, indices: Array, images: int
) -> None:
    """Check the image indices of boxes.

    :raises OperationFailedError: if one is outside ``[0, images)``.
    """
    legal = (indices >= 0) & (indices < images)
    if not legal.all():
        raise OperationFailedError(
            f"{operation.type.name}: a box is of image {indices[~legal][0]}, "
            f"there are {images}"
        )


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
