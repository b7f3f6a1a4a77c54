"""Layers with weights, and pooling: convolutions, fully connected, matrix products.

Layouts of TFLite and the HAL are the same (NHWC). `read_weights` and `read_bias` give
both as the HAL wants them, for recurrent layers, too.
"""

import math
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operations.bound import Shape
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.tensors import add_constant, bias_scale, describe
from asyncnn.runtime.unsupported import UnsupportedOperatorError


def read_real(node: Node, index: int) -> int:
    """Return input ``index`` as float32, dequantised if need be, or left out."""
    if not node.has(index):
        return node.builder.omitted(hal.OperandType.TENSOR_FLOAT32)
    tensor = node.tensor(index)
    if tensor.type != "UINT8" or tensor.data is None:
        return node.dequantize(node.read(index))
    # In layers on floats, TFLite takes the bytes of such weights for signed ones.
    signed = node.builder.constant(
        tensor.data.view(np.int8),
        hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        scale=describe(tensor).scale,
    )
    return node.dequantize(signed)


def read_weights(node: Node, index: int, *, channel_dim: int, data: int = 0) -> int:
    """Return the operand of the weights in input ``index``.

    Where input ``data`` is float, quantised weights are dequantised: the HAL has no
    arithmetic on mixed types.

    :raises UnsupportedOperatorError: if they are quantised along another axis.
    """
    if node.builder.operand(node.read(data)).type == hal.OperandType.TENSOR_FLOAT32:
        return read_real(node, index)
    weights = node.read(index)
    quant = node.builder.operand(weights).extra_params
    if (
        isinstance(quant, hal.SymmPerChannelQuantParams)
        and quant.channel_dim != channel_dim
    ):
        raise UnsupportedOperatorError(
            f"weights are quantised along axis {quant.channel_dim}, not {channel_dim}"
        )
    return weights


def read_bias(
    node: Node, index: int, weights: int, units: int, *, data: int = 0
) -> int:
    """Return the operand of the bias in input ``index``, zeros if it is left out.

    A quantised bias gets the scale that the HAL derives from input ``data`` and the
    weights; what the file says of it is ignored.

    :raises InvalidArgumentError: if it does not have ``units`` elements.
    :raises UnsupportedOperatorError: if it is quantised but not a constant.
    """
    source = node.builder.operand(node.read(data))
    if source.type == hal.OperandType.TENSOR_FLOAT32:
        operand = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (units,))
    else:
        scale = bias_scale(source, node.builder.operand(weights))
        operand = hal.Operand(hal.OperandType.TENSOR_INT32, (units,), scale=scale)
    if not node.has(index):
        return node.zeros(operand)
    tensor = node.tensor(index)
    if tensor.data is None or tensor.type == "FLOAT16":
        return _computed(node, index, operand)
    if tensor.data.size != units:
        raise hal.InvalidArgumentError(
            f"{tensor.label} has {tensor.data.size} elements for {units} channels"
        )
    return add_constant(node.builder, tensor, operand)


def _computed(node: Node, index: int, operand: hal.Operand) -> int:
    if operand.type != hal.OperandType.TENSOR_FLOAT32:
        raise UnsupportedOperatorError(
            f"{node.tensor(index).label} is a quantised bias but not a constant"
        )
    return node.reshape(node.dequantize(node.read(index)), operand.dimensions)


_SCHEMES = {0: 1, 1: 2}
"""Implicit padding of the HAL by the number in TFLite: SAME, VALID."""


def _conv_2d(node: Node) -> None:
    options = node.options("Conv2DOptions")
    _, _, _, channels = _shape4(node, 0)
    units, _, _, depth = _shape4(node, 1)
    window, dilation = _window(node, options), _dilation(node, options)
    if not depth or channels == depth:
        _convolve(node, hal.OperationType.CONV_2D, options, units, window, dilation)
        return
    if dilation:
        raise UnsupportedOperatorError("a grouped convolution with dilation")
    window.append(node.scalar(channels // depth))
    nhwc = [node.scalar(False)]
    _convolve(node, hal.OperationType.GROUPED_CONV_2D, options, units, window, nhwc)


def _depthwise_conv_2d(node: Node) -> None:
    options = node.options("DepthwiseConv2DOptions")
    _, _, _, channels = _shape4(node, 0)
    _, _, _, outputs = _shape4(node, 1)
    if not channels or outputs % channels:
        raise hal.InvalidArgumentError(f"{channels} channels cannot become {outputs}")
    window = [*_window(node, options), node.scalar(outputs // channels)]
    dilation, type_ = _dilation(node, options), hal.OperationType.DEPTHWISE_CONV_2D
    _convolve(node, type_, options, outputs, window, dilation)


def _transpose_conv(node: Node) -> None:
    options = node.options("TransposeConvOptions")
    units, type_ = _shape4(node, 1)[0], hal.OperationType.TRANSPOSE_CONV_2D
    window = [node.integers(node.target().dimensions), *_window(node, options)]
    nhwc = [node.scalar(False)]
    _convolve(node, type_, options, units, window, nhwc)


def _convolve(
    node: Node,
    type_: hal.OperationType,
    options: Any,
    units: int,
    window: list[int],
    last: list[int],
) -> None:
    """Add a convolution; its activation stands between ``window`` and ``last``."""
    is_transposed = type_ == hal.OperationType.TRANSPOSE_CONV_2D
    data, bias = (2, 3) if is_transposed else (0, 2)
    channel_dim = 3 if type_ == hal.OperationType.DEPTHWISE_CONV_2D else 0
    filter_ = read_weights(node, 1, channel_dim=channel_dim, data=data)
    tensors = [node.read(data), filter_]
    tensors.append(read_bias(node, bias, filter_, units, data=data))
    activation = node.fused(options.FusedActivationFunction())
    node.emit(type_, [*tensors, *window, activation, *last])


def _pool(type_: hal.OperationType) -> Converter:
    def convert(node: Node) -> None:
        options = node.options("Pool2DOptions")
        inputs = [
            node.read(0),
            *_window(node, options),
            node.scalar(options.FilterWidth()),
            node.scalar(options.FilterHeight()),
            node.fused(options.FusedActivationFunction()),
        ]
        node.emit_like(type_, inputs)

    return convert


def _window(node: Node, options: Any) -> list[int]:
    padding = options.Padding()
    if padding not in _SCHEMES:
        raise hal.InvalidArgumentError(f"padding {padding} is neither SAME nor VALID")
    scalars = _SCHEMES[padding], options.StrideW(), options.StrideH()
    return [*map(node.scalar, scalars)]


def _dilation(node: Node, options: Any) -> list[int]:
    factors = options.DilationWFactor(), options.DilationHFactor()
    if factors == (1, 1):
        return []
    return [node.scalar(False), *map(node.scalar, factors)]


def _shape4(node: Node, index: int) -> Shape:
    shape = node.tensor(index).shape
    if len(shape) != 4:
        raise hal.InvalidArgumentError(f"input {index} has rank {len(shape)}, not 4")
    return shape


SHAPE_INPUTS = {"TRANSPOSE_CONV": frozenset({0})}


_VALID = 2


def _fully_connected(node: Node) -> None:
    options = node.options("FullyConnectedOptions")
    if options.WeightsFormat():
        raise UnsupportedOperatorError("its weights are shuffled for one kernel")
    shape = node.tensor(1).shape
    if len(shape) != 2 or not all(shape):
        raise hal.InvalidArgumentError(f"weights of shape {list(shape)}")
    units, depth = shape
    batch, rest = divmod(math.prod(node.tensor(0).shape), depth)
    if rest:
        raise hal.InvalidArgumentError(
            f"input of shape {list(node.tensor(0).shape)} for rows of {depth} weights"
        )
    if len(node.tensor(1).scales) > 1 and node.type != hal.OperandType.TENSOR_FLOAT32:
        _as_convolution(node, options, batch, units, depth)
        return
    data = node.read(0)
    if not 2 <= node.rank() <= 4:
        data = node.reshape(data, (batch, depth))
    weights = read_weights(node, 1, channel_dim=0)
    bias = read_bias(node, 2, weights, units)
    node.store(
        node.compute(
            hal.OperationType.FULLY_CONNECTED,
            [data, weights, bias, node.fused(options.FusedActivationFunction())],
            replace(node.target(), dimensions=(batch, units)),
        )
    )


def _as_convolution(
    node: Node, options: Any, batch: int, units: int, depth: int
) -> None:
    # The HAL has weights quantised per channel in convolutions only.
    tensor = node.tensor(1)
    if tensor.quantized_dimension:
        raise UnsupportedOperatorError("its weights are not quantised per output")
    filter_ = add_constant(
        node.builder, tensor, replace(describe(tensor), dimensions=(units, 1, 1, depth))
    )
    window = map(node.scalar, (_VALID, 1, 1))
    node.store(
        node.compute(
            hal.OperationType.CONV_2D,
            [
                node.reshape(node.read(0), (batch, 1, 1, depth)),
                filter_,
                read_bias(node, 2, filter_, units),
                *window,
                node.fused(options.FusedActivationFunction()),
            ],
            replace(node.target(), dimensions=(batch, 1, 1, units)),
        )
    )


def _batch_matmul(node: Node) -> None:
    options = node.options("BatchMatMulOptions")
    adjoints = bool(options.AdjX()), bool(options.AdjY())
    factors = _of_equal_batches(node, *node.read_all(), adjoint=adjoints[0])
    one, other = (node.builder.operand(factor).dimensions for factor in factors)
    rows = one[-1] if adjoints[0] else one[-2]
    columns = other[-2] if adjoints[1] else other[-1]
    output = replace(node.target(), dimensions=(*one[:-2], rows, columns))
    types = {node.builder.operand(factor).type for factor in factors}
    if types & {hal.OperandType.TENSOR_FLOAT32, hal.OperandType.TENSOR_QUANT8_ASYMM}:
        factors = [node.dequantize(factor) for factor in factors]
        output = hal.Operand(hal.OperandType.TENSOR_FLOAT32, output.dimensions)
    inputs = [*factors, *map(node.scalar, adjoints)]
    node.store(node.compute(hal.OperationType.BATCH_MATMUL, inputs, output))


def _of_equal_batches(node: Node, left: int, right: int, *, adjoint: bool) -> list[int]:
    """Return both factors with the same batches, as the HAL wants them."""
    one, other = (node.builder.operand(index).dimensions for index in (left, right))
    if one[:-2] == other[:-2] and len(one) <= _MAX_RANK:
        return [left, right]
    if len(one) < 2 or len(other) < 2:
        raise hal.InvalidArgumentError(f"{list(one)} and {list(other)} are no matrices")
    if math.prod(other[:-2]) == 1 and not adjoint:
        # Rows of all batches are rows of one matrix: nothing has to be repeated.
        rows = math.prod(one[:-1]), one[-1]
        return [node.reshape(left, rows), node.reshape(right, other[-2:])]
    try:
        outer = np.broadcast_shapes(one[:-2], other[:-2])
    except ValueError as error:
        raise hal.InvalidArgumentError(str(error)) from None
    batches = math.prod(outer)
    return [
        node.reshape(node.broadcast(index, outer + shape[-2:]), (batches, *shape[-2:]))
        for index, shape in ((left, one), (right, other))
    ]


_MAX_RANK = 4
"""Highest rank of factors in the HAL."""


CONVERTERS: dict[str, Converter] = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "TRANSPOSE_CONV": _transpose_conv,
    "AVERAGE_POOL_2D": _pool(hal.OperationType.AVERAGE_POOL_2D),
    "MAX_POOL_2D": _pool(hal.OperationType.MAX_POOL_2D),
    "L2_POOL_2D": _pool(hal.OperationType.L2_POOL_2D),
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
}
