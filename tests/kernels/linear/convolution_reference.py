"""Convolutions spelled out: loops over pixels and taps, Python integers, no tricks."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType, SymmPerChannelQuantParams
from tests.kernels.operations import (
    I32,
    Q8,
    Q8PC,
    Q8S,
    TOLERANCE,
    Argument,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

SAME, VALID = 1, 2
BOUNDS = {0: (-math.inf, math.inf), 1: (0, math.inf), 2: (-1, 1), 3: (0, 6)}
QUANTISED = [(Q8, Q8), (Q8, Q8PC), (Q8S, Q8S), (Q8S, Q8PC)]
"""Types of the image and of the filter."""

Sums = Callable[["Layer", Array, Array], Array]
"""Convolves an NHWC image with a filter in the HAL's layout."""


class Layer(NamedTuple):
    """A convolution; pairs are (height, width), the image is NHWC."""

    operation: OperationType
    image: Shape
    filter: Shape
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] | int = VALID  # left, right, top, bottom
    dilation: tuple[int, int] = (1, 1)
    factor: int | None = None  # depth multiplier or groups
    activation: int = 0
    nchw: bool = False

    @property
    def channel_axis(self) -> int:
        depthwise = self.operation is OperationType.DEPTHWISE_CONV_2D
        return 3 if depthwise else 0

    @property
    def channels(self) -> int:
        return self.filter[self.channel_axis]

    def scalars(self) -> list[object]:
        padding = [self.padding] if isinstance(self.padding, int) else self.padding
        factor = [] if self.factor is None else [self.factor]
        dilation = [] if self.dilation == (1, 1) else self.dilation[::-1]
        strides = self.stride[::-1]
        return [*padding, *strides, *factor, int(self.activation), self.nchw, *dilation]


def window_starts(layer: Layer, axis: int) -> list[int]:
    """Return where along an axis of the image each window begins."""
    size, stride = layer.image[axis + 1], layer.stride[axis]
    extent = (layer.filter[axis + 1] - 1) * layer.dilation[axis] + 1
    if layer.padding == SAME:
        count = math.ceil(size / stride)
        before = max((count - 1) * stride + extent - size, 0) // 2
    else:
        explicit = (0,) * 4 if layer.padding == VALID else layer.padding
        before, after = (explicit[2:], explicit[:2])[axis]
        count = (size + before + after - extent) // stride + 1
    return [i * stride - before for i in range(count)]


def window_sums(layer: Layer, image: Array, filter_: Array) -> Array:
    """Convolve: output channel ``o`` of group ``g`` sees the inputs of that group."""
    if layer.operation is OperationType.DEPTHWISE_CONV_2D:
        filter_ = filter_.transpose(3, 1, 2, 0)
    outs, filter_height, filter_width, ins = filter_.shape
    outs_of_group = outs * ins // layer.image[3]
    starts = window_starts(layer, 0), window_starts(layer, 1)
    sums = np.zeros((layer.image[0], *map(len, starts), outs), image.dtype)
    windows = itertools.product(*map(enumerate, starts))
    for ((i, top), (j, left)), out in itertools.product(windows, range(outs)):
        first = out // outs_of_group * ins
        for a, b in itertools.product(range(filter_height), range(filter_width)):
            y, x = top + a * layer.dilation[0], left + b * layer.dilation[1]
            if 0 <= y < layer.image[1] and 0 <= x < layer.image[2]:
                seen = image[:, y, x, first : first + ins]
                sums[:, i, j, out] += seen @ filter_[out, a, b]
    return sums


def double_rounding(total: int, real: float) -> int:
    """Round ``total * real`` with a 31-bit multiplier and two roundings."""
    fraction, exponent = math.frexp(real)
    multiplier = math.floor(fraction * 2**31 + 0.5)
    product = total * 2 ** max(exponent, 0) * multiplier
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    high = abs(nudged) // 2**31 * (1 if nudged >= 0 else -1)
    shift = max(-exponent, 0)
    mask = 2**shift - 1
    return (high >> shift) + ((high & mask) > (mask >> 1) + (high < 0))


def single_rounding(total: int, real: float) -> int:
    """Round ``total * real`` once, half away from zero."""
    return int(half_away(total * real))


def quantised_bounds(activation: int, output: BoundOperand) -> tuple[int, int]:
    """Return the codes between which an activation clamps."""
    limits = np.iinfo(output.dtype)
    steps = half_away(np.float32(BOUNDS[activation]) / np.float32(output.scale))
    low, high = np.clip(steps + output.zero_point, limits.min, limits.max)
    return int(low), int(high)


def quantise(
    sums: Array,
    multipliers: list[float],
    activation: int,
    output: BoundOperand,
    rounding: Callable[[int, float], int] = double_rounding,
) -> Array:
    """Return the codes for integers [..., channels]."""
    low, high = quantised_bounds(activation, output)
    codes = np.empty(sums.shape, output.dtype)
    for place in np.ndindex(sums.shape):
        multiplier = multipliers[place[-1] % len(multipliers)]
        code = rounding(int(sums[place]), multiplier) + output.zero_point
        codes[place] = min(max(code, low), high)
    return codes


def known(argument: Argument) -> Argument:
    """Return the same operand, its value known at preparation."""
    operand, array = argument
    quant = operand.scale, operand.zero_point, operand.channel_quant
    return Argument(BoundOperand(operand.type, array.shape, *quant, array), array)


def run(
    layer: Layer,
    image: Argument,
    filter_: Argument,
    bias: Argument,
    output: BoundOperand,
) -> Array:
    """Compute in the layer's layout; images go in and come out as NHWC."""
    order, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if layer.nchw else ((0, 1, 2, 3),) * 2
    data, shape = image.operand, tuple(output.shape[axis] for axis in order)
    given = tensor(data.type, image.array.transpose(order), data.scale, data.zero_point)
    inputs = [given, known(filter_), known(bias), *layer.scalars()]
    described = result(output.type, shape, output.scale, output.zero_point)
    return compute(layer.operation, inputs, described).transpose(back)


def check_float(layer: Layer, type_: OperandType, sums: Sums = window_sums) -> None:
    """Assert that the kernel follows the formula in float64."""
    image = random_values(type_, layer.image, 1)
    filter_ = random_values(type_, layer.filter, 2, -1, 1)
    bias = random_values(type_, (layer.channels,), 3)
    exact = sums(layer, image.astype(np.float64), filter_.astype(np.float64)) + bias
    given = (tensor(type_, array) for array in (image, filter_, bias))
    np.testing.assert_allclose(
        run(layer, *given, result(type_, exact.shape)),
        np.clip(exact, *BOUNDS[layer.activation]),
        **TOLERANCE[type_],
    )


def check_quantised(
    layer: Layer,
    types: tuple[OperandType, OperandType],
    sums: Sums = window_sums,
    seed: int = 0,
) -> None:
    """Assert that the kernel gives the very codes; they spread over the whole type.

    An odd ``seed`` puts the zero point of the output at its least code.
    """
    type_, filter_type = types
    generator = np.random.default_rng(seed)
    least = int(np.iinfo(DTYPES[type_]).min)
    zero, filter_zero, output_zero = map(int, least + generator.integers(0, 256, 3))
    output_zero = least if seed % 2 else output_zero
    scales = generator.uniform(0.01, 0.1, layer.channels).astype(np.float32).tolist()
    image = tensor(type_, random_values(type_, layer.image, seed), 0.05, zero)
    weights = random_values(filter_type, layer.filter, seed + 1)
    if filter_type is Q8PC:
        axis = SymmPerChannelQuantParams(tuple(scales), layer.channel_axis)
        filter_ = tensor(Q8PC, weights, channel_quant=axis)
    else:
        scales = scales[:1]
        filter_ = tensor(type_, weights, scales[0], filter_zero)
    bias = random_values(I32, (layer.channels,), seed + 2)
    centred = [
        given.array.astype(np.int64) - given.operand.zero_point
        for given in (image, filter_)
    ]
    totals = sums(layer, *centred) + bias
    out_scale = float(np.float32(0.05 * scales[0] * (np.abs(totals).max() + 1) / 200))
    output = result(type_, totals.shape, out_scale, output_zero)
    multipliers = [0.05 * scale / out_scale for scale in scales]
    np.testing.assert_array_equal(
        run(layer, image, filter_, tensor(I32, bias), output),
        quantise(totals, multipliers, layer.activation, output),
    )
