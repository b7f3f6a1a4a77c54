"""RELU, RELU1, RELU6, LOGISTIC, TANH, ELU and HARD_SWISH.

8-bit codes go through a table that is computed in float64 and rounded once; float16 is
computed in float32.

Source: 1.3/types.hal (the operations above); PRELU takes two tensors and is with the
arithmetic.
"""

from collections.abc import Callable

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.arithmetic import of_one
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
    with_scratch,
)
from asyncnn.kernels.numerics import formula_lookup, widen_float16
from asyncnn.kernels.rounding import activation_bounds, quantized_activation_range


def _relu(activation: FusedActivationFunc) -> Prepare:
    """Clamp to the range of a fused activation; quantised codes are only clamped."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        operand = operation.input(0)
        bounds: tuple[float, float] = activation_bounds(activation)
        if operand.type in QUANT8_TYPES:
            bounds = quantized_activation_range(
                activation, operand.scale, operand.zero_point, operand.dtype
            )
        low, high = (np.array(bound, operand.dtype) for bound in bounds)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            inputs[0].clip(low, high, outputs[0])

        return stateless(run)

    return prepare


def _with_table(
    formula: Callable[[Array], Array],
    prepare_float: Callable[[BoundOperation], PreparedKernel],
) -> Prepare:
    """Choose between a table of the float64 ``formula`` and the float32 kernel."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        if operation.input(0).type in QUANT8_TYPES:
            return formula_lookup(operation, formula)
        return widen_float16(operation, prepare_float(operation))

    return prepare


def _logistic_formula(real: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-real)))


def _hard_swish_formula(real: Array) -> Array:
    return np.asarray(real * np.clip(real + 3, 0, 6) / 6)


def _logistic(operation: BoundOperation) -> PreparedKernel:
    one = np.array(1, np.float32)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0]
        np.negative(inputs[0], out=output)
        np.exp(output, out=output)
        np.add(output, one, out=output)
        np.reciprocal(output, out=output)

    return stateless(run)


def _hard_swish(operation: BoundOperation) -> PreparedKernel:
    zero, three, six = (np.array(value, np.float32) for value in (0, 3, 6))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0]
        np.add(inputs[0], three, out=output)
        output.clip(zero, six, output)
        np.multiply(output, inputs[0], out=output)
        np.divide(output, six, out=output)

    return stateless(run)


def _elu(operation: BoundOperation) -> PreparedKernel:
    """Compute ``max(0, x) + min(0, alpha * (exp(x) - 1))``."""
    alpha = np.array(operation.real(1), np.float32)
    zero, one = np.array(0, np.float32), np.array(1, np.float32)
    shape = operation.shape(0)

    def run(positive: Array, inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0]
        np.maximum(inputs[0], zero, out=positive)
        # Where x > 0 the exponential plays no part, and must not overflow.
        np.minimum(inputs[0], zero, out=output)
        np.exp(output, out=output)
        np.subtract(output, one, out=output)
        np.multiply(output, alpha, out=output)
        np.minimum(output, zero, out=output)
        np.add(output, positive, out=output)

    return widen_float16(operation, with_scratch(run, (shape, np.float32)))


KERNELS: dict[OperationType, Prepare] = {
    OperationType.RELU: _relu(FusedActivationFunc.RELU),
    OperationType.RELU1: _relu(FusedActivationFunc.RELU1),
    OperationType.RELU6: _relu(FusedActivationFunc.RELU6),
    OperationType.LOGISTIC: _with_table(_logistic_formula, _logistic),
    OperationType.TANH: _with_table(np.tanh, lambda operation: of_one(np.tanh)),
    OperationType.HARD_SWISH: _with_table(_hard_swish_formula, _hard_swish),
    OperationType.ELU: _elu,
}
