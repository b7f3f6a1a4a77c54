"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

Input [batch, input size] or a sequence [time, batch, input size] (or batch first),
states [batch, output size] and [batch, cell size]; float16 or float32. The weights of
all gates are packed side by side for one product per step.

Source: 1.3/types.hal (the operations above).
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.lstm import BACKWARD_CELL, FORWARD_CELL, CellInputs
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Outputs, Prepare, PreparedKernel
from asyncnn.kernels.recurrent.lstm_cell import LstmWeights, Projection, read_activation
from asyncnn.kernels.recurrent.unroll import (
    Auxiliary,
    Direction,
    Extent,
    Results,
    two_way,
    unrolled,
)

Floats = NDArray[np.float32]

INPUT, FORGET, CELL, OUTPUT = range(4)
"""Gates in the order of the HAL's arguments."""

_PEEPHOLES = {INPUT: 8, FORGET: 9, OUTPUT: 10}
"""Where the peephole weights of a gate are, counted from the cell's weights."""


class CellSettings(msgspec.Struct, frozen=True):
    """Where a cell's activation and its two clips are among the inputs."""

    activation: int
    cell_clip: int
    projection_clip: int


def packed_gates(operation: BoundOperation, cell: CellInputs) -> tuple[int, ...]:
    """Return the gates of a cell in the order in which they are packed."""
    if cell.has_input_gate(operation):
        return OUTPUT, INPUT, FORGET, CELL
    return OUTPUT, FORGET, CELL


def peephole_inputs(cell: CellInputs, gates: Iterable[int]) -> list[int]:
    """Return the inputs with the peephole weights of those gates that have some."""
    return [cell.weights + _PEEPHOLES[gate] for gate in gates if gate != CELL]


def pack(
    operation: BoundOperation,
    cell: CellInputs,
    settings: CellSettings,
    auxiliary: int | None = None,
) -> LstmWeights:
    """Read and pack the weights of a cell.

    ``auxiliary`` is where weights of a second input begin; it is joined to the first.

    :raises ValueNeededError: if a weight is not constant.
    :raises OperationFailedError: if the activation is unknown.
    """
    gates = packed_gates(operation, cell)
    recurrent = _stack(operation, cell.weights + 4, gates)
    bias = _stack(operation, cell.weights + 11, gates)
    units = len(bias) // len(gates)
    inputs = [_stack(operation, cell.weights, gates)]
    if auxiliary is not None:
        inputs.append(_stack(operation, auxiliary, gates))
    halves = np.array([1 if gate == CELL else 0.5 for gate in gates], np.float32)
    by_column = np.repeat(halves, units)
    norm = None
    before_norm = by_column
    if cell.has_layer_norm(operation):
        norm = _stack(operation, cell.layer_norm, gates) * by_column
        before_norm = np.ones_like(by_column)
    return LstmWeights(
        gates=len(gates),
        input_weights=np.ascontiguousarray(np.hstack(inputs).T * before_norm),
        recurrent_weights=np.ascontiguousarray(recurrent.T * before_norm),
        bias=bias * by_column,
        peepholes=_peepholes(operation, cell, gates, float(before_norm[0])),
        norm=None if norm is None else norm.reshape(-1, units),
        projection=_projection(operation, cell.weights + 15, settings.projection_clip),
        activation=read_activation(operation, settings.activation),
        cell_clip=operation.real(settings.cell_clip),
    )


def _peepholes(
    operation: BoundOperation, cell: CellInputs, gates: tuple[int, ...], factor: float
) -> Floats | None:
    if not cell.has_peepholes(operation):
        return None
    at = peephole_inputs(cell, gates)
    return _join(operation, at).reshape(len(at), -1) * np.float32(factor)


def _projection(operation: BoundOperation, at: int, clip: int) -> Projection | None:
    if not operation.has(at):
        return None
    weights = np.ascontiguousarray(_join(operation, [at]).T)
    bias = _join(operation, [at + 1]) if operation.has(at + 1) else None
    return Projection(weights, bias, operation.real(clip))


def _stack(operation: BoundOperation, first: int, gates: Iterable[int]) -> Floats:
    return _join(operation, [first + gate for gate in gates])


def _join(operation: BoundOperation, indices: Sequence[int]) -> Floats:
    values = [operation.value(index) for index in indices]
    return np.concatenate(values, dtype=np.float32)


_STATES = (18, 19)
_SETTINGS = CellSettings(activation=20, cell_clip=21, projection_clip=22)
_TWO_WAY_SETTINGS = CellSettings(activation=48, cell_clip=49, projection_clip=50)


def _prepare_step(operation: BoundOperation) -> PreparedKernel:
    """Compute one step; the scratch buffer, which is an output, becomes zero.

    ``input: T [batches, inputs]`` gives ``output_state_out`` and ``output: T [batches,
    outputs]``, which are the same, and ``cell_state_out: T [batches, units]``.
    """
    cell = CellInputs(weights=1, states=18, layer_norm=23)
    weights = pack(operation, cell, _SETTINGS)

    def arrange(outputs: Outputs) -> Results:
        scratch, output_state, cell_state, output = outputs
        scratch.fill(0)
        return Results([output[None]], [output_state, cell_state])

    extent = Extent((1, operation.shape(0)[0]), time_major=True)
    return unrolled([Direction(weights, (0,), _STATES)], extent, arrange)


def _prepare_sequence(operation: BoundOperation) -> PreparedKernel:
    """Compute all steps of ``input: T [steps, batches, inputs]``, in either layout.

    Gives ``output: T [steps, batches, outputs]`` in the same layout and, if they are
    outputs, the states after the last step.
    """
    cell = CellInputs(weights=1, states=18, layer_norm=24)
    weights = pack(operation, cell, _SETTINGS)
    extent = Extent.of(operation, time_major=operation.boolean(23))

    def arrange(outputs: Outputs) -> Results:
        return Results([extent.by_step(outputs[0])], outputs[1:])

    return unrolled([Direction(weights, (0,), _STATES)], extent, arrange)


def _prepare_two_way(operation: BoundOperation) -> PreparedKernel:
    """Compute the sequence forwards by one cell and backwards by another."""
    auxiliary = Auxiliary.of(operation, 39, weights=41)
    forward, backward = (
        pack(operation, cell, _TWO_WAY_SETTINGS, weights if auxiliary.joined else None)
        for cell, weights in ((FORWARD_CELL, 40), (BACKWARD_CELL, 44))
    )
    return two_way(
        Direction(forward, auxiliary.forward, (35, 36)),
        Direction(backward, auxiliary.backward, (37, 38), backward=True),
        Extent.of(operation, time_major=operation.boolean(52)),
        forward_outputs=operation.shape(35)[1],
        merge=operation.boolean(51),
    )


KERNELS: dict[OperationType, Prepare] = {
    OperationType.LSTM: _prepare_step,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _prepare_sequence,
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _prepare_two_way,
}
