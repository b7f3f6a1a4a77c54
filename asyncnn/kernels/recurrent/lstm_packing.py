"""Reads the weights of a float LSTM cell and packs them for one product per step."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.lstm_cell import CellInputs
from asyncnn.kernels.recurrent.activations import read_activation
from asyncnn.kernels.recurrent.lstm_cell import LstmWeights, Projection

Floats = NDArray[np.float32]

INPUT, FORGET, CELL, OUTPUT = range(4)
"""Gates in the order of the HAL's arguments."""

_PEEPHOLES = {INPUT: 8, FORGET: 9, OUTPUT: 10}
"""Where the peephole weights of a gate are, counted from the cell's weights."""


class Settings(msgspec.Struct, frozen=True):
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
    settings: Settings,
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
