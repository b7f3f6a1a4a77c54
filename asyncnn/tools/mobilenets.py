"""MobileNets v1 and v2 with random weights, written as LiteRT's converter does."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from asyncnn.hal.types import Dimensions
from asyncnn.tools.tflite_writer import Quantization, TfliteWriter

CLASSES = 1001

_FIRST_FILTERS = 32
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), *[(512, 1)] * 5),
    *((1024, 2), (1024, 1)),
)
"""Output channels at full width, and stride, of each depthwise-separable block."""

_INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels at full width, how many, and the stride of the first one,
of the inverted residual blocks.
"""

_LAST_FILTERS = 1280

_IMAGE = (1 / 255, -128)
_RELU6 = (6 / 255, -128)
_BOTTLENECK = (1 / 16, 0)
_LOGITS = (1 / 8, 0)
_PROBABILITIES = (1 / 256, -128)
"""Scale and zero point of the quantised tensors."""

_LOGITS_GAIN = 6.0
"""Spreads the logits as training does.

LiteRT's reference softmax ends the process on int8 logits that make over 512 classes
nearly equally likely.
"""

_BRANCH_GAIN = 0.5
"""Keeps what a residual block adds small beside what it is added to."""


def mobilenet_v1(
    *,
    quantized: bool,
    size: int = 224,
    width: float = 1.0,
    seed: int = 0,
    unsigned: bool = False,
) -> bytes:
    """Return the file of a MobileNet v1 for one image of ``size`` times ``size``.

    A real network in every respect but its answers: the operators, shapes, fused ReLU6
    and, quantised, per-channel scales. Its random weights keep the variance of the
    activations from layer to layer, so that quantised ones neither vanish nor saturate.
    The input is float32 in [0, 1), or int8 with scale 1/255; both variants have the
    same weights, but for rounding. ``width`` multiplies the numbers of channels. If it
    is ``unsigned`` as well, it has uint8 codes, and the weights of a layer one scale.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Network(quantized, size, width, seed, unsigned)
    return network.file(network.add_separable_blocks)


def mobilenet_v2(
    *, quantized: bool, size: int = 224, width: float = 1.0, unsigned: bool = False
) -> bytes:
    """Return the file of a MobileNet v2, otherwise like `mobilenet_v1` of seed 0.

    Its blocks expand to six times the channels, end without an activation, and have
    what goes in added to what comes out where the shapes are the same.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Network(quantized, size, width, 0, unsigned)
    return network.file(network.add_inverted_blocks)


MOBILENETS = {
    f"mobilenet_{version}_224_{kind}": partial(make, quantized=kind == "int8")
    for version, make in (("v1", mobilenet_v1), ("v2", mobilenet_v2))
    for kind in ("float", "int8")
}
"""What makes the files of those that are measured, by name."""


MORE_MOBILENETS = {
    f"mobilenet_{version}_{width}_{size}_{kind}": partial(
        make, quantized=kind != "float", unsigned=kind == "u8", size=size, width=width
    )
    for version, make in (("v1", mobilenet_v1), ("v2", mobilenet_v2))
    for width in (0.25, 0.5, 0.75, 1.0)
    for size in (128, 160, 192, 224)
    for kind in ("float", "int8", "u8")
}
"""Networks of other sizes, widths and codes, made where they are asked for."""


class _Network:
    """The network so far: ``_tensor`` is its last activation."""

    def __init__(
        self, quantized: bool, size: int, width: float, seed: int, unsigned: bool
    ) -> None:
        self._writer = TfliteWriter(quantized=quantized, seed=seed, unsigned=unsigned)
        self._schema = self._writer.schema
        self._has_versions = quantized and not unsigned
        self._width = width
        self._layers = 0
        self._advance("input", (1, size, size, 3), _IMAGE)

    def file(self, add_blocks: Callable[[], None]) -> bytes:
        schema, image = self._schema, self._tensor
        self._convolve(self._channels(_FIRST_FILTERS), kernel=3, stride=2)
        add_blocks()
        _, rows, columns, channels = self._shape
        options = schema.Pool2DOptionsT(
            padding=schema.Padding.VALID,
            strideW=1,
            strideH=1,
            filterWidth=columns,
            filterHeight=rows,
        )
        result: tuple[str, Dimensions] = ("average", (1, 1, 1, channels))
        self._layer("AVERAGE_POOL_2D", options, result, _RELU6, version=2)
        self._convolve(CLASSES, quantization=_LOGITS, gain=_LOGITS_GAIN)
        flat = (1, CLASSES)
        shape = self._writer.constant("shape", np.array(flat, np.int32))
        options = schema.ReshapeOptionsT(newShape=[*flat])
        self._layer("RESHAPE", options, ("logits", flat), _LOGITS, shape)
        options = schema.SoftmaxOptionsT(beta=1.0)
        result = ("probabilities", flat)
        self._layer("SOFTMAX", options, result, _PROBABILITIES, version=2)
        return self._writer.finish([image], [self._tensor])

    def add_separable_blocks(self) -> None:
        for filters, stride in _BLOCKS:
            self._convolve_depthwise(stride)
            self._convolve(self._channels(filters))

    def add_inverted_blocks(self) -> None:
        for expansion, filters, count, first_stride in _INVERTED:
            for stride in (first_stride, *[1] * (count - 1)):
                self._add_inverted_block(expansion, self._channels(filters), stride)
        self._convolve(self._channels(_LAST_FILTERS))

    def _add_inverted_block(self, expansion: int, filters: int, stride: int) -> None:
        entered, shape = self._tensor, self._shape
        if expansion > 1:
            self._convolve(expansion * shape[3])
        self._convolve_depthwise(stride)
        self._convolve(filters, quantization=_BOTTLENECK, gain=_BRANCH_GAIN)
        if self._shape == shape:
            result = (f"add_{self._layers}", shape)
            options = self._schema.AddOptionsT()
            self._layer("ADD", options, result, _BOTTLENECK, entered, version=2)

    def _channels(self, full: int) -> int:
        return max(8, int(full * self._width))

    def _convolve(
        self,
        filters: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        quantization: Quantization = _RELU6,
        gain: float = 1.0,
    ) -> None:
        options = self._schema.Conv2DOptionsT()
        shape = (filters, kernel, kernel, self._shape[3])
        self._weighted("CONV_2D", options, shape, 0, stride, quantization, gain)

    def _convolve_depthwise(self, stride: int) -> None:
        options = self._schema.DepthwiseConv2DOptionsT(depthMultiplier=1)
        shape = (1, 3, 3, self._shape[3])
        self._weighted("DEPTHWISE_CONV_2D", options, shape, 3, stride, _RELU6, 1.0)

    def _weighted(
        self,
        operator: str,
        options: Any,
        shape: Dimensions,
        axis: int,
        stride: int,
        quantization: Quantization,
        gain: float,
    ) -> None:
        options.strideW = options.strideH = stride
        if quantization is _RELU6:
            relu6 = self._schema.ActivationFunctionType.RELU6
            options.fusedActivationFunction = relu6
        self._layers += 1
        number, channels = self._layers, shape[axis]
        deviation = gain * math.sqrt(2 * channels / math.prod(shape))
        weights = self._writer.weights(f"weights_{number}", shape, axis, deviation)
        bias = self._writer.bias(f"bias_{number}", channels, self._scale)
        rows, columns = (-(-n // stride) for n in self._shape[1:3])
        result = (f"{operator.lower()}_{number}", (1, rows, columns, channels))
        self._layer(operator, options, result, quantization, weights, bias, version=3)

    def _layer(
        self,
        operator: str,
        options: Any,
        result: tuple[str, Dimensions],
        quantization: Quantization,
        *constants: int,
        version: int = 1,
    ) -> None:
        """Apply an operator to the last activation; its result is the next one.

        ``version`` is the operator's for int8 tensors.
        """
        inputs = (self._tensor, *constants)
        self._advance(*result, quantization)
        version = version if self._has_versions else 1
        self._writer.operator(operator, inputs, self._tensor, options, version=version)

    def _advance(
        self, name: str, shape: Dimensions, quantization: Quantization
    ) -> None:
        """Make a new tensor the last activation."""
        self._shape = shape
        self._scale, _ = quantization
        self._tensor = self._writer.tensor(name, shape, quantization)
