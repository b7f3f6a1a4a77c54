"""What a result should be, and how far arithmetic may be off."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperandType

EPSILON = float(np.finfo(np.float32).eps)

ONCE = 0.501
"""Units in the last place that a single rounding to the nearest may take."""

TWICE = 1.001
"""The same for fixed-point results, rounded at twice the precision, then again."""

QUANTIZED = QUANT8_TYPES | {
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
}


class Expected(NamedTuple):
    """The real values of an output; integers and booleans as they are.

    The actual value may be off by ``slack``, and beyond that by ``places`` units in
    the last place: steps of the scale, or a float's epsilon times its value.
    """

    value: Array
    slack: ArrayLike = 0.0
    places: float = 0.0


def exact(value: ArrayLike) -> Expected:
    """Expect just this value."""
    return Expected(np.asarray(value))


def rounded(
    value: ArrayLike,
    roundings: float = 0,
    magnitude: ArrayLike | None = None,
    places: float = ONCE,
) -> Expected:
    """Expect ``value`` after float32 roundings of numbers as large as ``magnitude``."""
    value = np.asarray(value, np.float64)
    largest = np.abs(value if magnitude is None else magnitude)
    return Expected(value, roundings * EPSILON * largest, places)


def real(operand: BoundOperand) -> Array:
    """Return the real values of an operand, integers and booleans as they are."""
    stored: Array = operand.require_value().astype(np.float64)
    if operand.channel_quant is not None:
        along = [1] * stored.ndim
        along[operand.channel_quant.channel_dim] = -1
        scales = np.reshape(operand.channel_quant.scales, along)
        per_channel: Array = stored * scales
        return per_channel
    if operand.type in QUANTIZED:
        return (stored - operand.zero_point) * operand.scale
    return stored


def real_bias(operation: BoundOperation) -> Array:
    """Return input 2 for each unit; an int32 has the scales of data times weights."""
    data, weights, bias = (operation.input(index) for index in range(3))
    if bias.type != OperandType.TENSOR_INT32:
        return real(bias)
    quant = weights.channel_quant
    scales = weights.scale if quant is None else np.array(quant.scales)
    return np.multiply(real(bias), data.scale * np.asarray(scales))


def stored(expected: Expected, operand: BoundOperand) -> Array:
    """Return the expected value as ``operand`` stores it."""
    if operand.type not in QUANTIZED:
        return expected.value.astype(operand.dtype)
    limits = np.iinfo(operand.dtype)
    steps = np.nan_to_num(expected.value / operand.scale, nan=0.0)
    codes = np.clip(np.rint(steps) + operand.zero_point, limits.min, limits.max)
    whole: Array = codes.astype(operand.dtype)
    return whole


def nhwc(image: Array, nchw: bool) -> Array:
    """Return an image of either layout as [N, H, W, C]."""
    return np.moveaxis(image, 1, 3) if nchw else image


def in_layout(expected: Expected, nchw: bool) -> Expected:
    """Return what is expected of [N, H, W, C] in the layout of an operation."""
    if not nchw:
        return expected
    slack = np.broadcast_to(expected.slack, expected.value.shape)
    return expected._replace(
        value=np.moveaxis(expected.value, 3, 1), slack=np.moveaxis(slack, 3, 1)
    )
