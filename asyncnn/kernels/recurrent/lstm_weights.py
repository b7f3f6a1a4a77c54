"""Weights of a float LSTM cell, packed for one matrix product per step.

The gates lie side by side: output, input, forget, cell; without the input gate where it
is coupled to the forget gate. All but the last end in the logistic function, which is
computed as ``(tanh(x / 2) + 1) / 2``: what belongs to them is halved here, exactly.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.lstm import CellInputs
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.recurrent.activations import Activation, read_activation
from asyncnn.kernels.recurrent.lstm_cell import LstmCell

INPUT, FORGET, CELL, OUTPUT = range(4)
"""Gates in the order of the HAL's arguments."""

GATES = (OUTPUT, INPUT, FORGET, CELL)
COUPLED_GATES = (OUTPUT, FORGET, CELL)
"""Gates in the order in which they are packed, with and without an input gate."""

_PEEPHOLES = {INPUT: 8, FORGET: 9, OUTPUT: 10}
"""Where the peephole weights of a gate are, counted from the cell's weights."""


class Projection(msgspec.Struct, frozen=True, eq=False):
    """``weights`` [units, outputs], ``bias`` [outputs] or None, and a clip or 0."""

    weights: Array
    bias: Array | None
    clip: float


class LstmWeights(msgspec.Struct, frozen=True, eq=False):
    """Everything constant of a cell; arrays are float32, columns gate by gate.

    ``bias`` is added before the gates end, after layer normalisation if there is one.
    ``norm`` and ``peepholes`` are [gates, units]; the cell gate has no peephole.
    ``cell_clip`` is 0 if the cell state is not clipped.
    """

    units: int
    outputs: int
    input_weights: Array
    recurrent_weights: Array
    bias: Array
    peepholes: Array | None
    norm: Array | None
    projection: Projection | None
    activation: Activation
    cell_clip: float

    @property
    def gates(self) -> int:
        """Number of gates, 3 if input and forget gate are coupled."""
        return len(self.bias) // self.units

    @property
    def input_bias(self) -> Array | None:
        """Bias to add to the products of the inputs."""
        return self.bias if self.norm is None else None

    def bind(self, scratch: Scratch, batches: int) -> LstmCell:
        """Allocate a cell for so many sequences at once."""
        return LstmCell(self, scratch, batches)


class Settings(msgspec.Struct, frozen=True):
    """Where a cell's activation and its two clips are among the inputs."""

    activation: int
    cell_clip: int
    projection_clip: int


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
    gates = GATES if cell.has_input_gate(operation) else COUPLED_GATES
    recurrent = _stack(operation, cell.weights + 4, gates)
    outputs = recurrent.shape[1]
    bias = _stack(operation, cell.weights + 11, gates)
    units = len(bias) // len(gates)
    inputs = [_stack(operation, cell.weights, gates)]
    if auxiliary is not None:
        inputs.append(_stack(operation, auxiliary, gates))
    halves = np.array([[1 if gate == CELL else 0.5] for gate in gates], np.float32)
    by_column = np.repeat(halves, units)
    norm = peepholes = None
    if cell.has_layer_norm(operation):
        norm = _stack(operation, cell.layer_norm, gates).reshape(-1, units) * halves
    before_norm = np.ones_like(by_column) if norm is not None else by_column
    if cell.has_peepholes(operation):
        at = [cell.weights + _PEEPHOLES[gate] for gate in gates if gate != CELL]
        peepholes = _join(operation, at).reshape(-1, units)
        peepholes *= before_norm[0]
    return LstmWeights(
        units=units,
        outputs=outputs,
        input_weights=np.ascontiguousarray(np.hstack(inputs).T * before_norm),
        recurrent_weights=np.ascontiguousarray(recurrent.T * before_norm),
        bias=bias * by_column,
        peepholes=peepholes,
        norm=norm,
        projection=_projection(operation, cell.weights + 15, settings.projection_clip),
        activation=read_activation(operation, settings.activation),
        cell_clip=operation.real(settings.cell_clip),
    )


def _projection(operation: BoundOperation, at: int, clip: int) -> Projection | None:
    if not operation.has(at):
        return None
    weights = np.ascontiguousarray(_join(operation, [at]).T)
    bias = _join(operation, [at + 1]) if operation.has(at + 1) else None
    return Projection(weights, bias, operation.real(clip))


def _stack(
    operation: BoundOperation, first: int, gates: Iterable[int]
) -> NDArray[np.float32]:
    return _join(operation, [first + gate for gate in gates])


def _join(operation: BoundOperation, indices: Iterable[int]) -> NDArray[Any]:
    values = [operation.value(index) for index in indices]
    return np.concatenate(values, dtype=np.float32)
