"""Makes MobileNet v1 as a TFLite file, with seeded random weights.

A real network in every respect but its answers: the operators, shapes, fused ReLU6 and,
quantised, per-channel scales. Weights keep the variance of the activations from layer
to layer, so that quantised activations neither vanish nor saturate.
"""

import math
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.tools.bench.tflite.writer import TfliteWriter

CLASSES = 1001

_FIRST_FILTERS = 32
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
)
"""Output channels at full width, and stride, of each depthwise-separable block."""

_IMAGE = (1 / 255, -128)
_RELU6 = (6 / 255, -128)
_LOGITS = (1 / 8, 0)
_PROBABILITIES = (1 / 256, -128)
"""Scale and zero point of the quantised tensors."""

_LOGITS_GAIN = 6.0
"""Spreads the logits as training does.

LiteRT's reference softmax ends the process on int8 logits that make over 512 classes
nearly equally likely.
"""


def mobilenet_v1(
    *, quantized: bool, size: int = 224, width: float = 1.0, seed: int = 0
) -> bytes:
    """Return the file of a MobileNet v1 for one image of ``size`` times ``size``.

    The input is float32 in [0, 1), or int8 with scale 1/255; both variants have the
    same weights, but for rounding. ``width`` multiplies the numbers of channels.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    return _Network(quantized, size, width, seed).file()


class _Network:
    """The network so far: ``_tensor`` is its last activation."""

    def __init__(self, quantized: bool, size: int, width: float, seed: int) -> None:
        self._writer = TfliteWriter()
        self._schema = self._writer.schema
        self._rng = np.random.default_rng(seed)
        self._quantized = quantized
        self._version = 3 if quantized else 1
        self._width = width
        self._layers = 0
        self._advance("input", (1, size, size, 3), _IMAGE)

    def file(self) -> bytes:
        image = self._tensor
        self._convolve(self._channels(_FIRST_FILTERS), kernel=3, stride=2)
        for filters, stride in _BLOCKS:
            self._convolve_depthwise(stride)
            self._convolve(self._channels(filters))
        self._average()
        self._classify()
        self._reshape()
        self._softmax()
        return self._writer.finish([image], [self._tensor])

    def _channels(self, full: int) -> int:
        return max(8, int(full * self._width))

    def _convolve(self, filters: int, *, kernel: int = 1, stride: int = 1) -> None:
        options = self._schema.Conv2DOptionsT(strideW=stride, strideH=stride)
        options.fusedActivationFunction = self._schema.ActivationFunctionType.RELU6
        shape = (filters, kernel, kernel, self._shape[3])
        self._weighted("CONV_2D", options, shape, 0)

    def _convolve_depthwise(self, stride: int) -> None:
        options = self._schema.DepthwiseConv2DOptionsT(
            strideW=stride,
            strideH=stride,
            depthMultiplier=1,
            fusedActivationFunction=self._schema.ActivationFunctionType.RELU6,
        )
        shape = (1, 3, 3, self._shape[3])
        self._weighted("DEPTHWISE_CONV_2D", options, shape, 3)

    def _classify(self) -> None:
        options = self._schema.Conv2DOptionsT(strideW=1, strideH=1)
        shape = (CLASSES, 1, 1, self._shape[3])
        self._weighted("CONV_2D", options, shape, 0, _LOGITS, gain=_LOGITS_GAIN)

    def _weighted(
        self,
        operator: str,
        options: Any,
        shape: Dimensions,
        channel_axis: int,
        quantization: tuple[float, int] = _RELU6,
        gain: float = 1.0,
    ) -> None:
        channels = shape[channel_axis]
        deviation = gain * math.sqrt(2 * channels / math.prod(shape))
        weights = self._rng.normal(0, deviation, shape).astype(np.float32)
        bias = self._rng.normal(0, 0.1, channels).astype(np.float32)
        inputs = (self._tensor, *self._constants(weights, bias, channel_axis))
        rows, columns = (-(-n // options.strideH) for n in self._shape[1:3])
        self._layers += 1
        name = f"{operator.lower()}_{self._layers}"
        self._advance(name, (1, rows, columns, channels), quantization)
        self._writer.operator(
            operator, inputs, self._tensor, options, version=self._version
        )

    def _constants(self, weights: Array, bias: Array, axis: int) -> tuple[int, int]:
        names = f"weights_{self._layers + 1}", f"bias_{self._layers + 1}"
        constant = self._writer.constant
        if not self._quantized:
            return constant(names[0], weights), constant(names[1], bias)
        others = tuple(i for i in range(weights.ndim) if i != axis)
        scales = np.abs(weights).max(others, keepdims=True) / np.float32(127)
        integers = np.rint(weights / scales).astype(np.int8)
        scales = scales.reshape(-1)
        bias_scales = np.float32(self._scale) * scales
        return (
            constant(names[0], integers, scales=scales, axis=axis),
            constant(
                names[1],
                np.rint(bias / bias_scales).astype(np.int32),
                scales=bias_scales,
            ),
        )

    def _average(self) -> None:
        source, (_, rows, columns, channels) = self._tensor, self._shape
        options = self._schema.Pool2DOptionsT(
            padding=self._schema.Padding.VALID,
            strideW=1,
            strideH=1,
            filterWidth=columns,
            filterHeight=rows,
        )
        self._advance("average", (1, 1, 1, channels), _RELU6)
        self._writer.operator(
            "AVERAGE_POOL_2D",
            [source],
            self._tensor,
            options,
            version=2 if self._quantized else 1,
        )

    def _reshape(self) -> None:
        shape = np.array([1, CLASSES], np.int32)
        source = self._tensor
        target = self._writer.constant("shape", shape)
        self._advance("logits", (1, CLASSES), _LOGITS)
        options = self._schema.ReshapeOptionsT(newShape=[1, CLASSES])
        self._writer.operator("RESHAPE", [source, target], self._tensor, options)

    def _softmax(self) -> None:
        source = self._tensor
        self._advance("probabilities", (1, CLASSES), _PROBABILITIES)
        self._writer.operator(
            "SOFTMAX",
            [source],
            self._tensor,
            self._schema.SoftmaxOptionsT(beta=1.0),
            version=2 if self._quantized else 1,
        )

    def _advance(
        self, name: str, shape: Dimensions, quantization: tuple[float, int]
    ) -> None:
        """Make a new tensor the last activation."""
        self._shape = shape
        self._scale, zero_point = quantization if self._quantized else (0.0, 0)
        self._tensor = self._writer.tensor(
            name,
            shape,
            np.dtype(np.int8 if self._quantized else np.float32),
            scale=self._scale,
            zero_point=zero_point,
        )
