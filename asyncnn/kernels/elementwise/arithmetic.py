"""ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW and PRELU on float and integer tensors.

Shapes broadcast from the last axis on. Float16 elements are computed in float32 and
rounded once; int32 wraps around. Quantised tensors are in `quantized_arithmetic`.

Source: 1.3/types.hal (the operations above); Broadcast.cpp for integer division.
"""

from collections.abc import Callable

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType
from asyncnn.kernels.elementwise.quantized_arithmetic import (
    prepare_quantized_add,
    prepare_quantized_extremum,
    prepare_quantized_mul,
    prepare_quantized_prelu,
    prepare_quantized_sub,
)
from asyncnn.kernels.elementwise.ufuncs import of_two
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics.requantize import activation_bounds


def _with_activation(ufunc: np.ufunc) -> Prepare:
    """Apply ``ufunc``, then the fused activation of input 2."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        activation = operation.activation(2)
        if activation is FusedActivationFunc.NONE:
            return of_two(ufunc)
        dtype = operation.outputs[0].dtype
        if dtype.kind != "f":
            raise OperationFailedError(
                f"{operation.type.name}: {dtype} tensors take no fused activation, "
                f"not {activation.name}"
            )
        bounds = activation_bounds(activation)
        low, high = (np.array(bound, dtype) for bound in bounds)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            output = outputs[0]
            ufunc(inputs[0], inputs[1], out=output)
            output.clip(low, high, output)

        return stateless(run)

    return prepare


def _prepare_div(operation: BoundOperation) -> PreparedKernel:
    """Divide; int32 rounds towards minus infinity, and gives 0 for a divisor of 0."""
    if operation.input(0).type is OperandType.TENSOR_INT32:
        return _with_activation(np.floor_divide)(operation)
    return _with_activation(np.divide)(operation)


def _prepare_pow(operation: BoundOperation) -> PreparedKernel:
    """Raise input 0 to the power of input 1."""
    return of_two(np.power)


def _prepare_prelu(operation: BoundOperation) -> PreparedKernel:
    """Compute ``x`` where ``x >= 0``, else ``alpha * x``."""
    operand = operation.input(0)
    zero = np.array(0, operand.dtype)
    shape = operand.require_shape()

    def instantiate(scratch: Scratch) -> Run:
        keeps = scratch.transient(shape, np.bool_)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.multiply(inputs[0], inputs[1], out=outputs[0])
            np.greater_equal(inputs[0], zero, out=keeps)
            np.copyto(outputs[0], inputs[0], where=keeps)

        return run

    return instantiate


def _by_type(
    prepare: Prepare, prepare_quantized: Callable[[BoundOperation], PreparedKernel]
) -> Prepare:
    def choose(operation: BoundOperation) -> PreparedKernel:
        quantized = operation.input(0).type in QUANT8_TYPES
        return (prepare_quantized if quantized else prepare)(operation)

    return choose


def _extremum(ufunc: np.ufunc) -> Prepare:
    """Choose the larger or smaller element; quantised ones by their real values."""
    return _by_type(
        lambda operation: of_two(ufunc),
        lambda operation: prepare_quantized_extremum(operation, ufunc),
    )


KERNELS: dict[OperationType, Prepare] = {
    OperationType.ADD: _by_type(_with_activation(np.add), prepare_quantized_add),
    OperationType.SUB: _by_type(_with_activation(np.subtract), prepare_quantized_sub),
    OperationType.MUL: _by_type(_with_activation(np.multiply), prepare_quantized_mul),
    OperationType.DIV: _prepare_div,
    OperationType.MAXIMUM: _extremum(np.maximum),
    OperationType.MINIMUM: _extremum(np.minimum),
    OperationType.POW: _prepare_pow,
    OperationType.PRELU: _by_type(_prepare_prelu, prepare_quantized_prelu),
}
