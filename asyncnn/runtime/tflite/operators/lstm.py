"""LSTM layers, whose state starts from zero for every inference.

The HAL has whole sequences in float only: a quantised one becomes its time steps, with
the state handed from step to step.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.operators.cells import activation, zero_state
from asyncnn.runtime.tflite.operators.lstm_tensors import (
    CELL_STATE,
    LAYER_NORMS,
    OUTPUT_STATE,
)
from asyncnn.runtime.tflite.operators.quantized_lstm import quantized_steps
from asyncnn.runtime.tflite.operators.weights import read_real

_F32 = OperandType.TENSOR_FLOAT32
_Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED

_ACTIVATIONS = (1, 3, 4)
"""Codes that mean the same in both: ReLU, ReLU6, tanh.

Integer cells have no choice: there it is always tanh, whatever the file says.
"""

_FULL_KERNEL = 0


def _step(node: Node) -> None:
    options = node.options("LSTMOptions")
    if options.KernelType() != _FULL_KERNEL:
        raise UnsupportedOperatorError("an LSTM with all weights in one tensor")
    _require_rank(node, 2)
    if not _is_float(node):
        node.store(*quantized_steps(node, options, [node.read(0)]))
        return
    inputs = _float_inputs(node, options) + _layer_norms(node)
    state, cell = (
        replace(node.target(), dimensions=node.tensor(index).shape)
        for index in (OUTPUT_STATE, CELL_STATE)
    )
    batch, units = cell.dimensions
    gates = 4 if node.has(1) else 3
    scratch = replace(cell, dimensions=(batch, gates * units))
    *_, output = node.compute_all(
        OperationType.LSTM, inputs, [scratch, state, cell, node.target()]
    )
    node.store(output)


def _sequence(node: Node) -> None:
    options = node.options("UnidirectionalSequenceLSTMOptions")
    if options.DiagonalRecurrentTensors():
        raise UnsupportedOperatorError("an LSTM with diagonal recurrent weights")
    _require_rank(node, 3)
    time_major = bool(options.TimeMajor())
    if _is_float(node):
        inputs = [*_float_inputs(node, options), node.scalar(time_major)]
        inputs += _layer_norms(node)
        node.emit(OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs)
    else:
        steps = _split_time(node, time_major=time_major)
        outputs = quantized_steps(node, options, steps)
        node.store(_join_time(node, outputs, time_major=time_major))


def _require_rank(node: Node, rank: int) -> None:
    for shape in (node.tensor(0).shape, node.result().shape):
        if len(shape) != rank:
            raise InvalidArgumentError(
                f"input or output has rank {len(shape)}, not {rank}"
            )


def _is_float(node: Node) -> bool:
    """Tell whether the layer is float, not integer.

    :raises UnsupportedOperatorError: if it is neither, as far as the HAL knows.
    """
    types = node.type, OperandType(node.target().type)
    if types not in ((_F32, _F32), (_Q8S, _Q8S)):
        names = " to ".join(type_.name for type_ in types)
        raise UnsupportedOperatorError(f"an LSTM from {names} has no HAL form")
    return node.type == _F32


def _float_inputs(node: Node, options: Any) -> list[int]:
    """Return all inputs but the last ones, in the order that the HAL shares."""
    return [
        node.read(0),
        *(read_real(node, index) for index in range(1, OUTPUT_STATE)),
        zero_state(node, OUTPUT_STATE, _F32),
        zero_state(node, CELL_STATE, _F32),
        activation(node, options.FusedActivationFunction(), *_ACTIVATIONS),
        node.scalar(options.CellClip(), OperandType.FLOAT32),
        node.scalar(options.ProjClip(), OperandType.FLOAT32),
    ]


def _layer_norms(node: Node) -> list[int]:
    return [read_real(node, index) for index in LAYER_NORMS]


def _split_time(node: Node, *, time_major: bool) -> Sequence[int]:
    """Return the input of every step, [batch, inputs]."""
    first, second, size = node.tensor(0).shape
    steps, batch = (first, second) if time_major else (second, first)
    node.allowance.take_steps(steps)
    flat = (steps * batch, size) if time_major else (batch, steps * size)
    joined = node.reshape(node.read(0), flat)
    if steps == 1:
        return [joined]
    step = replace(node.builder.operand(joined), dimensions=(batch, size))
    axis = node.scalar(0 if time_major else 1)
    inputs = [joined, axis, node.scalar(steps)]
    return node.compute_all(OperationType.SPLIT, inputs, [step] * steps)


def _join_time(node: Node, outputs: Sequence[int], *, time_major: bool) -> int:
    """Return the outputs of all steps as one operand of rank 3."""
    joined, steps = outputs[0], len(outputs)
    like = node.builder.operand(joined)
    batch, size = like.dimensions
    if steps > 1:
        flat = (steps * batch, size) if time_major else (batch, steps * size)
        joined = node.compute(
            OperationType.CONCATENATION,
            [*outputs, node.scalar(0 if time_major else 1)],
            replace(like, dimensions=flat),
        )
    whole = (steps, batch, size) if time_major else (batch, steps, size)
    return node.reshape(joined, whole)


CONVERTERS: dict[str, Converter] = {
    "LSTM": _step,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence,
}
