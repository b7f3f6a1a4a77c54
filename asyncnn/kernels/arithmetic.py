"""ADD to PRELU on pairs of elements, ABS to CAST on each, comparisons, logic, SELECT.

Shapes broadcast from the last axis on; layouts play no part. float16 is computed in
float32 and rounded once, int32 wraps around, DIV of int32 rounds towards negative
infinity. Two 8-bit codes have 65,536 combinations: the exact integer arithmetic is done
for all of them at preparation, and an execution looks its results up. Codes with
different scales or zero points are compared by their real values in float32. Any
non-zero byte of a boolean tensor is true.

Source: 1.3/types.hal (ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, PRELU, ABS, NEG, EXP,
LOG, SQRT, RSQRT, SIN, FLOOR, CAST, EQUAL and its kin, LOGICAL_AND, LOGICAL_OR,
LOGICAL_NOT, SELECT); AIDL feature level 7 (RSQRT of codes); Broadcast.cpp for integer
division; TensorFlow Lite's reference kernels for codes, bit for bit.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType
from asyncnn.kernels.compiled import AND, NOT, OR, logic
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
    with_scratch,
)
from asyncnn.kernels.numerics import (
    binary_lookup,
    code_steps,
    conversion_table,
    formula_lookup,
    look_up,
    same_quantization,
    widen_float16,
)
from asyncnn.kernels.rounding import (
    activation_bounds,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantized_activation_range,
)


def of_one(ufunc: np.ufunc) -> PreparedKernel:
    """Return the kernel ``output = ufunc(input 0)``.

    NumPy computes float16 elements in float32, and integers wrap around.
    """

    def run(inputs: Inputs, outputs: Outputs) -> None:
        ufunc(inputs[0], out=outputs[0])

    return stateless(run)


def of_two(ufunc: np.ufunc) -> PreparedKernel:
    """Return the kernel ``output = ufunc(input 0, input 1)``; the inputs broadcast."""

    def run(inputs: Inputs, outputs: Outputs) -> None:
        ufunc(inputs[0], inputs[1], out=outputs[0])

    return stateless(run)


def _each(ufunc: np.ufunc) -> Prepare:
    return lambda operation: of_one(ufunc)


def _each_pair(ufunc: np.ufunc) -> Prepare:
    return lambda operation: of_two(ufunc)


def _rsqrt_formula(real: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(1 / np.sqrt(real))


def _prepare_rsqrt(operation: BoundOperation) -> PreparedKernel:
    """Compute ``1 / sqrt(x)``; of codes, 0 gives the largest code."""
    if operation.input(0).type in QUANT8_TYPES:
        return formula_lookup(operation, _rsqrt_formula)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.sqrt(inputs[0], out=outputs[0])
        np.reciprocal(outputs[0], out=outputs[0])

    return widen_float16(operation, stateless(run))


def _prepare_cast(operation: BoundOperation) -> PreparedKernel:
    """Convert stored values; fractions are dropped, integers saturate."""
    source, target = operation.input(0), operation.outputs[0]
    narrows = target.dtype.kind in "iu" and source.dtype != target.dtype
    if narrows and source.dtype != np.uint8:
        return _saturating_cast(operation)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[0], casting="unsafe")

    return stateless(run)


def _saturating_cast(operation: BoundOperation) -> PreparedKernel:
    source, target = operation.input(0).dtype, operation.outputs[0].dtype
    limits = np.iinfo(target)
    # float16 holds no int32 limit, and float64 is the first float to hold both.
    wide = np.dtype(np.float64) if source.kind == "f" else source
    low, high = (np.array(limit, wide) for limit in (limits.min, limits.max))
    shape = operation.shape(0)

    def run(clamped: Array, inputs: Inputs, outputs: Outputs) -> None:
        np.maximum(inputs[0], low, out=clamped)
        np.minimum(clamped, high, out=clamped)
        np.copyto(outputs[0], clamped, casting="unsafe")

    return with_scratch(run, (shape, wide))


_SUM_FRACTION_BITS = 20
"""Bits that both terms of a sum gain before they are brought to a common scale."""


def _scaled(values: NDArray[np.int64], multiplier: float) -> NDArray[np.int64]:
    return multiply_by_quantized_multiplier(values, *quantize_multiplier(multiplier))


def _lookup(codes: Callable[[BoundOperation], Array]) -> Prepare:
    """Look up what ``codes`` gives for all pairs, computed once."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        (table,) = operation.pack("lookup", lambda: (codes(operation),))
        return binary_lookup(table, operation.outputs[0].require_shape())

    return prepare


def _codes_of_steps(
    operation: BoundOperation,
    steps: NDArray[np.int64],
    activation: FusedActivationFunc = FusedActivationFunc.NONE,
) -> Array:
    output = operation.outputs[0]
    low, high = quantized_activation_range(
        activation, output.scale, output.zero_point, output.dtype
    )
    return np.clip(steps + output.zero_point, low, high).astype(output.dtype)


def _quantized_sum(sign: int) -> Prepare:
    """Add or subtract real values; each of the three may have its own quantisation."""

    def codes(operation: BoundOperation) -> Array:
        first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
        common_scale = 2 * max(first.scale, second.scale)
        augend, addend = (
            _scaled(code_steps(term) << _SUM_FRACTION_BITS, term.scale / common_scale)
            for term in (first, second)
        )
        total = augend[:, np.newaxis] + sign * addend
        unit = common_scale / (output.scale * 2**_SUM_FRACTION_BITS)
        steps = _scaled(total, unit)
        return _codes_of_steps(operation, steps, operation.activation(2))

    return _lookup(codes)


def _products(operation: BoundOperation) -> Array:
    """Multiply real values."""
    first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
    products = np.multiply.outer(code_steps(first), code_steps(second))
    steps = _scaled(products, first.scale * second.scale / output.scale)
    return _codes_of_steps(operation, steps, operation.activation(2))


def _rectified(operation: BoundOperation) -> Array:
    """Compute ``x`` where ``x >= 0``, else ``alpha * x``, in real values."""
    operand, alpha, output = *map(operation.input, (0, 1)), operation.outputs[0]
    steps = code_steps(operand)
    products = np.multiply.outer(steps, code_steps(alpha))
    negative = _scaled(products, operand.scale * alpha.scale / output.scale)
    positive = _scaled(steps, operand.scale / output.scale)[:, np.newaxis]
    chosen = np.where(steps[:, np.newaxis] >= 0, positive, negative)
    return _codes_of_steps(operation, chosen)


def _with_activation(ufunc: np.ufunc) -> Prepare:

    def prepare(operation: BoundOperation) -> PreparedKernel:
        activation = operation.activation(2)
        if activation is FusedActivationFunc.NONE:
            return of_two(ufunc)
        dtype = operation.outputs[0].dtype
        operation.require(
            dtype.kind == "f",
            f"{dtype} tensors take no fused activation, not {activation.name}",
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


def _prepare_prelu(operation: BoundOperation) -> PreparedKernel:
    """Compute ``x`` where ``x >= 0``, else ``alpha * x``."""
    operand = operation.input(0)
    zero = np.array(0, operand.dtype)
    shape = operand.require_shape()

    def run(keeps: Array, inputs: Inputs, outputs: Outputs) -> None:
        np.multiply(inputs[0], inputs[1], out=outputs[0])
        np.greater_equal(inputs[0], zero, out=keeps)
        np.copyto(outputs[0], inputs[0], where=keeps)

    return with_scratch(run, (shape, np.bool_))


def _by_type(
    prepare: Prepare, prepare_quantized: Callable[[BoundOperation], PreparedKernel]
) -> Prepare:
    def choose(operation: BoundOperation) -> PreparedKernel:
        quantized = operation.input(0).type in QUANT8_TYPES
        return (prepare_quantized if quantized else prepare)(operation)

    return choose


def _extremum(ufunc: np.ufunc) -> Prepare:
    """Choose the larger or smaller element; quantised ones by their real values."""

    def of_codes(operation: BoundOperation) -> PreparedKernel:
        first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
        if same_quantization(first, output) and same_quantization(second, output):
            return of_two(ufunc)
        tables = conversion_table(first, output), conversion_table(second, output)
        return binary_lookup(ufunc.outer(*tables), output.require_shape())

    return _by_type(_each_pair(ufunc), of_codes)


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

    def run(converted: Array, inputs: Inputs, outputs: Outputs) -> None:
        look_up(chosen_table, inputs[1], converted)
        look_up(other_table, inputs[2], outputs[0])
        np.copyto(outputs[0], converted, where=inputs[0])

    return with_scratch(run, (shape, output.dtype))


KERNELS: dict[OperationType, Prepare] = {
    OperationType.ABS: _each(np.absolute),
    OperationType.NEG: _each(np.negative),
    OperationType.EXP: _each(np.exp),
    OperationType.LOG: _each(np.log),
    OperationType.SQRT: _each(np.sqrt),
    OperationType.SIN: _each(np.sin),
    OperationType.FLOOR: _each(np.floor),
    OperationType.RSQRT: _prepare_rsqrt,
    OperationType.CAST: _prepare_cast,
    OperationType.ADD: _by_type(_with_activation(np.add), _quantized_sum(1)),
    OperationType.SUB: _by_type(_with_activation(np.subtract), _quantized_sum(-1)),
    OperationType.MUL: _by_type(_with_activation(np.multiply), _lookup(_products)),
    OperationType.DIV: _prepare_div,
    OperationType.MAXIMUM: _extremum(np.maximum),
    OperationType.MINIMUM: _extremum(np.minimum),
    OperationType.POW: _each_pair(np.power),
    OperationType.PRELU: _by_type(_prepare_prelu, _lookup(_rectified)),
    OperationType.EQUAL: _comparison(np.equal),
    OperationType.NOT_EQUAL: _comparison(np.not_equal),
    OperationType.LESS: _comparison(np.less),
    OperationType.LESS_EQUAL: _comparison(np.less_equal),
    OperationType.GREATER: _comparison(np.greater),
    OperationType.GREATER_EQUAL: _comparison(np.greater_equal),
    OperationType.LOGICAL_AND: logic(AND, _each_pair(np.logical_and)),
    OperationType.LOGICAL_OR: logic(OR, _each_pair(np.logical_or)),
    OperationType.LOGICAL_NOT: logic(NOT, _each(np.logical_not)),
    OperationType.SELECT: _prepare_select,
}
