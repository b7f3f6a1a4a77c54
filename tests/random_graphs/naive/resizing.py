"""Formulas of resizing images."""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from tests.random_graphs.naive.elementwise import Formula
from tests.random_graphs.naive.expected import TWICE, Expected, exact, real, rounded
from tests.random_graphs.naive.layout import in_layout, nhwc


def _resized_lengths(operation: BoundOperation, image: Array) -> tuple[int, int]:
    def length(index: int, old: int) -> int:
        if operation.input(index).type is OperandType.INT32:
            return operation.integer(index)
        return int(np.floor(np.float32(old) * np.float32(operation.real(index))))

    return length(2, image.shape[1]), length(1, image.shape[2])


def _source_positions(operation: BoundOperation, old: int, new: int) -> Array:
    """Return the place in the old image of each pixel of the new one."""
    aligned, centred = operation.boolean(4, False), operation.boolean(5, False)
    places = np.arange(new)
    if aligned and new > 1:
        return places * ((old - 1) / (new - 1))
    return (places + 0.5) * (old / new) - 0.5 if centred else places * (old / new)


def _resize_bilinear(operation: BoundOperation) -> Expected:
    nchw = operation.boolean(3, False)
    image = nhwc(real(operation.input(0)), nchw)
    magnitude = np.broadcast_to(np.abs(image).max(), image.shape)
    for axis, new in zip((1, 2), _resized_lengths(operation, image), strict=True):
        old = image.shape[axis]
        places = np.clip(_source_positions(operation, old, new), 0, old - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, old - 1)
        share = np.reshape(places - low, (-1, *[1] * (3 - axis)))
        image, magnitude = (
            np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
            for x in (image, magnitude)
        )
    return in_layout(rounded(image, 16, magnitude, TWICE), nchw)


def _resize_nearest(operation: BoundOperation) -> Expected:
    nchw = operation.boolean(3, False)
    image = nhwc(real(operation.input(0)), nchw)
    for axis, new in zip((1, 2), _resized_lengths(operation, image), strict=True):
        old = image.shape[axis]
        places = _source_positions(operation, old, new)
        if operation.boolean(4, False) or operation.boolean(5, False):
            places = places + 0.5
        # Positions are float32; what should be a whole number may be just below.
        chosen = np.clip(np.floor(places + 1e-6), 0, old - 1).astype(int)
        image = np.take(image, chosen, axis)
    return in_layout(exact(image), nchw)


FORMULAS: dict[OperationType, Formula] = {
    OperationType.RESIZE_BILINEAR: _resize_bilinear,
    OperationType.RESIZE_NEAREST_NEIGHBOR: _resize_nearest,
}
