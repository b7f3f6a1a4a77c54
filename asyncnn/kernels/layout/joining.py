"""Joining several tensors into one, and cutting one into several.

Source: 1.3/types.hal (CONCATENATION, SPLIT); AIDL feature level 6 (PACK).
"""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics.quantized import same_quantization
from asyncnn.kernels.numerics.tables import conversion_table, look_up


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

    return stateless(run)


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

    def run(inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0]
        for place, part in zip(places, inputs[1:], strict=True):
            np.copyto(output[place], part)

    return stateless(run)


def _prepare_split(operation: BoundOperation) -> PreparedKernel:
    """Cut a tensor into equal parts along an axis."""
    shape = operation.shape(0)
    axis, count = operation.axis(1, len(shape)), operation.integer(2)
    part = shape[axis] // count
    before = (slice(None),) * axis
    places = [
        (*before, slice(start * part, (start + 1) * part)) for start in range(count)
    ]

    def run(inputs: Inputs, outputs: Outputs) -> None:
        source = inputs[0]
        for place, output in zip(places, outputs, strict=True):
            np.copyto(output, source[place])

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.CONCATENATION: _prepare_concatenation,
    OperationType.PACK: _prepare_pack,
    OperationType.SPLIT: _prepare_split,
}
