"""Layers that read a sequence from both ends: RNN and LSTM, in float.

Inputs are those of the HAL, in its order: the forward cell, the backward one, both
states, and an auxiliary input with weights of its own. States begin with zeros and are
kept, each by its own direction.
"""

from collections.abc import Sequence
from typing import Any

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.convolution import read_real
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.recurrent import (
    LSTM_ACTIVATIONS,
    RNN_ACTIVATIONS,
    activation,
    keep_state,
    read_state,
    require_float,
)

_F32 = OperandType.TENSOR_FLOAT32

_LSTM_INPUTS, _LSTM_STATES = 48, range(35, 39)
_LSTM_NORMS = 8
_RNN_INPUTS, _RNN_STATES = 12, (4, 8)


def _lstm(node: Node) -> None:
    options = node.options("BidirectionalSequenceLSTMOptions")
    scalars = [
        activation(node, options.FusedActivationFunction(), *LSTM_ACTIVATIONS),
        node.scalar(options.CellClip(), OperandType.FLOAT32),
        node.scalar(options.ProjClip(), OperandType.FLOAT32),
        node.scalar(bool(options.MergeOutputs())),
        node.scalar(bool(options.TimeMajor())),
        *(node.builder.omitted(_F32) for _ in range(_LSTM_NORMS)),
    ]
    type_ = OperationType.BIDIRECTIONAL_SEQUENCE_LSTM
    _convert(node, type_, options, _LSTM_INPUTS, _LSTM_STATES, scalars)


def _rnn(node: Node) -> None:
    options = node.options("BidirectionalSequenceRNNOptions")
    scalars = [
        activation(node, options.FusedActivationFunction(), *RNN_ACTIVATIONS),
        node.scalar(bool(options.TimeMajor())),
        node.scalar(bool(options.MergeOutputs())),
    ]
    type_ = OperationType.BIDIRECTIONAL_SEQUENCE_RNN
    _convert(node, type_, options, _RNN_INPUTS, _RNN_STATES, scalars)


def _convert(
    node: Node,
    type_: OperationType,
    options: Any,
    count: int,
    states: Sequence[int],
    scalars: Sequence[int],
) -> None:
    """Add the layer; its last outputs are what the states are afterwards."""
    require_float(node)
    merged = bool(options.MergeOutputs())
    if len(node.operator.outputs) != (1 if merged else 2):
        raise InvalidArgumentError(f"{len(node.operator.outputs)} outputs")
    inputs = [
        read_state(node, index, _F32) if index in states else read_real(node, index)
        for index in range(count)
    ]
    outputs = [node.target(index) for index in range(len(node.operator.outputs))]
    after = [Operand(_F32, node.tensor(index).shape) for index in states]
    results = node.compute_all(type_, [*inputs, *scalars], [*outputs, *after])
    for index, operand in zip(states, results[len(outputs) :], strict=True):
        keep_state(node, index, operand)
    for index, operand in enumerate(results[: len(outputs)]):
        node.store(operand, index)


CONVERTERS: dict[str, Converter] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": _rnn,
}
"""Converters by the operator's name."""
