"""Fully connected layers and matrix products."""

import math
from typing import Any

from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.operands import add_constant, describe
from asyncnn.runtime.tflite.operators.weights import read_bias, read_weights

_VALID = 2


def _fully_connected(node: Node) -> None:
    options = node.options("FullyConnectedOptions")
    if options.WeightsFormat():
        raise UnsupportedOperatorError("its weights are shuffled for one kernel")
    shape = node.tensor(1).shape
    if len(shape) != 2 or not all(shape):
        raise InvalidArgumentError(f"weights of shape {list(shape)}")
    units, depth = shape
    batch, rest = divmod(math.prod(node.tensor(0).shape), depth)
    if rest:
        raise InvalidArgumentError(
            f"input of shape {list(node.tensor(0).shape)} for rows of {depth} weights"
        )
    if len(node.tensor(1).scales) > 1 and node.type != OperandType.TENSOR_FLOAT32:
        _as_convolution(node, options, batch, units, depth)
        return
    data = node.read(0)
    if not 2 <= node.rank() <= 4:
        data = node.reshape(data, (batch, depth))
    weights = read_weights(node, 1, channel_dim=0)
    bias = read_bias(node, 2, weights, units)
    node.store(
        node.compute(
            OperationType.FULLY_CONNECTED,
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
    one = node.scalar(1)
    node.store(
        node.compute(
            OperationType.CONV_2D,
            [
                node.reshape(node.read(0), (batch, 1, 1, depth)),
                filter_,
                read_bias(node, 2, filter_, units),
                node.scalar(_VALID),
                one,
                one,
                node.fused(options.FusedActivationFunction()),
            ],
            replace(node.target(), dimensions=(batch, 1, 1, units)),
        )
    )


def _batch_matmul(node: Node) -> None:
    options = node.options("BatchMatMulOptions")
    factors = node.read_all()
    flags = [node.scalar(bool(flag)) for flag in (options.AdjX(), options.AdjY())]
    types = {node.builder.operand(factor).type for factor in factors}
    if types & {OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM}:
        node.emit_float(OperationType.BATCH_MATMUL, factors + flags)
    else:
        node.emit(OperationType.BATCH_MATMUL, factors + flags)


CONVERTERS: dict[str, Converter] = {
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
}
