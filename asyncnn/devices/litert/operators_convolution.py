"""Convolutions and FULLY_CONNECTED in TFLite.

Weights have to be constants. Their codes are signed and centred, which XNNPACK demands,
where their range allows; otherwise the operation is computed on unsigned codes.
"""

import math
import struct
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.devices.litert.operand_tensors import flip_sign
from asyncnn.devices.litert.operation_writer import (
    CODES,
    FLOATS,
    OperationWriter,
    Reordered,
    Rule,
)
from asyncnn.devices.litert.operators_windows import (
    SAME,
    VALID,
    check_steps,
    padded_image,
)
from asyncnn.devices.litert.tflite_graph import (
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    Convert,
    WrittenTensor,
    options,
)
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand
from asyncnn.hal.operations.sliding_windows import SAME as HAL_SAME
from asyncnn.hal.operations.sliding_windows import (
    Window,
    Window2D,
    convolution_window,
    transpose_padding_for_scheme,
    transpose_window,
)
from asyncnn.hal.types import OperationType

_MAX_PRODUCTS = 2**15
"""Most products of codes in one sum: with the bias it stays within int32."""

_MULTIPLIERS = (2.0**-100, 2.0**7)
"""Real multipliers of sums that both XNNPACK and LiteRT's kernels take."""


class _Weights:
    """Filter and bias of a linear operation as constants, and the type they ask for."""

    def __init__(self, writer: OperationWriter, products: int) -> None:
        self._writer = writer
        self._filter, self._bias = writer.operand(1), writer.operand(2)
        writer.require(
            self._filter.value is not None and self._bias.value is not None,
            "weights that come with the request",
        )
        self.is_quantized = self._filter.dtype.kind in "iu"
        self._convert: Convert | None = None
        self._zero_point = 0
        self.type = FLOAT32
        if self.is_quantized:
            self.type = INT8
            self._choose_codes(self._filter)
            self._check_multipliers()
            reason = "sums of more than {} products of codes"
            writer.require(products <= _MAX_PRODUCTS, reason, _MAX_PRODUCTS)

    def _choose_codes(self, filter_: BoundOperand) -> None:
        if filter_.type not in QUANT8_TYPES:
            return
        unsigned = filter_.dtype == np.uint8
        if filter_.zero_point == (128 if unsigned else 0):
            self._convert = flip_sign if unsigned else None
        elif _fits_centred(filter_):
            self._convert = _Centred(filter_.zero_point)
        else:
            self.type = UINT8
            self._convert = None if unsigned else flip_sign
            self._zero_point = filter_.zero_point + (0 if unsigned else 128)

    def _check_multipliers(self) -> None:
        channel_quant = self._filter.channel_quant
        scales = channel_quant.scales if channel_quant else (self._filter.scale,)
        # As an array of Python's numbers, but in half the time.
        self._scales = np.frombuffer(struct.pack(f"{len(scales)}f", *scales), "f")
        with np.errstate(all="ignore"):
            products = self._scales * np.float32(self._writer.operand(0).scale)
        self._bias_scales: Array = products
        least = float(np.minimum.reduce(products))  # NaN, if one is
        most, (low, high) = float(np.maximum.reduce(products)), _MULTIPLIERS
        output_scale = self._writer.operation.outputs[0].scale
        self._writer.require(
            least > 0
            and output_scale > 0
            and low < least / output_scale
            and most / output_scale < high,
            "scales of input, filter and output that are too far apart",
        )

    def tensors(self, axis: int = 0) -> list[WrittenTensor]:
        """Return filter and bias; ``axis`` of the filter may have a scale each."""
        graph = self._writer.graph
        kernel, bias = self._filter.value, self._bias.value
        assert kernel is not None
        assert bias is not None
        if not self.is_quantized:
            return [graph.constant(FLOAT32, kernel), graph.constant(FLOAT32, bias)]
        per_channel = self._filter.channel_quant is not None
        one = 0.0 if per_channel else float(self._scales[0])
        bias_scale = 0.0 if per_channel else float(self._bias_scales[0])
        return [
            graph.constant(
                self.type,
                kernel,
                (one, self._zero_point),
                self._convert,
                self._scales.tobytes() if per_channel else b"",
                axis,
            ),
            graph.constant(
                INT32,
                bias,
                (bias_scale, 0),
                scales=self._bias_scales.tobytes() if per_channel else b"",
            ),
        ]


class _Centred(msgspec.Struct, frozen=True):
    """Moves codes so that their zero point is 0; equal ones convert alike."""

    zero_point: int

    def __call__(self, codes: Array) -> Array:
        """Return the codes less the zero point, as int8."""
        return (codes.astype(np.int16) - self.zero_point).astype(np.int8)


def _fits_centred(filter_: BoundOperand) -> bool:
    assert filter_.value is not None
    low, high = int(filter_.value.min()), int(filter_.value.max())
    zero_point = filter_.zero_point
    return low - zero_point >= -127 and high - zero_point <= 127


def _convolution(writer: OperationWriter) -> None:
    grouped = writer.operation.type == OperationType.GROUPED_CONV_2D
    window = convolution_window(writer.operation, "groups" if grouped else "")
    _write_convolution(
        writer,
        window,
        "CONV_2D",
        "Conv2DOptions",
        products=math.prod(writer.operation.shape(1)[1:]),
        version=6 if grouped else None,
    )


def _depthwise(writer: OperationWriter) -> None:
    window = convolution_window(writer.operation, "depth_multiplier")
    _write_convolution(
        writer,
        window,
        "DEPTHWISE_CONV_2D",
        "DepthwiseConv2DOptions",
        products=math.prod(writer.operation.shape(1)[1:3]),
        axis=3,
        DepthMultiplier=window.depth_multiplier,
    )


def _write_convolution(
    writer: OperationWriter,
    window: Window2D,
    name: str,
    kind: str,
    *,
    products: int,
    axis: int = 0,
    version: int | None = None,
    **fields: int,
) -> None:
    axes = window.height, window.width
    check_steps(writer, axes)
    weights = _Weights(writer, products)
    source = writer.input(0, weights.type)
    images = Reordered.nhwc(writer, source, nchw=window.nchw)
    image, scheme = padded_image(writer, images.source, axes)
    result = images.target()
    table = options(
        kind,
        Padding=scheme,
        StrideW=window.width.stride,
        StrideH=window.height.stride,
        DilationWFactor=window.width.dilation,
        DilationHFactor=window.height.dilation,
        FusedActivationFunction=writer.activation_code(window.activation),
        **fields,
    )
    writer.emit(name, [image, *weights.tensors(axis)], result, table, version)
    images.finish(result)


def _transpose_convolution(writer: OperationWriter) -> None:
    """Where no scheme of TFLite cuts the output like this, SLICE cuts all of it."""
    window = transpose_window(writer.operation)
    axes = window.height, window.width
    check_steps(writer, axes, spreads=True)
    weights = _Weights(writer, math.prod(writer.operation.shape(1)[1:]))
    writer.require(
        all(axis.after >= 0 for axis in axes),
        "an output that reaches beyond the last filter",
    )
    source = writer.input(0, weights.type)
    images = Reordered.nhwc(writer, source, nchw=window.nchw)
    result = images.target()
    scheme = _transpose_scheme(axes)
    whole = result
    if scheme is None:
        batches, _, _, channels = result.shape
        lengths = [(axis.input - 1) * axis.stride + axis.filter for axis in axes]
        whole = writer.graph.like(result, (batches, *lengths, channels))
        writer.require_moderate(whole.shape)
    kernel, bias = weights.tensors()
    table = options(
        "TransposeConvOptions",
        Padding=VALID if scheme is None else scheme,
        StrideW=window.width.stride,
        StrideH=window.height.stride,
        FusedActivationFunction=writer.activation_code(window.activation),
    )
    shape = writer.graph.integers(whole.shape)
    inputs = [shape, kernel, images.source, bias]
    writer.emit("TRANSPOSE_CONV", inputs, whole, table, 4)
    if scheme is None:
        begin = writer.graph.integers([0, *(axis.before for axis in axes), 0])
        size = writer.graph.integers(result.shape)
        writer.emit("SLICE", [whole, begin, size], result, options("SliceOptions"))
    images.finish(result)


def _transpose_scheme(axes: Sequence[Window]) -> int | None:
    if all(axis.before == axis.after == 0 for axis in axes):
        return VALID
    for axis in axes:
        padding = transpose_padding_for_scheme(
            HAL_SAME, axis.output, axis.filter, axis.stride
        )
        fits = -(-axis.output // axis.stride) == axis.input
        if (axis.before, axis.after) != padding or not fits:
            return None
    return SAME


def _fully_connected(writer: OperationWriter) -> None:
    _, size = writer.operation.shape(1)
    weights = _Weights(writer, size)
    batches, _ = writer.output_shape()
    source = writer.reshaped(writer.input(0, weights.type), (batches, size))
    table = options(
        "FullyConnectedOptions", FusedActivationFunction=writer.activation(3)
    )
    output = writer.output(type_=weights.type)
    writer.emit("FULLY_CONNECTED", [source, *weights.tensors()], output, table)


_LINEAR = "weights that come with the request; sums of over 32768 products of codes"

RULES: dict[OperationType, Rule] = {
    OperationType.CONV_2D: Rule(
        _convolution,
        (*FLOATS, *CODES),
        "CONV_2D, after PAD if no scheme fits; TRANSPOSE around it for NCHW",
        _LINEAR,
    ),
    OperationType.GROUPED_CONV_2D: Rule(
        _convolution, (*FLOATS, *CODES), "CONV_2D with a narrower filter", _LINEAR
    ),
    OperationType.DEPTHWISE_CONV_2D: Rule(
        _depthwise, (*FLOATS, *CODES), "DEPTHWISE_CONV_2D, as CONV_2D", _LINEAR
    ),
    OperationType.TRANSPOSE_CONV_2D: Rule(
        _transpose_convolution,
        (*FLOATS, *CODES),
        "TRANSPOSE_CONV, SLICE if no scheme fits",
        _LINEAR + "; an output that reaches beyond the last filter",
    ),
    OperationType.FULLY_CONNECTED: Rule(
        _fully_connected, (*FLOATS, *CODES), "FULLY_CONNECTED, after RESHAPE", _LINEAR
    ),
}
