"""Convolution-like operations as products of float matrices and an epilogue.

Quantised operands are multiplied as raw integers in floating point: the sums are exact
because for every output channel ``sum(|weight - zero point|) * max |input|`` stays
below the integers that the chosen float holds. The zero point of the input moves into
the epilogue; padding is filled with it.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.affine import FixedPointRounding, Integers, Reals, RoundingRule
from asyncnn.kernels.epilogue import Epilogue, FloatEpilogue, QuantizedEpilogue
from asyncnn.kernels.requantize import activation_bounds, quantized_activation_range

Rounding: TypeAlias = Callable[[Reals], RoundingRule]
"""Makes the rule from the real multipliers, one for all channels or one for each."""

_EXACT_FLOAT32 = 2**24


class Lowered(msgspec.Struct, frozen=True, eq=False):
    """Weights [..., channels] to multiply with, and what becomes of the sums.

    Inputs are cast to the dtype of the weights; ``padding`` stands for a real zero.
    """

    weights: Array
    padding: int
    epilogue: Epilogue


def lower(
    operation: BoundOperation,
    weights: Array,
    activation: FusedActivationFunc,
    rounding: Rounding = FixedPointRounding,
) -> Lowered:
    """Lower an operation whose inputs are data, filter and bias.

    ``weights`` holds the filter's stored values with the output channels last.
    """
    bias = operation.value(2)
    if operation.input(0).type in QUANT8_TYPES:
        return _lower_quantized(operation, weights, bias, activation, rounding)
    epilogue = FloatEpilogue(
        bias.astype(np.float32),
        activation_bounds(activation),
        operation.outputs[0].dtype,
    )
    return Lowered(weights.astype(np.float32), 0, epilogue)


def _lower_quantized(
    operation: BoundOperation,
    weights: Array,
    bias: Array,
    activation: FusedActivationFunc,
    rounding: Rounding,
) -> Lowered:
    data, filter_, output = operation.input(0), operation.input(1), operation.outputs[0]
    per_channel = filter_.channel_quant is not None
    centered = weights.astype(np.int64) - (0 if per_channel else filter_.zero_point)
    taps = tuple(range(centered.ndim - 1))
    reach = np.abs(centered).sum(axis=taps) * _largest_magnitude(data)
    fold: Integers = bias - data.zero_point * centered.sum(axis=taps)
    exact_in_float32 = int(reach.max(initial=0)) < _EXACT_FLOAT32
    epilogue = QuantizedEpilogue(
        rounding(_real_multipliers(data, filter_, output)),
        fold,
        reach,
        output.zero_point,
        quantized_activation_range(
            activation, output.scale, output.zero_point, output.dtype
        ),
    )
    dtype = np.float32 if exact_in_float32 else np.float64
    return Lowered(centered.astype(dtype), data.zero_point, epilogue)


def _largest_magnitude(data: BoundOperand) -> int:
    limits = np.iinfo(data.dtype)
    return max(-int(limits.min), int(limits.max))


def _real_multipliers(
    data: BoundOperand, filter_: BoundOperand, output: BoundOperand
) -> Reals:
    """Return products of the scales in float64, one or one for each channel.

    A bias has the product of the scales of data and filter, whatever it declares.
    """
    quant = filter_.channel_quant
    scales = (filter_.scale,) if quant is None else quant.scales
    return float(data.scale) * np.array(scales, np.float64) / float(output.scale)
