"""What recurrent layers share: activations, and state that starts from zero."""

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Node

_STATE_TYPES = {
    OperandType.TENSOR_FLOAT32: "FLOAT32",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "INT8",
    OperandType.TENSOR_QUANT16_SYMM: "INT16",
}


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
    if not all(tensor.shape) or not tensor.shape:
        raise InvalidArgumentError(f"{tensor.label} has shape {list(tensor.shape)}")
    if type_ == OperandType.TENSOR_FLOAT32:
        return node.zeros(Operand(type_, tensor.shape))
    if len(tensor.scales) != 1:
        raise InvalidArgumentError(f"{tensor.label} must have one scale")
    zero_point = next(iter(tensor.zero_points), 0)
    return node.zeros(
        Operand(type_, tensor.shape, scale=tensor.scales[0], zero_point=zero_point)
    )
