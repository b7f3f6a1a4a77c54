"""ADD, SUB, MUL, MAXIMUM, MINIMUM and PRELU on 8-bit codes.

Two codes have 65,536 combinations, so the exact integer arithmetic is done for all of
them at preparation, and an execution looks its results up.

Source: the integer arithmetic of TensorFlow Lite's reference kernels, bit for bit;
1.3/types.hal for what it approximates.
"""

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.elementwise.ufuncs import of_two
from asyncnn.kernels.kernel import PreparedKernel
from asyncnn.kernels.numerics.quantized import code_steps, same_quantization
from asyncnn.kernels.numerics.requantize import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantized_activation_range,
)
from asyncnn.kernels.numerics.tables import binary_lookup, conversion_table

_SUM_FRACTION_BITS = 20
"""Bits that both terms of a sum gain before they are brought to a common scale."""


def _scaled(values: NDArray[np.int64], multiplier: float) -> NDArray[np.int64]:
    return multiply_by_quantized_multiplier(values, *quantize_multiplier(multiplier))


def _lookup_of_steps(
    operation: BoundOperation,
    steps: NDArray[np.int64],
    activation: FusedActivationFunc = FusedActivationFunc.NONE,
) -> PreparedKernel:
    """Return the lookup of ``steps + zero_point``, clamped, as output codes."""
    output = operation.outputs[0]
    low, high = quantized_activation_range(
        activation, output.scale, output.zero_point, output.dtype
    )
    table = np.clip(steps + output.zero_point, low, high).astype(output.dtype)
    return binary_lookup(table, output.require_shape())


def _prepare_sum(operation: BoundOperation, sign: int) -> PreparedKernel:
    first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
    common_scale = 2 * max(first.scale, second.scale)
    augend, addend = (
        _scaled(code_steps(term) << _SUM_FRACTION_BITS, term.scale / common_scale)
        for term in (first, second)
    )
    total = augend[:, np.newaxis] + sign * addend
    unit = common_scale / (output.scale * 2**_SUM_FRACTION_BITS)
    return _lookup_of_steps(operation, _scaled(total, unit), operation.activation(2))


def prepare_quantized_add(operation: BoundOperation) -> PreparedKernel:
    """Add real values; each of the three may have its own scale and zero point."""
    return _prepare_sum(operation, sign=1)


def prepare_quantized_sub(operation: BoundOperation) -> PreparedKernel:
    """Subtract the real values of input 1 from those of input 0."""
    return _prepare_sum(operation, sign=-1)


def prepare_quantized_mul(operation: BoundOperation) -> PreparedKernel:
    """Multiply real values."""
    first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
    products = np.multiply.outer(code_steps(first), code_steps(second))
    steps = _scaled(products, first.scale * second.scale / output.scale)
    return _lookup_of_steps(operation, steps, operation.activation(2))


def prepare_quantized_prelu(operation: BoundOperation) -> PreparedKernel:
    """Compute ``x`` where ``x >= 0``, else ``alpha * x``, in real values."""
    operand, alpha, output = *map(operation.input, (0, 1)), operation.outputs[0]
    steps = code_steps(operand)
    products = np.multiply.outer(steps, code_steps(alpha))
    negative = _scaled(products, operand.scale * alpha.scale / output.scale)
    positive = _scaled(steps, operand.scale / output.scale)[:, np.newaxis]
    chosen = np.where(steps[:, np.newaxis] >= 0, positive, negative)
    return _lookup_of_steps(operation, chosen)


def prepare_quantized_extremum(
    operation: BoundOperation, ufunc: np.ufunc
) -> PreparedKernel:
    """Convert both codes to the output's scale, then apply ``ufunc`` to them."""
    first, second, output = *map(operation.input, (0, 1)), operation.outputs[0]
    if same_quantization(first, output) and same_quantization(second, output):
        return of_two(ufunc)
    table = ufunc.outer(
        conversion_table(first, output), conversion_table(second, output)
    )
    return binary_lookup(table, output.require_shape())
