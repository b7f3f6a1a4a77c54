"""CONCATENATION, PACK and SPLIT; PAD, PAD_V2 and MIRROR_PAD; SLICE to GATHER.

Elements of any dtype are moved and not computed with, but for codes that are joined
with another scale or zero point: those are rescaled through a table of 256 entries.

Source: 1.3/types.hal (CONCATENATION, SPLIT, PAD, PAD_V2, SLICE, STRIDED_SLICE, GATHER);
AIDL feature level 6 (PACK) and 7 (MIRROR_PAD).
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    OperationFailedError,
)
from asyncnn.hal.operations.joining import (
    SYMMETRIC,
    paddings_of,
    slices_of,
    strided_slices_of,
)
from asyncnn.hal.types import OperationType
from asyncnn.kernels.compiled import moves_of, moving
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics import conversion_table, look_up, same_quantization


def _prepare_concatenation(operation: BoundOperation) -> PreparedKernel:
    """Join tensors along an axis; codes are converted to the output's quantisation."""
    count = len(operation.inputs) - 1
    axis, output = operation.integer(count), operation.outputs[0]
    operands = [operation.input(index) for index in range(count)]
    tables = {
        index: conversion_table(operand, output)
        for index, operand in enumerate(operands)
        if operand.type in QUANT8_TYPES and not same_quantization(operand, output)
    }
    if tables:
        return _converted_concatenation(operands, tables, axis)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.concatenate(inputs[:count], axis, outputs[0])

    before = (slice(None),) * operation.axis(count, len(output.require_shape()))
    lengths = [operand.require_shape()[len(before)] for operand in operands]
    stops = itertools.accumulate(lengths)
    places = [
        (*before, slice(stop - length, stop))
        for stop, length in zip(stops, lengths, strict=True)
    ]

    def copies(inputs: Inputs, outputs: Outputs) -> Iterator[tuple[Array, Array]]:
        for place, part in zip(places, inputs[:count], strict=True):
            yield outputs[0][place], part

    return moves_of(operation, range(count), copies) or stateless(run)


def _converted_concatenation(
    operands: Sequence[BoundOperand], tables: dict[int, Array], axis: int
) -> PreparedKernel:
    def instantiate(scratch: Scratch) -> Run:
        conversions = [
            (index, table, scratch.transient(operands[index].require_shape(), np.uint8))
            for index, table in tables.items()
        ]

        def run(inputs: Inputs, outputs: Outputs) -> None:
            parts = list(inputs[: len(operands)])
            for index, table, buffer in conversions:
                parts[index] = buffer.view(table.dtype)
                look_up(table, inputs[index], parts[index])
            np.concatenate(parts, axis, outputs[0])

        return run

    return instantiate


def _prepare_pack(operation: BoundOperation) -> PreparedKernel:
    """Lay tensors of one shape side by side along a new axis."""
    axis, count = operation.integer(0), len(operation.inputs) - 1
    before = (slice(None),) * axis
    places: list[tuple[slice | int, ...]] = [(*before, i) for i in range(count)]

    def copies(inputs: Inputs, outputs: Outputs) -> Iterator[tuple[Array, Array]]:
        for place, part in zip(places, inputs[1:], strict=True):
            yield outputs[0][place], part

    return moving(operation, range(1, count + 1), copies)


def _prepare_split(operation: BoundOperation) -> PreparedKernel:
    """Cut a tensor into equal parts along an axis."""
    shape = operation.shape(0)
    axis, count = operation.axis(1, len(shape)), operation.integer(2)
    part = shape[axis] // count
    before = (slice(None),) * axis
    places = [
        (*before, slice(start * part, (start + 1) * part)) for start in range(count)
    ]

    def copies(inputs: Inputs, outputs: Outputs) -> Iterator[tuple[Array, Array]]:
        for place, output in zip(places, outputs, strict=True):
            yield output, inputs[0][place]

    return moving(operation, [0], copies)


def _interior(operation: BoundOperation) -> tuple[slice, ...]:
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


def _taken(operation: BoundOperation, place: tuple[slice | int, ...]) -> PreparedKernel:
    return moving(
        operation, [0], lambda inputs, outputs: [(outputs[0], inputs[0][place])]
    )


def _prepare_slice(operation: BoundOperation) -> PreparedKernel:
    """Take ``size[i]`` elements from ``begin[i]`` on along every axis."""
    return _taken(operation, slices_of(operation))


def _prepare_strided_slice(operation: BoundOperation) -> PreparedKernel:
    """Take every ``strides[i]``-th element, and drop the axes of the shrink mask."""
    slices, dropped = strided_slices_of(operation)
    lengths = operation.shape(0)
    place = tuple(
        taken.indices(lengths[axis])[0] if axis in dropped else taken
        for axis, taken in enumerate(slices)
    )
    return _taken(operation, place)


def _prepare_gather(operation: BoundOperation) -> PreparedKernel:
    """Take the elements at ``indices`` along an axis.

    An index outside of the axis fails the preparation or, if it is only known then,
    the execution.
    """
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    length = shape[axis]
    constant = operation.input(2).value
    if constant is not None:
        _require_within(constant, length)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        if constant is None:
            _require_within(inputs[2], length)
        inputs[0].take(inputs[2], axis, outputs[0], "clip")

    return stateless(run)


def _require_within(indices: Array, length: int) -> None:
    # Read without a sign, a negative index is larger than any length.
    largest = np.maximum.reduce(indices.view(np.uint32), axis=None, initial=0)
    if indices.size and largest >= length:
        raise OperationFailedError(
            f"GATHER: index {largest.view(np.int32)} is outside an axis of {length}"
        )


KERNELS: dict[OperationType, Prepare] = {
    OperationType.CONCATENATION: _prepare_concatenation,
    OperationType.PACK: _prepare_pack,
    OperationType.SPLIT: _prepare_split,
    OperationType.PAD: _prepare_pad,
    OperationType.PAD_V2: _prepare_pad_v2,
    OperationType.MIRROR_PAD: _prepare_mirror_pad,
    OperationType.SLICE: _prepare_slice,
    OperationType.STRIDED_SLICE: _prepare_strided_slice,
    OperationType.GATHER: _prepare_gather,
}
