"""Recurrent layers. Their state starts from zero for every inference.

The HAL has whole LSTM sequences in float only. A quantised one becomes one
QUANTIZED_LSTM operation for each time step, with the state handed from step to step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.operands import add_constant, describe

F32 = OperandType.TENSOR_FLOAT32
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q16S = OperandType.TENSOR_QUANT16_SYMM
I32 = OperandType.TENSOR_INT32

_WEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8)
_PEEPHOLES = (9, 10, 11)
_BIASES = (12, 13, 14, 15)
_PROJECTION, _PROJECTION_BIAS = 16, 17
_OUTPUT_STATE, _CELL_STATE = 18, 19
_LAYER_NORMS = (20, 21, 22, 23)
_HIDDEN = 4
"""Intermediate tensor that tells how the state before the projection is quantised."""

_ACTIVATIONS = frozenset({0, 1, 3, 4})
"""Codes that mean the same in both: none, ReLU, ReLU6, tanh."""

_GATE_SCALE = 2.0**-12
"""Scale of a gate's 16-bit sums where no layer normalisation sets another."""

_MAX_STEPS = 4096


def _sequence_lstm(node: Node) -> None:
    options = node.options("UnidirectionalSequenceLSTMOptions")
    if len(node.tensor(0).shape) != 3 or len(node.result().shape) != 3:
        raise InvalidArgumentError("input and output must have rank 3")
    code = options.FusedActivationFunction()
    if code not in _ACTIVATIONS:
        raise UnsupportedOperatorError(f"activation {code} has no HAL form")
    if node.type == F32:
        _float_sequence(node, options)
    elif node.type == Q8S:
        _quantized_sequence(node, options)
    else:
        raise UnsupportedOperatorError(f"an LSTM of {node.type.name} has no HAL form")


def _float_sequence(node: Node, options: Any) -> None:
    scalars = [
        node.scalar(options.FusedActivationFunction()),
        node.scalar(options.CellClip(), OperandType.FLOAT32),
        node.scalar(options.ProjClip(), OperandType.FLOAT32),
        node.scalar(bool(options.TimeMajor())),
    ]
    inputs = [
        node.read(0),
        *(_float(node, index) for index in range(1, _OUTPUT_STATE)),
        _zero_state(node, _OUTPUT_STATE, F32),
        _zero_state(node, _CELL_STATE, F32),
        *scalars,
        *(_float(node, index) for index in _LAYER_NORMS),
    ]
    node.emit(OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs)


def _float(node: Node, index: int) -> int:
    if not node.has(index):
        return node.builder.omitted(F32)
    return node.dequantize(node.read(index))


def _quantized_sequence(node: Node, options: Any) -> None:
    steps = _split_time(node, time_major=bool(options.TimeMajor()))
    weights = _quantized_weights(node)
    settings = [
        *(_quantized(node, index, Q16S) for index in _LAYER_NORMS),
        node.scalar(options.CellClip(), OperandType.FLOAT32),
        node.scalar(options.ProjClip(), OperandType.FLOAT32),
        *_intermediates(node),
    ]
    state = _zero_state(node, _OUTPUT_STATE, Q8S)
    cell = _zero_state(node, _CELL_STATE, Q16S)
    result, memory = node.builder.operand(state), node.builder.operand(cell)
    like = (_temporary(result), _temporary(memory), _temporary(result))
    outputs = []
    for step in steps:
        state, cell, output = node.builder.operation(
            OperationType.QUANTIZED_LSTM,
            [step, *weights, state, cell, *settings],
            like,
        )
        outputs.append(output)
    node.store(_join_time(node, outputs, time_major=bool(options.TimeMajor())))


def _quantized_weights(node: Node) -> list[int]:
    return [
        *(_quantized(node, index, Q8SYM) for index in _WEIGHTS),
        *(_quantized(node, index, Q16S) for index in _PEEPHOLES),
        *(_quantized(node, index, I32) for index in _BIASES),
        _quantized(node, _PROJECTION, Q8SYM),
        _quantized(node, _PROJECTION_BIAS, I32),
    ]


def _quantized(node: Node, index: int, type_: OperandType) -> int:
    if not node.has(index):
        return node.builder.omitted(type_, scale=0.0 if type_ == I32 else 1.0)
    tensor = node.tensor(index)
    if tensor.data is None or tensor.data.dtype != DTYPES[type_]:
        raise UnsupportedOperatorError(f"{tensor.label} is not constant {type_.name}")
    described = describe(tensor)
    if described.extra_params is not None or described.zero_point:
        raise UnsupportedOperatorError(f"{tensor.label} is not quantised symmetrically")
    scale = tensor.scales[0] if tensor.scales else described.scale
    operand = Operand(type_, described.dimensions, scale=scale)
    return add_constant(node.builder, tensor, operand)


def _intermediates(node: Node) -> list[int]:
    """Add scales of the four gates, then zero point and scale of the hidden state."""
    normalised = node.has(_LAYER_NORMS[-1])
    scales = [
        _scale(node, gate)
        if normalised and node.has(_LAYER_NORMS[gate])
        else _GATE_SCALE
        for gate in range(len(_LAYER_NORMS))
    ]
    hidden = node.intermediate(_HIDDEN)
    zero_point = hidden.zero_points[0] if hidden.zero_points else 0
    return [
        *(node.scalar(scale, OperandType.FLOAT32) for scale in scales),
        node.scalar(zero_point, OperandType.INT32),
        node.scalar(_scale(node, _HIDDEN), OperandType.FLOAT32),
    ]


def _scale(node: Node, index: int) -> float:
    tensor = node.intermediate(index)
    if len(tensor.scales) != 1 or not tensor.scales[0] > 0:
        raise InvalidArgumentError(f"{tensor.label} must have one positive scale")
    return tensor.scales[0]


def _zero_state(node: Node, index: int, type_: OperandType) -> int:
    """Add the state before the first step: real zeros."""
    tensor = node.tensor(index)
    if not tensor.is_variable or len(tensor.shape) != 2 or not all(tensor.shape):
        raise UnsupportedOperatorError(f"{tensor.label} is not the state of a layer")
    scale, zero_point = 0.0, 0
    if type_ != F32:
        if len(tensor.scales) != 1:
            raise InvalidArgumentError(f"{tensor.label} must have one scale")
        scale = tensor.scales[0]
        zero_point = tensor.zero_points[0] if tensor.zero_points else 0
    return node.builder.constant(
        np.full(tensor.shape, zero_point, DTYPES[type_]),
        type_,
        scale=scale,
        zero_point=zero_point,
    )


def _temporary(like: Operand) -> Operand:
    return Operand(
        like.type, like.dimensions, scale=like.scale, zero_point=like.zero_point
    )


def _split_time(node: Node, *, time_major: bool) -> Sequence[int]:
    """Return the input of every step, [batch, size]."""
    data = node.read(0)
    first, second, size = node.tensor(0).shape
    steps, batch = (first, second) if time_major else (second, first)
    if not 0 < steps <= _MAX_STEPS:
        raise UnsupportedOperatorError(f"{steps} time steps")
    like = node.builder.operand(data)
    flat = (steps * batch, size) if time_major else (batch, steps * size)
    joined = node.reshape(data, flat)
    if steps == 1:
        return [joined]
    step = Operand(
        like.type, (batch, size), scale=like.scale, zero_point=like.zero_point
    )
    axis = node.scalar(0 if time_major else 1)
    inputs = [joined, axis, node.scalar(steps)]
    return node.builder.operation(OperationType.SPLIT, inputs, [step] * steps)


def _join_time(node: Node, outputs: Sequence[int], *, time_major: bool) -> int:
    """Return the outputs of all steps as one operand of rank 3."""
    like = node.builder.operand(outputs[0])
    batch, size = like.dimensions
    steps = len(outputs)
    joined = outputs[0]
    if steps > 1:
        flat = (steps * batch, size) if time_major else (batch, steps * size)
        joined = node.compute(
            OperationType.CONCATENATION,
            [*outputs, node.scalar(0 if time_major else 1)],
            Operand(like.type, flat, scale=like.scale, zero_point=like.zero_point),
        )
    whole = (steps, batch, size) if time_major else (batch, steps, size)
    return node.reshape(joined, whole)


CONVERTERS: dict[str, Converter] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm}
