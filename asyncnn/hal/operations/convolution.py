"""Convolutions over images, and the scale that a quantised bias has to have.

Filters are [out, height, width, in], except that of DEPTHWISE_CONV_2D, which is
[1, height, width, out]; they do not follow the layout flag. The scale of a bias is the
product of those of input and filter.

Source: 1.3/types.hal (CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D).
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    image_shape,
    in_layout,
    require,
    require_shape,
    whole_quotient,
)
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8PC,
    Q8S,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    TypedCheck,
    TypeRow,
    Usage,
    arguments,
    row,
)
from asyncnn.hal.operations.windows import (
    Window2D,
    convolution_window,
    depthwise_window,
    grouped_window,
    transpose_window,
)
from asyncnn.hal.types import HalVersion, OperationType, SymmPerChannelQuantParams

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
    """Check the scale of a bias, input 2, against that of input 0 times input 1.

    :raises OperationFailedError: if the difference would show in the output.
    """
    image, weights, bias = (operation.input(i) for i in range(3))
    if weights.type not in QUANT8_TYPES:
        return
    product = image.scale * weights.scale
    require(
        operation,
        abs(product - bias.scale) <= _TOLERATED_STEPS * operation.outputs[0].scale,
        f"the bias has scale {bias.scale}, expected {product}",
    )
    require(
        operation,
        bias.zero_point == 0,
        f"the bias has zero point {bias.zero_point}, expected 0",
    )


def _rows_since(first: HalVersion) -> tuple[TypeRow, ...]:
    """``T`` is the type of the image, ``F`` of the filter, ``B`` of the bias."""
    return (
        row(first, T=F32, F=F32, B=F32),
        row(V1_2, T=F16, F=F16, B=F16),
        row(first, T=Q8, F=Q8, B=I32),
        row(V1_2, T=Q8, F=Q8PC, B=I32),
        row(V1_3, T=Q8S, F=Q8S, B=I32),
        row(V1_3, T=Q8S, F=Q8PC, B=I32),
    )


def _channel_axis_is(axis: int) -> TypedCheck:
    """Return the check of which filter axis has a scale for each index."""

    def check(usage: Usage) -> Requirement | None:
        params = usage.input("filter").extra_params
        if isinstance(params, SymmPerChannelQuantParams) and params.channel_dim != axis:
            raise usage.error(
                "filter",
                f"has its scales along axis {params.channel_dim}, expected {axis}",
            )
        return None

    return TypedCheck("filter", frozenset({Q8PC}), check)


_PADDING = arguments(
    INT32, "padding_left", "padding_right", "padding_top", "padding_bottom"
)
_SCHEME = arguments(INT32, "padding_scheme")
_STRIDES = arguments(INT32, "stride_width", "stride_height")
_ACTIVATION = arguments(INT32, "activation")
_OPTIONAL_TAIL = (
    Argument("nchw", BOOL, since=V1_2),
    *arguments(INT32, "dilation_width", "dilation_height", since=V1_2),
)
_NCHW = (Argument("nchw", BOOL),)
_TENSORS = (Argument("input"), Argument("filter", "F"), Argument("bias", "B"))
_RANKED_TENSORS = (
    Argument("input", ranks=(4,)),
    Argument("filter", "F", ranks=(4,)),
    Argument("bias", "B"),
)
_OUTPUT_SHAPE = (Argument("output_shape", I32),)


def _output_shape(
    operation: BoundOperation, window: Window2D, channels: int
) -> tuple[Shape]:
    require(operation, channels > 0, "the filter has no output channels")
    check_bias_scale(operation)
    batches = operation.shape(0)[0]
    shape = batches, window.height.output, window.width.output, channels
    return (in_layout(shape, window.nchw),)


def _require_channels(operation: BoundOperation, expected: int, actual: int) -> None:
    require(
        operation,
        0 < expected == actual,
        f"the input has {actual} channels, the filter takes {expected}",
    )


def _convolution_shape(operation: BoundOperation) -> tuple[Shape]:
    window = convolution_window(operation)
    channels_out, _, _, channels_in = operation.shape(1)
    _require_channels(operation, channels_in, image_shape(operation, window.nchw)[3])
    require_shape(operation, 2, (channels_out,), "bias")
    return _output_shape(operation, window, channels_out)


def _depthwise_shape(operation: BoundOperation) -> tuple[Shape]:
    window = depthwise_window(operation)
    filters, _, _, channels_out = operation.shape(1)
    channels_in = image_shape(operation, window.nchw)[3]
    multiplier = window.depth_multiplier
    require(operation, filters == 1, f"axis 0 of the filter is {filters}, expected 1")
    require(
        operation,
        multiplier > 0 and channels_in * multiplier == channels_out,
        f"{channels_in} channels times multiplier {multiplier} is not {channels_out}",
    )
    require_shape(operation, 2, (channels_out,), "bias")
    return _output_shape(operation, window, channels_out)


def _grouped_shape(operation: BoundOperation) -> tuple[Shape]:
    window = grouped_window(operation)
    channels_out, _, _, channels_of_group = operation.shape(1)
    whole_quotient(operation, channels_out, window.groups, "output channels")
    _require_channels(
        operation,
        channels_of_group * window.groups,
        image_shape(operation, window.nchw)[3],
    )
    require_shape(operation, 2, (channels_out,), "bias")
    return _output_shape(operation, window, channels_out)


def _transpose_shape(operation: BoundOperation) -> tuple[Shape]:
    window = transpose_window(operation)
    channels_out, _, _, channels_in = operation.shape(1)
    _require_channels(operation, channels_in, image_shape(operation, window.nchw)[3])
    require_shape(operation, 2, (channels_out,), "bias")
    return _output_shape(operation, window, channels_out)


SIGNATURES = (
    OperationSignature(
        OperationType.CONV_2D,
        rows=_rows_since(V1_0),
        layouts=(
            Layout(
                _RANKED_TENSORS + _SCHEME + _STRIDES + _ACTIVATION + _OPTIONAL_TAIL,
                counts=(7, 8, 10),
            ),
            Layout(
                _RANKED_TENSORS + _PADDING + _STRIDES + _ACTIVATION + _OPTIONAL_TAIL,
                counts=(10, 11, 13),
            ),
        ),
        shape=_convolution_shape,
        checks=(_channel_axis_is(0), output_scale_rule_is_old("filter")),
    ),
    OperationSignature(
        OperationType.DEPTHWISE_CONV_2D,
        rows=_rows_since(V1_0),
        layouts=(
            Layout(
                _TENSORS
                + _SCHEME
                + _STRIDES
                + arguments(INT32, "depth_multiplier", "activation")
                + _OPTIONAL_TAIL,
                counts=(8, 9, 11),
            ),
            Layout(
                _TENSORS
                + _PADDING
                + _STRIDES
                + arguments(INT32, "depth_multiplier", "activation")
                + _OPTIONAL_TAIL,
                counts=(11, 12, 14),
            ),
        ),
        shape=_depthwise_shape,
        checks=(_channel_axis_is(3), output_scale_rule_is_old("filter")),
    ),
    OperationSignature(
        OperationType.GROUPED_CONV_2D,
        rows=_rows_since(V1_2),
        layouts=tuple(
            Layout(
                _TENSORS
                + padding
                + _STRIDES
                + arguments(INT32, "groups", "activation")
                + _NCHW
            )
            for padding in (_SCHEME, _PADDING)
        ),
        shape=_grouped_shape,
        checks=(_channel_axis_is(0),),
    ),
    OperationSignature(
        OperationType.TRANSPOSE_CONV_2D,
        rows=_rows_since(V1_2),
        layouts=tuple(
            Layout(_TENSORS + padding + _STRIDES + _ACTIVATION + _NCHW)
            for padding in (_OUTPUT_SHAPE + _SCHEME, _PADDING)
        ),
        shape=_transpose_shape,
        checks=(_channel_axis_is(0),),
    ),
)
