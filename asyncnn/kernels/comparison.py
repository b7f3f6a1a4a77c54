"""Comparisons, logic and SELECT.

Codes with different scales or zero points are compared by their real values in float32.
Any non-zero byte of a boolean tensor is true.

Source: 1.3/types.hal (EQUAL and its kin, LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, SELECT).
"""

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.arithmetic import of_one, of_two
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.lookup_tables import binary_lookup, conversion_table, look_up
from asyncnn.kernels.numerics import code_steps, same_quantization


def _float32_values(operand: BoundOperand) -> NDArray[np.float32]:
    return code_steps(operand).astype(np.float32) * np.float32(operand.scale)


def _comparison(ufunc: np.ufunc) -> Prepare:
    def prepare(operation: BoundOperation) -> PreparedKernel:
        first, second = operation.input(0), operation.input(1)
        if first.type not in QUANT8_TYPES or same_quantization(first, second):
            return of_two(ufunc)
        table = ufunc.outer(_float32_values(first), _float32_values(second))
        return binary_lookup(table, operation.outputs[0].require_shape())

    return prepare


def _logic(ufunc: np.ufunc) -> Prepare:
    return lambda operation: of_two(ufunc)


def _prepare_not(operation: BoundOperation) -> PreparedKernel:
    """Negate booleans."""
    return of_one(np.logical_not)


def _prepare_select(operation: BoundOperation) -> PreparedKernel:
    """Take input 1 where the condition in input 0 holds, and input 2 elsewhere.

    Codes are converted to the output's scale and zero point.
    """
    chosen, other, output = operation.input(1), operation.input(2), operation.outputs[0]
    if chosen.type in QUANT8_TYPES and not (
        same_quantization(chosen, output) and same_quantization(other, output)
    ):
        return _converted_select(chosen, other, output)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[2])
        np.copyto(outputs[0], inputs[1], where=inputs[0])

    return stateless(run)


def _converted_select(
    chosen: BoundOperand, other: BoundOperand, output: BoundOperand
) -> PreparedKernel:
    chosen_table = conversion_table(chosen, output)
    other_table = conversion_table(other, output)
    shape = output.require_shape()

    def instantiate(scratch: Scratch) -> Run:
        converted = scratch.transient(shape, output.dtype)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            look_up(chosen_table, inputs[1], converted)
            look_up(other_table, inputs[2], outputs[0])
            np.copyto(outputs[0], converted, where=inputs[0])

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.EQUAL: _comparison(np.equal),
    OperationType.NOT_EQUAL: _comparison(np.not_equal),
    OperationType.LESS: _comparison(np.less),
    OperationType.LESS_EQUAL: _comparison(np.less_equal),
    OperationType.GREATER: _comparison(np.greater),
    OperationType.GREATER_EQUAL: _comparison(np.greater_equal),
    OperationType.LOGICAL_AND: _logic(np.logical_and),
    OperationType.LOGICAL_OR: _logic(np.logical_or),
    OperationType.LOGICAL_NOT: _prepare_not,
    OperationType.SELECT: _prepare_select,
}
