"""What recurrent layers share: float weights, activations and state from zero."""

import math

import numpy as np

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import OperandType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Node

_STATE_TYPES = {
    OperandType.TENSOR_FLOAT32: "FLOAT32",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "INT8",
    OperandType.TENSOR_QUANT16_SYMM: "INT16",
}

_MAX_STATE = 1 << 22
"""Most elements of a state, which the file only announces."""


def read_real(node: Node, index: int) -> int:
    """Return input ``index`` as float32, dequantised if need be, or left out.

    :raises UnsupportedOperatorError: if it is of uint8: TFLite takes such weights for
        signed ones.
    """
    if not node.has(index):
        return node.builder.omitted(OperandType.TENSOR_FLOAT32)
    if node.tensor(index).type == "UINT8":
        raise UnsupportedOperatorError(f"{node.tensor(index).label} is of uint8")
    return node.dequantize(node.read(index))


def activation(node: Node, code: int, *known: int) -> int:
    """Return the scalar operand of a cell's activation.

    :raises UnsupportedOperatorError: if ``code`` is not a ``known`` one.
    """
    if code not in known:
        raise UnsupportedOperatorError(f"activation {code} has no HAL form")
    return node.scalar(code)


def zero_state(node: Node, index: int, type_: OperandType) -> int:
    """Return the state in input ``index`` before the first step: real zeros.

    :raises UnsupportedOperatorError: if the input is no variable of type ``type_``.
    :raises InvalidArgumentError: if it has no sensible shape or not one scale.
    """
    tensor = node.tensor(index)
    if not tensor.is_variable or tensor.type != _STATE_TYPES[type_]:
        raise UnsupportedOperatorError(
            f"{tensor.label} is not a state of type {_STATE_TYPES[type_]}"
        )
    if not 0 < math.prod(tensor.shape) <= _MAX_STATE:
        raise InvalidArgumentError(f"{tensor.label} has shape {list(tensor.shape)}")
    scale, zero_point = 0.0, 0
    if type_ != OperandType.TENSOR_FLOAT32:
        if len(tensor.scales) != 1:
            raise InvalidArgumentError(f"{tensor.label} must have one scale")
        scale, zero_point = tensor.scales[0], next(iter(tensor.zero_points), 0)
    return node.builder.constant(
        np.full(tensor.shape, zero_point, DTYPES[type_]),
        type_,
        scale=scale,
        zero_point=zero_point,
    )
