"""PAD, PAD_V2 and MIRROR_PAD.

Source: 1.3/types.hal (PAD, PAD_V2); AIDL feature level 7 (MIRROR_PAD).
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.padding import SYMMETRIC, paddings_of
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
)


def _interior(operation: BoundOperation) -> tuple[slice, ...]:
    """Return where the input lies in the output."""
    pairs = zip(operation.shape(0), paddings_of(operation), strict=True)
    return tuple(slice(before, before + length) for length, (before, _) in pairs)


def _prepare_pad(operation: BoundOperation) -> PreparedKernel:
    """Surround the input with zeros; quantised tensors with their zero point."""
    interior = _interior(operation)
    zero = operation.input(0).zero_point

    def run(inputs: Inputs, outputs: Outputs) -> None:
        outputs[0].fill(zero)
        np.copyto(outputs[0][interior], inputs[0])

    return stateless(run)


def _prepare_pad_v2(operation: BoundOperation) -> PreparedKernel:
    """Surround the input with the scalar in input 2; for codes, a stored value."""
    interior = _interior(operation)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[2], casting="unsafe")
        np.copyto(outputs[0][interior], inputs[0])

    return stateless(run)


def _mirrored(length: int, before: int, after: int, mode: int) -> NDArray[np.intp]:
    """Return which element of an axis stands at each place of the padded axis."""
    period = 2 * length if mode == SYMMETRIC else max(2 * length - 2, 1)
    place = np.arange(-before, length + after) % period
    last = period - 1 if mode == SYMMETRIC else period
    return np.minimum(place, last - place)


def _prepare_mirror_pad(operation: BoundOperation) -> PreparedKernel:
    """Continue each axis with its own elements in reverse.

    Mode REFLECT leaves out the element at the border, SYMMETRIC repeats it.
    """
    shape, mode = operation.shape(0), operation.integer(2)
    sources = [
        _mirrored(length, before, after, mode)
        for length, (before, after) in zip(shape, paddings_of(operation), strict=True)
    ]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offsets = [source * stride for source, stride in zip(sources, strides, strict=True)]
    places = functools.reduce(np.add.outer, offsets)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        inputs[0].take(places, None, outputs[0], "clip")

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.PAD: _prepare_pad,
    OperationType.PAD_V2: _prepare_pad_v2,
    OperationType.MIRROR_PAD: _prepare_mirror_pad,
}
