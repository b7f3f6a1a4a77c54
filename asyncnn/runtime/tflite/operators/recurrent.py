"""Recurrent layers without gates, in float; state starts from zero each inference."""

from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.operators.cells import activation, zero_state
from asyncnn.runtime.tflite.operators.weights import read_real

_F32 = OperandType.TENSOR_FLOAT32

_ACTIVATIONS = (0, 1, 2, 3, 4)
"""Codes that mean the same in both: none, three kinds of ReLU, tanh."""


def _rnn(node: Node) -> None:
    options = node.options("RNNOptions")
    inputs = _cell_inputs(node)
    code = activation(node, options.FusedActivationFunction(), *_ACTIVATIONS)
    _store_step(node, OperationType.RNN, [*inputs, code])


def _sequence_rnn(node: Node) -> None:
    options = node.options("SequenceRNNOptions")
    inputs = _cell_inputs(node)
    code = activation(node, options.FusedActivationFunction(), *_ACTIVATIONS)
    time_major = node.scalar(int(options.TimeMajor()))
    node.emit(OperationType.UNIDIRECTIONAL_SEQUENCE_RNN, [*inputs, code, time_major])


def _cell_inputs(node: Node) -> list[int]:
    _require_float(node)
    weights = [read_real(node, index) for index in (1, 2, 3)]
    return [node.read(0), *weights, zero_state(node, 4, _F32)]


def _svdf(node: Node) -> None:
    options = node.options("SVDFOptions")
    _require_float(node)
    inputs = [
        node.read(0),
        *(read_real(node, index) for index in (1, 2, 3)),
        zero_state(node, 4, _F32),
        node.scalar(options.Rank()),
        activation(node, options.FusedActivationFunction(), *_ACTIVATIONS),
    ]
    _store_step(node, OperationType.SVDF, inputs)


def _store_step(node: Node, type_: OperationType, inputs: Sequence[int]) -> None:
    """Add an operation whose first output is the state after input 4."""
    state = node.builder.operand(inputs[4])
    after = replace(node.target(), dimensions=state.dimensions)
    _, output = node.compute_all(type_, inputs, [after, node.target()])
    node.store(output)


def _require_float(node: Node) -> None:
    if node.type != _F32:
        raise UnsupportedOperatorError(
            f"the HAL has this layer in float, not on {node.type.name}"
        )
    if node.target().type != _F32:
        raise InvalidArgumentError("a float layer with a result of another type")


CONVERTERS: dict[str, Converter] = {
    "RNN": _rnn,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _sequence_rnn,
    "SVDF": _svdf,
}
