"""Integer LSTM cells: one QUANTIZED_LSTM operation for each time step."""

from collections.abc import Sequence
from typing import Any

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Node
from asyncnn.runtime.tflite.operands import add_constant, describe
from asyncnn.runtime.tflite.operators.cells import zero_state
from asyncnn.runtime.tflite.operators.lstm_tensors import (
    BIASES,
    CELL_STATE,
    HIDDEN,
    LAYER_NORMS,
    OUTPUT_STATE,
    PEEPHOLES,
    PROJECTION,
    PROJECTION_BIAS,
    WEIGHTS,
)

_Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_Q8SYM = OperandType.TENSOR_QUANT8_SYMM
_Q16S = OperandType.TENSOR_QUANT16_SYMM
_I32 = OperandType.TENSOR_INT32

_GATE_SCALE = 2.0**-12
"""Scale of a gate's 16-bit sums where no layer normalisation sets another."""


def quantized_steps(node: Node, options: Any, steps: Sequence[int]) -> list[int]:
    """Return the outputs of ``steps``, operands of shape [batch, inputs].

    :raises UnsupportedOperatorError: if the cell is not quantised as the HAL has it.
    """
    weights = _weights(node)
    settings = [
        *(_constant(node, index, _Q16S) for index in LAYER_NORMS),
        node.scalar(options.CellClip(), OperandType.FLOAT32),
        node.scalar(options.ProjClip(), OperandType.FLOAT32),
        *_intermediates(node),
    ]
    state = zero_state(node, OUTPUT_STATE, _Q8S)
    cell = zero_state(node, CELL_STATE, _Q16S)
    like = [node.builder.operand(operand) for operand in (state, cell, state)]
    outputs = []
    for step in steps:
        state, cell, output = node.compute_all(
            OperationType.QUANTIZED_LSTM,
            [step, *weights, state, cell, *settings],
            like,
        )
        outputs.append(output)
    return outputs


def _weights(node: Node) -> list[int]:
    return [
        *(_constant(node, index, _Q8SYM) for index in WEIGHTS),
        *(_constant(node, index, _Q16S) for index in PEEPHOLES),
        *(_constant(node, index, _I32) for index in BIASES),
        _constant(node, PROJECTION, _Q8SYM),
        _constant(node, PROJECTION_BIAS, _I32),
    ]


def _constant(node: Node, index: int, type_: OperandType) -> int:
    if not node.has(index):
        return node.builder.omitted(type_, scale=0.0 if type_ == _I32 else 1.0)
    tensor = node.tensor(index)
    if node.values(index).dtype != DTYPES[type_]:
        raise UnsupportedOperatorError(f"{tensor.label} is of {tensor.type}")
    described = describe(tensor)
    if described.extra_params is not None or described.zero_point:
        raise UnsupportedOperatorError(f"{tensor.label} is not quantised symmetrically")
    scale = tensor.scales[0] if tensor.scales else described.scale
    operand = Operand(type_, described.dimensions, scale=scale)
    return add_constant(node.builder, tensor, operand)


def _intermediates(node: Node) -> list[int]:
    """Add scales of the four gates, then zero point and scale of the hidden state."""
    scales = [
        _scale(node, gate) if node.has(index) else _GATE_SCALE
        for gate, index in enumerate(LAYER_NORMS)
    ]
    zero_point = next(iter(node.intermediate(HIDDEN).zero_points), 0)
    return [
        *(node.scalar(scale, OperandType.FLOAT32) for scale in scales),
        node.scalar(zero_point, OperandType.INT32),
        node.scalar(_scale(node, HIDDEN), OperandType.FLOAT32),
    ]


def _scale(node: Node, index: int) -> float:
    tensor = node.intermediate(index)
    if len(tensor.scales) != 1 or not tensor.scales[0] > 0:
        raise InvalidArgumentError(f"{tensor.label} must have one positive scale")
    return tensor.scales[0]
