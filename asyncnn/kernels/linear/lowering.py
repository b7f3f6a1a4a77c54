"""Convolution-like operations as products of float matrices and an epilogue.

Quantised operands are multiplied as integers in floating point. That is exact: of every
output channel ``sum(|weight - zero point|) * max(|data|)`` stays below the integers
that the chosen float holds. The data's zero point goes into the epilogue, and what pads
an image is that zero point.

The sums times ``data scale * filter scale / output scale``, computed in float64, are
rounded by the rule of the operation. Bias scales are not used: they are that product of
the first two. Signed and unsigned tensors give the same real values.

Source: 1.3/types.hal; the multipliers of TensorFlow Lite's reference kernels.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.linear.epilogue import (
    Epilogue,
    FloatEpilogue,
    QuantizedEpilogue,
    fitted_line,
)
from asyncnn.kernels.numerics import code_limits
from asyncnn.kernels.rounding import (
    FixedPointRounding,
    Reals,
    RoundingRule,
    activation_bounds,
    quantized_activation_range,
)

Rounding: TypeAlias = Callable[[Reals], RoundingRule]
"""Makes a rule of real multipliers, one for all channels or one for each."""

_EXACT_IN_FLOAT32 = 2**24


class Lowered(msgspec.Struct, frozen=True, eq=False):
    """Weights [..., channels] to multiply with, and what becomes of the sums.

    Data are cast to the dtype of the weights; ``zero`` is what stands for 0 in them.
    """

    weights: Array
    zero: int
    epilogue: Epilogue


def lower(
    operation: BoundOperation,
    weights: Array,
    activation: FusedActivationFunc,
    rounding: Rounding = FixedPointRounding,
    *,
    centered: bool = False,
) -> Lowered:
    """Lower an operation whose inputs are data, filter and bias.

    ``weights`` is a view of the filter's stored values, output channels last. With
    ``centered``, the kernel itself subtracts ``zero`` from the data.

    :raises ValueNeededError: if the bias is not known before execution.
    """
    bias = operation.value(2)
    if operation.input(0).type in QUANT8_TYPES:
        return _lower_quantized(
            operation, weights, bias, activation, rounding, centered
        )
    (packed,) = operation.pack("lowered", lambda: (_contiguous(weights, np.float32),))
    epilogue = FloatEpilogue(
        bias.astype(np.float32, copy=False),
        activation_bounds(activation),
        operation.outputs[0].dtype,
    )
    return Lowered(packed, 0, epilogue)


def _lower_quantized(
    operation: BoundOperation,
    weights: Array,
    bias: Array,
    activation: FusedActivationFunc,
    rounding: Rounding,
    centered: bool,
) -> Lowered:
    data, output = operation.input(0), operation.outputs[0]
    bounds = quantized_activation_range(
        activation, output.scale, output.zero_point, output.dtype
    )

    def make_rule() -> RoundingRule:
        return rounding(_real_multipliers(operation))

    def make() -> tuple[Array, ...]:
        packed, fold, reach = _packed_integers(operation, weights, bias, centered)
        line = fitted_line(make_rule(), fold, reach, output.zero_point, bounds)
        return packed, fold, *line

    packed, fold, *line = operation.pack("lowered", make)
    epilogue = QuantizedEpilogue(make_rule, fold, output.zero_point, bounds, line)
    return Lowered(packed, data.zero_point, epilogue)


def _packed_integers(
    operation: BoundOperation, weights: Array, bias: Array, centered: bool
) -> tuple[Array, Array, Array]:
    """Return the real weights as floats, and fold and reach for the epilogue."""
    data, filter_ = operation.input(0), operation.input(1)
    real_weights = weights.astype(np.int64) - filter_.zero_point
    taps = tuple(range(weights.ndim - 1))
    reach = np.abs(real_weights).sum(axis=taps)
    reach *= largest_magnitude(data, data.zero_point if centered else 0)
    moved = 0 if centered else data.zero_point * real_weights.sum(axis=taps)
    packed = _contiguous(real_weights, exact_dtype(int(reach.max(initial=0))))
    return packed, bias.astype(np.int64) - moved, reach


def _contiguous(weights: Array, dtype: DTypeLike) -> Array:
    return weights.astype(dtype, order="C")


def largest_magnitude(operand: BoundOperand, zero: int) -> int:
    """Return how far a code of ``operand`` can be from ``zero``."""
    return max(abs(code - zero) for code in code_limits(operand.dtype))


def exact_dtype(reach: int) -> type[np.float32 | np.float64]:
    """Return the floats in which integers up to ``reach`` and their sums are exact."""
    return np.float32 if reach < _EXACT_IN_FLOAT32 else np.float64


def _real_multipliers(operation: BoundOperation) -> Reals:
    """Return the scale of the sums in output steps, one or one for each channel."""
    data, filter_, output = operation.input(0), operation.input(1), operation.outputs[0]
    quant = filter_.channel_quant
    scales = (filter_.scale,) if quant is None else quant.scales
    operation.require(
        output.scale > 0 and bool(np.isfinite((data.scale, *scales)).all()),
        f"scales {data.scale}, {scales} and {output.scale} "
        "are not those of quantised values",
    )
    return float(data.scale) * np.array(scales, np.float64) / float(output.scale)
