"""Reference workloads, and a small convolutional network in any arithmetic as one.

Image [1, 32, 32, 8] -> CONV_2D 3x3 -> DEPTHWISE_CONV_2D 3x3 -> AVERAGE_POOL_2D 2x2 ->
CONV_2D 1x1 -> FULLY_CONNECTED -> SOFTMAX [1, 10]; 3 million multiplications.

The plain program computes in float32, which it has its weights in from the start, and
brings its numbers into the model's type after each layer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeAlias

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from asyncnn import hal
from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    Dimensions,
    FusedActivationFunc,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel


class Coding(msgspec.Struct, frozen=True):
    """A tensor's type; ``scale`` is 0 unless it is quantised."""

    type: hal.OperandType
    scale: float = 0.0
    zero_point: int = 0

    def operand(self, dimensions: hal.Dimensions) -> hal.Operand:
        """Describe a tensor of such numbers."""
        return hal.Operand(
            self.type, dimensions, scale=self.scale, zero_point=self.zero_point
        )

    def read(self, codes: Array) -> Array:
        """Return the numbers as float32."""
        numbers = codes.astype(np.float32, copy=False)
        if not self.scale:
            return numbers
        return (numbers - self.zero_point) * np.float32(self.scale)

    def write(self, numbers: Array) -> Array:
        """Return float32 numbers in the tensor's own type."""
        dtype = DTYPES[self.type]
        if not self.scale:
            return numbers.astype(dtype, copy=False)
        bounds = np.iinfo(dtype)
        codes = np.rint(numbers / np.float32(self.scale)) + self.zero_point
        return codes.clip(bounds.min, bounds.max).astype(dtype)


class Codings(msgspec.Struct, frozen=True):
    """Values of a network: features lie in [0, 6], shares in [0, 1]."""

    features: Coding
    weights: Coding
    bias: Coding
    logits: Coding
    shares: Coding

    @classmethod
    def of(cls, type_: hal.OperandType) -> Self:
        """Return the codings of a network on ``type_``."""
        if type_ not in QUANT8_TYPES:
            return cls(*[Coding(type_)] * 5)
        lowest = int(np.iinfo(DTYPES[type_]).min)
        features = Coding(type_, 6 / 255, lowest)
        weights = Coding(type_, 2.0**-7, lowest + 128)
        return cls(
            features,
            weights,
            Coding(hal.OperandType.TENSOR_INT32, features.scale * weights.scale),
            logits=Coding(type_, 2.0**-4, lowest + 128),
            shares=Coding(type_, 2.0**-8, lowest),
        )


class Workload(msgspec.Struct, frozen=True, eq=False):
    """``plain`` takes the ``inputs`` of the model and returns its outputs."""

    name: ReferenceWorkload
    model: NamedModel
    inputs: tuple[Array, ...]
    plain: Callable[..., Sequence[Array]]


def add_inputs(builder: GraphBuilder, *operands: hal.Operand) -> list[int]:
    """Make the tensors that ``operands`` describe the inputs of a model."""
    return [
        builder.input(
            f"input_{number}",
            operand.type,
            operand.dimensions,
            scale=operand.scale,
            zero_point=operand.zero_point,
            channel_quant=_channel_quant(operand),
        )
        for number, operand in enumerate(operands)
    ]


def _channel_quant(operand: hal.Operand) -> hal.SymmPerChannelQuantParams | None:
    params = operand.extra_params
    return params if isinstance(params, hal.SymmPerChannelQuantParams) else None


_SAME = 1
_MOST = 6.0

_IMAGE = (1, 32, 32, 8)
_FEATURES = (1, 32, 32, 32)
_POOLED = (1, 16, 16, 32)
_CLASSES = (1, 10)

_WEIGHTS = (
    ((32, 3, 3, 8), 32),
    ((1, 3, 3, 32), 32),
    ((32, 1, 1, 32), 32),
    ((10, 16 * 16 * 32), 10),
)
"""Shapes layer by layer, and how many outputs each has."""

Layer: TypeAlias = Callable[[Array], Array]


class LayerWeights(msgspec.Struct, frozen=True, eq=False):
    """Weights and bias of a layer, as the model holds them or as float32."""

    matrix: Array
    bias: Array


def network(
    name: ReferenceWorkload, type_: OperandType, *, relaxed: bool = False
) -> Workload:
    """Return the network on ``type_``; its weights are the same for all types."""
    rng = np.random.default_rng(1)
    codings = Codings.of(type_)
    weights = [
        LayerWeights(
            codings.weights.write(
                rng.normal(0, np.sqrt(2 * outputs / np.prod(shape)), shape)
            ),
            codings.bias.write(rng.uniform(-0.1, 0.1, outputs)),
        )
        for shape, outputs in _WEIGHTS
    ]
    image = rng.uniform(0, 1, _IMAGE)
    return Workload(
        name,
        _model(codings, weights, relaxed=relaxed),
        (codings.features.write(image),),
        _plain(codings, weights),
    )


def _model(
    codings: Codings, weights: Sequence[LayerWeights], *, relaxed: bool
) -> NamedModel:
    builder = ModelBuilder(relaxed=relaxed)
    features = codings.features.operand
    same, one, two = (builder.scalar(number) for number in (_SAME, 1, 2))
    capped = builder.scalar(FusedActivationFunc.RELU6)
    linear = builder.scalar(FusedActivationFunc.NONE)
    first, each, point, last = (_constants(builder, codings, w) for w in weights)
    (x,) = add_inputs(builder, features(_IMAGE))
    for type_, arguments, shape in (
        (OperationType.CONV_2D, (*first, same, one, one, capped), _FEATURES),
        (OperationType.DEPTHWISE_CONV_2D, (*each, same, *[one] * 3, capped), _FEATURES),
        (OperationType.AVERAGE_POOL_2D, (same, *[two] * 4, capped), _POOLED),
        (OperationType.CONV_2D, (*point, same, one, one, capped), _POOLED),
    ):
        x = builder.operation(type_, (x, *arguments), features(shape))
    x = builder.operation(
        OperationType.FULLY_CONNECTED,
        (x, *last, linear),
        codings.logits.operand(_CLASSES),
    )
    x = builder.operation(
        OperationType.SOFTMAX,
        (x, builder.scalar(1.0, _beta_type(codings))),
        codings.shares.operand(_CLASSES),
    )
    builder.output(x, "shares")
    return builder.build()


def _constants(
    builder: ModelBuilder, codings: Codings, weights: LayerWeights
) -> tuple[int, int]:
    kept = ((codings.weights, weights.matrix), (codings.bias, weights.bias))
    matrix, bias = (
        builder.constant(
            array, coding.type, scale=coding.scale, zero_point=coding.zero_point
        )
        for coding, array in kept
    )
    return matrix, bias


def _beta_type(codings: Codings) -> OperandType:
    is_half = codings.logits.type is OperandType.TENSOR_FLOAT16
    return OperandType.FLOAT16 if is_half else OperandType.FLOAT32


def _plain(
    codings: Codings, weights: Sequence[LayerWeights]
) -> Callable[[Array], tuple[Array]]:
    first, each, point, last = (
        LayerWeights(codings.weights.read(w.matrix), codings.bias.read(w.bias))
        for w in weights
    )
    features, logits = codings.features, codings.logits
    layers: tuple[Layer, ...] = (
        partial(convolve, first),
        partial(convolve_each, each),
        halve,
        partial(convolve, point),
    )

    def plain(codes: Array) -> tuple[Array]:
        for layer in layers:
            codes = features.write(np.clip(layer(features.read(codes)), 0, _MOST))
        flat = features.read(codes).reshape(1, -1)
        codes = logits.write(flat @ last.matrix.T + last.bias)
        return (codings.shares.write(softmax(logits.read(codes))),)

    return plain


def convolve(weights: LayerWeights, image: Array) -> Array:
    """Return the 2-D convolution of [1, H, W, C] with [N, rows, columns, C]."""
    windows = _windows(image, weights.matrix.shape[1:3])
    sums: Array = np.tensordot(windows, weights.matrix, axes=((4, 5, 3), (1, 2, 3)))
    return sums + weights.bias


def convolve_each(weights: LayerWeights, image: Array) -> Array:
    """Return the convolution of each channel with its own, [1, rows, columns, C]."""
    windows = _windows(image, weights.matrix.shape[1:3])
    sums: Array = np.einsum("nhwcij,ijc->nhwc", windows, weights.matrix[0])
    return sums + weights.bias


def _windows(image: Array, size: Dimensions) -> Array:
    rows, columns = size
    borders = ((0, 0), (rows // 2,) * 2, (columns // 2,) * 2, (0, 0))
    return sliding_window_view(np.pad(image, borders), (rows, columns), axis=(1, 2))


def halve(image: Array) -> Array:
    """Return the means of squares of 2x2 pixels."""
    _, height, width, channels = image.shape
    squares = image.reshape(1, height // 2, 2, width // 2, 2, channels)
    means: Array = squares.mean(axis=(2, 4))
    return means


def softmax(logits: Array) -> Array:
    """Return shares that are proportional to the exponentials."""
    powers: Array = np.exp(logits - logits.max())
    shares: Array = powers / powers.sum()
    return shares
