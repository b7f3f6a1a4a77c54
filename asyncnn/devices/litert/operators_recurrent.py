"""UNIDIRECTIONAL_SEQUENCE_LSTM in TFLite, unrolled step by step.

The LSTM of TFLite keeps its states in variables, the HAL in operands. So each step is
written in single operators, all of which XNNPACK has. The products of all inputs are
one FULLY_CONNECTED, with the weights of the four gates side by side, whose rows SPLIT
gives to the steps; the ones of the output state are one in each step:

``c' = clip(logistic(f) * c + logistic(i) * tanh(g))``
``h' = logistic(o) * tanh(c')``

Source: 1.3/types.hal (UNIDIRECTIONAL_SEQUENCE_LSTM).
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.devices.litert.operation_writer import FLOATS, OperationWriter, Rule
from asyncnn.devices.litert.tflite_graph import FLOAT32, WrittenTensor, options
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.lstm import SEQUENCE_CELL
from asyncnn.hal.types import OperationType

_MAX_STEPS = 128
"""Longest sequence: each step is a dozen operators."""

_TANH = 4
"""The code of an activation that is no fused one."""

_GATES = 4
_WEIGHTS, _RECURRENT, _BIASES = 1, 5, 12
_OUTPUT_STATE, _CELL_STATE = 18, 19
_ACTIVATION, _CELL_CLIP, _TIME_MAJOR = 20, 21, 23
_SWAPPED = (1, 0, 2)
"""Puts steps before batches, or the reverse."""


class _Stacked(msgspec.Struct, frozen=True, eq=False):
    """Converts a constant to arrays one below the other, in float32."""

    parts: tuple[Array, ...]

    def __call__(self, placeholder: Array) -> Array:
        return np.concatenate(self.parts, dtype=np.float32)


def _stacked(writer: OperationWriter, first: int) -> WrittenTensor:
    """Return the constants of four gates, from input ``first`` on, as one."""
    parts = tuple(writer.operation.value(first + gate) for gate in range(_GATES))
    shape: Shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    placeholder = np.broadcast_to(np.float32(0), shape)
    return writer.graph.constant(FLOAT32, placeholder, convert=_Stacked(parts))


class _CellWriter:
    """The operators of one step after the other; ``units`` is the length of states."""

    def __init__(self, writer: OperationWriter, batches: int, units: int) -> None:
        self._writer = writer
        self._shape = batches, units
        self._sums = batches, _GATES * units
        self._weights = _stacked(writer, _RECURRENT)
        zeros = np.broadcast_to(np.float32(0), (_GATES * units,))
        self._no_bias = writer.graph.constant(FLOAT32, zeros)
        clip = writer.operation.real(_CELL_CLIP)
        self._bounds = [] if clip <= 0 else [*map(writer.graph.real, (-clip, clip))]
        self._axis = writer.graph.integers(1)
        self._split = options("SplitOptions", NumSplits=_GATES)
        self.output = writer.input(_OUTPUT_STATE)
        self.memory = writer.input(_CELL_STATE)

    def steps(self, rows: Sequence[WrittenTensor]) -> list[WrittenTensor]:
        """Advance by ``rows`` [batches, 4 units], the inputs' products, one by one.

        Return the output state behind each.
        """
        graph, outputs = self._writer.graph, []
        for row in rows[:2]:
            begun = len(graph.tensors), len(graph.operators)
            self._step(row)
            outputs.append(self.output)
        turns = len(rows) - 2
        if turns > 0:  # all are like the second
            length = graph.repeat(*begun, turns, rows[1].number)
            first, last = self.output.number + length, self.memory.number
            outputs += graph.tensors[first::length]
            self.output, self.memory = outputs[-1], graph.tensors[last + turns * length]
        return outputs

    def _step(self, products: WrittenTensor) -> None:
        writer, graph = self._writer, self._writer.graph
        table = options("FullyConnectedOptions", FusedActivationFunction=0)
        inputs = [self.output, self._weights, self._no_bias]
        recurrent = writer.emit(
            "FULLY_CONNECTED", inputs, writer.floats(self._sums), table
        )
        sums = self._writer.pair("ADD", recurrent, products)
        gates = [writer.floats(self._shape) for _ in range(_GATES)]
        graph.operator("SPLIT", [self._axis, sums], gates, self._split)
        entered = self._writer.pair(
            "MUL", self._of("LOGISTIC", gates[0]), self._of("TANH", gates[2])
        )
        kept = self._writer.pair("MUL", self._of("LOGISTIC", gates[1]), self.memory)
        self.memory = self._clipped(self._writer.pair("ADD", kept, entered))
        self.output = self._writer.pair(
            "MUL", self._of("LOGISTIC", gates[3]), self._of("TANH", self.memory)
        )

    def _clipped(self, memory: WrittenTensor) -> WrittenTensor:
        for name, bound in zip(("MAXIMUM", "MINIMUM"), self._bounds, strict=False):
            memory = self._writer.pair(name, memory, bound)
        return memory

    def _of(self, name: str, source: WrittenTensor) -> WrittenTensor:
        return self._writer.emit(name, [source], self._writer.floats(self._shape))


def _check(writer: OperationWriter) -> None:
    operation = writer.operation
    writer.require(SEQUENCE_CELL.has_input_gate(operation), "a coupled input gate")
    writer.require(not SEQUENCE_CELL.has_peepholes(operation), "peepholes")
    writer.require(not SEQUENCE_CELL.has_layer_norm(operation), "layer normalisation")
    writer.require(not operation.has(SEQUENCE_CELL.weights + 15), "a projection")
    code = operation.integer(_ACTIVATION)
    writer.require(code == _TANH, f"activation {code} instead of tanh")


def _sequence_lstm(writer: OperationWriter) -> None:
    _check(writer)
    graph = writer.graph
    time_major = writer.operation.boolean(_TIME_MAJOR)
    source = writer.input(0)
    if not time_major:
        source = writer.transposed(source, _SWAPPED)
    steps, batches, size = source.shape
    writer.require(steps <= _MAX_STEPS, f"more than {_MAX_STEPS} steps")
    units = writer.operation.shape(_CELL_STATE)[1]
    products = writer.emit(
        "FULLY_CONNECTED",
        [
            writer.reshaped(source, (steps * batches, size)),
            _stacked(writer, _WEIGHTS),
            _stacked(writer, _BIASES),
        ],
        writer.floats((steps * batches, _GATES * units)),
        options("FullyConnectedOptions", FusedActivationFunction=0),
    )
    cell = _CellWriter(writer, batches, units)
    rows = [products]
    if steps > 1:
        rows = [writer.floats((batches, _GATES * units)) for _ in range(steps)]
        split = options("SplitOptions", NumSplits=steps)
        graph.operator("SPLIT", [graph.integers(0), products], rows, split)
    results = cell.steps(rows)
    table = options("PackOptions", ValuesCount=steps, Axis=0 if time_major else 1)
    writer.emit("PACK", results, writer.output(), table)
    states = (cell.output, cell.memory)[: len(writer.operation.outputs) - 1]
    for position, state in enumerate(states, 1):
        writer.reshape(state, writer.output(position))


RULES: dict[OperationType, Rule] = {
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: Rule(
        _sequence_lstm,
        FLOATS,
        "FULLY_CONNECTED, SPLIT; each step FULLY_CONNECTED, ADD, SPLIT, LOGISTIC, "
        "TANH, MUL; PACK",
        "peepholes, projection, layer normalisation, a coupled input gate; "
        "more than 128 steps; another activation than tanh",
    )
}
