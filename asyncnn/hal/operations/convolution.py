"""Convolutions over images, and the scale that a quantised bias has to have.

Filters are [out, height, width, in], except in DEPTHWISE_CONV_2D, which is
[1, height, width, out]; they do not follow the layout flag. The scale of a bias is the
product of the input's and the filter's.

Source: 1.3/types.hal (CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D).
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import in_layout
from asyncnn.hal.operations.signature import (
    Q8,
    Q8PC,
    V1_2,
    Requirement,
    TypedCheck,
    Usage,
)
from asyncnn.hal.operations.sliding_windows import (
    Window2D,
    convolution_window,
    transpose_window,
)
from asyncnn.hal.types import SymmPerChannelQuantParams

_TOLERATED_STEPS = 0.02
"""Error of one bias unit, in output steps, that does not show in the result."""


def output_scale_rule_is_old(weights: str) -> TypedCheck:
    """Return the check that before 1.2 limits the product of the input scales.

    ``weights`` names the second factor. The product has to be below the output scale.
    """

    def check(usage: Usage) -> Requirement | None:
        image, filter_ = usage.input("input"), usage.input(weights)
        product = np.float32(image.scale) * np.float32(filter_.scale)
        if np.float32(usage.output.scale) > product:
            return None
        return Requirement(V1_2, f"the output scale is not above {product} of inputs")

    return TypedCheck("input", frozenset({Q8}), check, until=V1_2)


def check_bias_scale(operation: BoundOperation) -> None:
    """Check the scale of a bias, input 2, against input 0's times input 1's.

    :raises OperationFailedError: if the difference would show in the output.
    """
    image, weights, bias = (operation.input(i) for i in range(3))
    if weights.type not in QUANT8_TYPES:
        return
    product = image.scale * weights.scale
    off = abs(product - bias.scale)
    if not off <= _TOLERATED_STEPS * operation.outputs[0].scale:
        reason = f"the bias has scale {bias.scale}, expected {product}"
        operation.require(condition=False, message=reason)
    if bias.zero_point:
        reason = f"the bias has zero point {bias.zero_point}, expected 0"
        operation.require(condition=False, message=reason)


_TYPES = (
    "T/F/B {0}: F32/F32/F32; 1.2: F16/F16/F16; {0}: Q8/Q8/I32; 1.2: Q8/Q8PC/I32; "
    "1.3: Q8S/Q8S/I32 Q8S/Q8PC/I32"
)
"""``T`` is the type of the image, ``F`` of the filter, ``B`` of the bias."""


def _channel_axis_is(axis: int) -> TypedCheck:

    def check(usage: Usage) -> Requirement | None:
        params = usage.input("filter").extra_params
        if isinstance(params, SymmPerChannelQuantParams) and params.channel_dim != axis:
            raise usage.error(
                "filter",
                f"has its scales along axis {params.channel_dim}, expected {axis}",
            )
        return None

    return TypedCheck("filter", frozenset({Q8PC}), check)


_PADDING = "padding_left padding_right padding_top padding_bottom"
_TENSORS = "input, filter: F, bias: B"
_OPTIONAL = "nchw: BOOL @1.2 | dilation_width dilation_height: INT32 @1.2"
_STRIDES = "stride_width stride_height"


def _output_shape(
    operation: BoundOperation, window: Window2D, channels: int
) -> tuple[Shape]:
    operation.check_shape(2, (channels,), "bias")
    operation.require(channels > 0, "the filter has no output channels")
    check_bias_scale(operation)
    batches = operation.shape(0)[0]
    shape = batches, window.height.output, window.width.output, channels
    return (in_layout(shape, window.nchw),)


def _full_shape(
    read_window: Callable[[BoundOperation], Window2D], operation: BoundOperation
) -> tuple[Shape]:
    window = read_window(operation)
    channels_out, _, _, channels_of_group = operation.shape(1)
    operation.whole_quotient(channels_out, window.groups, "output channels")
    actual = operation.image_shape(window.nchw)[3]
    expected = channels_of_group * window.groups
    operation.require(
        0 < expected == actual,
        f"the input has {actual} channels, the filter takes {expected}",
    )
    return _output_shape(operation, window, channels_out)


def _depthwise_shape(operation: BoundOperation) -> tuple[Shape]:
    window = convolution_window(operation, "depth_multiplier")
    filters, _, _, channels_out = operation.shape(1)
    channels_in = operation.image_shape(window.nchw)[3]
    multiplier = window.depth_multiplier
    operation.require(filters == 1, f"axis 0 of the filter is {filters}, expected 1")
    operation.require(
        multiplier > 0 and channels_in * multiplier == channels_out,
        f"{channels_in} channels times multiplier {multiplier} is not {channels_out}",
    )
    return _output_shape(operation, window, channels_out)


SIGNATURES = (
    declare(
        f"CONV_2D {_TYPES.format('1.0')}",
        tuple(
            "input [4], filter: F [4], bias: B, "
            f"{padding} {_STRIDES} activation: INT32 | {_OPTIONAL}"
            for padding in ("padding_scheme", _PADDING)
        ),
        partial(_full_shape, convolution_window),
        _channel_axis_is(0),
        output_scale_rule_is_old("filter"),
    ),
    declare(
        f"DEPTHWISE_CONV_2D {_TYPES.format('1.0')}",
        tuple(
            f"{_TENSORS}, {padding} {_STRIDES} depth_multiplier activation: INT32 "
            f"| {_OPTIONAL}"
            for padding in ("padding_scheme", _PADDING)
        ),
        _depthwise_shape,
        _channel_axis_is(3),
        output_scale_rule_is_old("filter"),
    ),
    declare(
        f"GROUPED_CONV_2D {_TYPES.format('1.2')}",
        tuple(
            f"{_TENSORS}, {padding} {_STRIDES} groups activation: INT32, nchw: BOOL"
            for padding in ("padding_scheme", _PADDING)
        ),
        partial(_full_shape, partial(convolution_window, extra="groups")),
        _channel_axis_is(0),
    ),
    declare(
        f"TRANSPOSE_CONV_2D {_TYPES.format('1.2')}",
        tuple(
            f"{_TENSORS}, {padding} {_STRIDES} activation: INT32, nchw: BOOL"
            for padding in ("output_shape: I32, padding_scheme", _PADDING)
        ),
        partial(_full_shape, transpose_window),
        _channel_axis_is(0),
    ),
)
