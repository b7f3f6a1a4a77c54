"""Weights and biases, as layers of all kinds share them."""

import numpy as np

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, SymmPerChannelQuantParams
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Node
from asyncnn.runtime.tflite.operands import add_constant, bias_scale, describe


def read_real(node: Node, index: int) -> int:
    """Return input ``index`` as float32, dequantised if need be, or left out."""
    if not node.has(index):
        return node.builder.omitted(OperandType.TENSOR_FLOAT32)
    tensor = node.tensor(index)
    if tensor.type != "UINT8" or tensor.data is None:
        return node.dequantize(node.read(index))
    # In layers on floats, TFLite takes the bytes of such weights for signed ones.
    signed = node.builder.constant(
        tensor.data.view(np.int8),
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        scale=describe(tensor).scale,
    )
    return node.dequantize(signed)


def read_weights(node: Node, index: int, *, channel_dim: int, data: int = 0) -> int:
    """Return the operand of the weights in input ``index``.

    Where input ``data`` is float, quantised weights are dequantised: the HAL has no
    arithmetic on mixed types.

    :raises UnsupportedOperatorError: if they are quantised along another axis.
    """
    if node.builder.operand(node.read(data)).type == OperandType.TENSOR_FLOAT32:
        return read_real(node, index)
    weights = node.read(index)
    quant = node.builder.operand(weights).extra_params
    if (
        isinstance(quant, SymmPerChannelQuantParams)
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
    if source.type == OperandType.TENSOR_FLOAT32:
        operand = Operand(OperandType.TENSOR_FLOAT32, (units,))
    else:
        scale = bias_scale(source, node.builder.operand(weights))
        operand = Operand(OperandType.TENSOR_INT32, (units,), scale=scale)
    if not node.has(index):
        return node.zeros(operand)
    tensor = node.tensor(index)
    if tensor.data is None or tensor.type == "FLOAT16":
        return _computed(node, index, operand)
    if tensor.data.size != units:
        raise InvalidArgumentError(
            f"{tensor.label} has {tensor.data.size} elements for {units} channels"
        )
    return add_constant(node.builder, tensor, operand)


def _computed(node: Node, index: int, operand: Operand) -> int:
    if operand.type != OperandType.TENSOR_FLOAT32:
        raise UnsupportedOperatorError(
            f"{node.tensor(index).label} is a quantised bias but not a constant"
        )
    return node.reshape(node.dequantize(node.read(index)), operand.dimensions)
