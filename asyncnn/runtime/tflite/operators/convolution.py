"""Convolutions and pooling. Layouts of TFLite and the HAL are the same (NHWC)."""

from typing import Any

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.operators.weights import read_bias, read_weights

_SCHEMES = {0: 1, 1: 2}
"""Implicit padding of the HAL by the number in TFLite: SAME, VALID."""


def _conv_2d(node: Node) -> None:
    options = node.options("Conv2DOptions")
    _, _, _, channels = _shape4(node, 0)
    units, _, _, depth = _shape4(node, 1)
    if depth and channels != depth:
        _grouped_conv_2d(node, groups=channels // depth)
        return
    filter_ = read_weights(node, 1, channel_dim=0)
    inputs = [node.read(0), filter_, read_bias(node, 2, filter_, units)]
    inputs += _window(node, options)
    inputs.append(node.fused(options.FusedActivationFunction()))
    node.emit(OperationType.CONV_2D, inputs + _dilation(node, options))


def _grouped_conv_2d(node: Node, *, groups: int) -> None:
    options = node.options("Conv2DOptions")
    if (options.DilationWFactor(), options.DilationHFactor()) != (1, 1):
        raise UnsupportedOperatorError("a grouped convolution with dilation")
    filter_ = read_weights(node, 1, channel_dim=0)
    bias = read_bias(node, 2, filter_, _shape4(node, 1)[0])
    node.emit(
        OperationType.GROUPED_CONV_2D,
        [
            node.read(0),
            filter_,
            bias,
            *_window(node, options),
            node.scalar(groups),
            node.fused(options.FusedActivationFunction()),
            node.scalar(False),
        ],
    )


def _depthwise_conv_2d(node: Node) -> None:
    options = node.options("DepthwiseConv2DOptions")
    _, _, _, channels = _shape4(node, 0)
    _, _, _, outputs = _shape4(node, 1)
    if not channels or outputs % channels:
        raise InvalidArgumentError(f"{channels} channels cannot become {outputs}")
    filter_ = read_weights(node, 1, channel_dim=3)
    inputs = [node.read(0), filter_, read_bias(node, 2, filter_, outputs)]
    inputs += _window(node, options)
    inputs.append(node.scalar(outputs // channels))
    inputs.append(node.fused(options.FusedActivationFunction()))
    node.emit(OperationType.DEPTHWISE_CONV_2D, inputs + _dilation(node, options))


def _transpose_conv(node: Node) -> None:
    options = node.options("TransposeConvOptions")
    filter_ = read_weights(node, 1, channel_dim=0, data=2)
    bias = read_bias(node, 3, filter_, _shape4(node, 1)[0], data=2)
    node.emit(
        OperationType.TRANSPOSE_CONV_2D,
        [
            node.read(2),
            filter_,
            bias,
            node.integers(node.target().dimensions),
            *_window(node, options),
            node.fused(options.FusedActivationFunction()),
            node.scalar(False),
        ],
    )


def _pool(type_: OperationType) -> Converter:
    def convert(node: Node) -> None:
        options = node.options("Pool2DOptions")
        inputs = [
            node.read(0),
            *_window(node, options),
            node.scalar(options.FilterWidth()),
            node.scalar(options.FilterHeight()),
            node.fused(options.FusedActivationFunction()),
        ]
        node.emit_like(type_, inputs, inputs[0])

    return convert


def _window(node: Node, options: Any) -> list[int]:
    padding = options.Padding()
    if padding not in _SCHEMES:
        raise InvalidArgumentError(f"padding {padding} is neither SAME nor VALID")
    return [
        node.scalar(_SCHEMES[padding]),
        node.scalar(options.StrideW()),
        node.scalar(options.StrideH()),
    ]


def _dilation(node: Node, options: Any) -> list[int]:
    factors = options.DilationWFactor(), options.DilationHFactor()
    if factors == (1, 1):
        return []
    return [node.scalar(False), *map(node.scalar, factors)]


def _shape4(node: Node, index: int) -> Shape:
    shape = node.tensor(index).shape
    if len(shape) != 4:
        raise InvalidArgumentError(f"input {index} has rank {len(shape)}, not 4")
    return shape


SHAPE_INPUTS = {"TRANSPOSE_CONV": frozenset({0})}

CONVERTERS: dict[str, Converter] = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "TRANSPOSE_CONV": _transpose_conv,
    "AVERAGE_POOL_2D": _pool(OperationType.AVERAGE_POOL_2D),
    "MAX_POOL_2D": _pool(OperationType.MAX_POOL_2D),
    "L2_POOL_2D": _pool(OperationType.L2_POOL_2D),
}
