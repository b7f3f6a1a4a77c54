"""BATCH_MATMUL and FULLY_CONNECTED: products of matrices.

[..., m, k] @ [..., k, n] with either side transposed, batch by batch; and [batch, k] @
weights [n, k], transposed, plus bias [n]. Sums of codes are exact and rounded as
TensorFlow Lite's reference kernels do.

Source: AIDL feature level 6 (BATCH_MATMUL); 1.3/types.hal (FULLY_CONNECTED).
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

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
from asyncnn.kernels.linear.convolution import rows_kernel
from asyncnn.kernels.linear.lowering import (
    QuantizedEpilogue,
    exact_dtype,
    fitted_line,
    largest_magnitude,
    lower,
    pixels_per_row,
)
from asyncnn.kernels.numerics import code_limits, widen_float16
from asyncnn.kernels.rounding import FixedPointRounding, RealRounding

Load: TypeAlias = Callable[[Array], Array]
"""Gives the real values of stored matrices, in units of their scale."""


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute ``left @ right``, each transposed first if it is adjoint.

    ``left: any [..., n, k]``, ``right: any [..., k, m]`` or, adjoint, with the last two
    axes swapped; the output is [..., n, m]. Integers wrap around.

    Quantised sums are exact and rounded as `FixedPointRounding` does.
    """
    if operation.input(0).type in QUANT8_TYPES:
        return _quantized(operation)
    left_adjoint, right_adjoint = operation.boolean(2), operation.boolean(3)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        left = _oriented(inputs[0], left_adjoint)
        right = _oriented(inputs[1], right_adjoint)
        np.matmul(left, right, out=outputs[0])

    return widen_float16(operation, stateless(run))


def _oriented(matrices: Array, adjoint: bool) -> Array:
    return matrices.swapaxes(-1, -2) if adjoint else matrices


def _quantized(operation: BoundOperation) -> PreparedKernel:
    left, right, output = operation.input(0), operation.input(1), operation.outputs[0]
    left_adjoint, right_adjoint = operation.boolean(2), operation.boolean(3)
    inner = left.require_shape()[-2 if left_adjoint else -1]
    reach = inner * math.prod(
        largest_magnitude(side, side.zero_point) for side in (left, right)
    )
    dtype = exact_dtype(reach)
    multiplier = float(left.scale) * float(right.scale) / float(output.scale)
    rule = FixedPointRounding(np.array([multiplier]))
    fold = np.zeros(1, np.int64)
    zero_point, bounds = output.zero_point, code_limits(output.dtype)
    line = fitted_line(rule, fold, np.array([reach]), zero_point, bounds)
    epilogue = QuantizedEpilogue(lambda: rule, fold, zero_point, bounds, line)
    load_left = _centered(left, left_adjoint, dtype)
    load_right = _centered(right, right_adjoint, dtype)
    shape = output.require_shape()
    *_, lines, columns = shape
    row = pixels_per_row(lines, columns) * columns

    def instantiate(scratch: Scratch) -> Run:
        left_of, right_of = load_left(scratch), load_right(scratch)
        sums = scratch.transient(shape, dtype)
        finish = epilogue.bind(scratch, sums.reshape(-1, row))

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.matmul(left_of(inputs[0]), right_of(inputs[1]), out=sums)
            finish(outputs[0].reshape(-1, row))

        return run

    return instantiate


def _centered(
    operand: BoundOperand, adjoint: bool, dtype: DTypeLike
) -> Callable[[Scratch], Load]:
    """Return the load of an operand's matrices, which casts constant ones only once."""
    zero = np.array(operand.zero_point, dtype)
    if operand.value is not None:
        constant = _oriented(operand.value - zero, adjoint)
        return lambda scratch: lambda codes: constant

    def instantiate(scratch: Scratch) -> Load:
        buffer = scratch.transient(operand.require_shape(), dtype)
        matrices = _oriented(buffer, adjoint)

        def load(codes: Array) -> Array:
            np.subtract(codes, zero, out=buffer)
            return matrices

        return load

    return instantiate


def _prepare_fully_connected(operation: BoundOperation) -> PreparedKernel:
    """Compute ``activation(data @ weights.T + bias)``, ``data`` as [batch, inputs].

    Quantised results are the float64 product of the exact sum and the real multiplier,
    rounded once, half away from zero.
    """
    matrix = operation.value(1).T
    lowered = lower(operation, matrix, operation.activation(3), RealRounding)
    batch = math.prod(operation.shape(0)) // len(matrix)
    return rows_kernel(lowered, batch, operation.input(0).dtype)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.BATCH_MATMUL: _prepare,
    OperationType.FULLY_CONNECTED: _prepare_fully_connected,
}
