"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

Input [batch, input size] or a sequence [time, batch, input size] (or batch first),
states [batch, output size] and [batch, cell size]; float16 or float32. The weights of
all gates are packed side by side for one product per step.

With ``o, i, f, g`` the gates' sums ``W x + R h + b`` and peepholes ``p * c``, of which
``o`` sees the new cell state:

``c' = clip(logistic(f) * c + logistic(i) * activation(g))``
``h' = clip(P (logistic(o) * activation(c')) + bias)``, without projection ``P = 1``

An input gate that is coupled to the forget gate (CIFG) is ``1 - logistic(f)``. Layer
normalisation replaces the sum ``s`` of a gate by ``normalised(s) * weights + b``.

Source: 1.3/types.hal (the operations above).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.operations.lstm import (
    BACKWARD_CELL,
    FORWARD_CELL,
    SEQUENCE_CELL,
    STEP_CELL,
    CellInputs,
)
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.kernels.recurrent.unroll import (
    Auxiliary,
    Direction,
    Extent,
    one_step,
    one_way,
    two_way,
)

Activation: TypeAlias = Callable[[Array], Array]
"""Takes and returns float32 values."""

_HALF = np.array(0.5, np.float32)


def _doubled_logistic(values: Array) -> Array:
    """Turn values into ``1 / (1 + exp(-2 * values))``: tanh cannot overflow."""
    np.tanh(values, out=values)
    values *= _HALF
    values += _HALF
    return values


def _clamp(low: float, high: float) -> Activation:
    bounds = np.array(low, np.float32), np.array(high, np.float32)
    return lambda values: values.clip(*bounds)


_BY_CODE: dict[int, Activation] = {
    0: lambda values: values,
    1: _clamp(0, np.inf),
    2: _clamp(-1, 1),
    3: _clamp(0, 6),
    4: np.tanh,
    6: lambda values: _doubled_logistic(values * _HALF),
}


def read_activation(operation: BoundOperation, index: int) -> Activation:
    """Return the activation whose code is scalar input ``index``.

    :raises OperationFailedError: if the code is none of 0, 1, 2, 3, 4 and 6.
    """
    code = operation.integer(index)
    try:
        return _BY_CODE[code]
    except KeyError:
        known = ", ".join(map(str, _BY_CODE))
        raise OperationFailedError(
            f"{operation.type.name}: {code} is not an activation ({known})"
        ) from None


_EPSILON = np.array(1e-8, np.float32)


def _normalised(gates: Array, weights: Array, bias: Array) -> Array:
    """Return ``gates`` [batches, gates, units], normalised along the units.

    ``weights * (x - mean(x)) / sqrt(variance(x) + 1e-8) + bias``, the latter two
    [gates, units].
    Source: TensorFlow Lite's LSTM, to which the HAL's reference device delegates.
    """
    share = np.array(1 / gates.shape[2], np.float32)
    sums = partial(np.add.reduce, axis=2, keepdims=True)
    centred = gates - sums(gates) * share
    variance = sums(centred * centred) * share
    return np.asarray(centred / np.sqrt(variance + _EPSILON) * weights + bias)


class Projection(msgspec.Struct, frozen=True, eq=False):
    """``weights`` [units, outputs], ``bias`` [outputs] or None, a clip or 0."""

    weights: Array
    bias: Array | None
    clip: float

    def __call__(self, hidden: Array) -> Array:
        """Return the output [batches, outputs] of a hidden state."""
        output: Array = hidden.dot(self.weights)
        if self.bias is not None:
            output += self.bias
        return output.clip(-self.clip, self.clip) if self.clip > 0 else output


class LstmWeights(msgspec.Struct, frozen=True, eq=False):
    """Everything constant of a cell, in float32.

    The gates lie side by side: output, input unless it is coupled, forget, cell. All
    but the last end in the logistic function, computed as ``(tanh(x / 2) + 1) / 2``:
    what belongs to them is halved beforehand, which is exact.

    ``input_weights`` [inputs, gates * units], ``recurrent_weights`` [outputs, gates *
    units], ``bias`` [gates * units]; ``norm`` [gates, units] is layer normalisation,
    and ``peepholes`` [gates - 1, units] lacks the cell gate. ``cell_clip`` may be 0.
    """

    gates: int
    input_weights: Array
    recurrent_weights: Array
    bias: Array
    peepholes: Array | None
    norm: Array | None
    projection: Projection | None
    activation: Activation
    cell_clip: float

    @property
    def input_bias(self) -> Array | None:
        """Bias to add to the products of the inputs; not if it follows `norm`."""
        return self.bias if self.norm is None else None

    def step(self, products: Array, *states: Array) -> tuple[Array, ...]:
        """Return output and cell state after a step; see `CellWeights`."""
        output, memory = states
        sums = output.dot(self.recurrent_weights)
        sums += products
        raw = sums.reshape(len(sums), self.gates, memory.shape[1])
        gates = self._values(raw, memory)
        forget, candidate = gates[:, -2], gates[:, -1]
        if self.gates == 4:
            candidate *= gates[:, 1]
            memory = memory * forget
            memory += candidate
        else:  # f * c + (1 - f) * g
            memory = candidate + forget * (memory - candidate)
        if self.cell_clip > 0:
            memory = memory.clip(-self.cell_clip, self.cell_clip)
        leaves = gates[:, 0]
        if self.peepholes is not None:  # the output gate sees the new state
            leaves = self._values(raw, memory)[:, 0]
        output = self.activation(memory) * leaves
        if self.projection is not None:
            output = self.projection(output)
        return output, memory

    def _values(self, raw: Array, memory: Array) -> Array:
        """Return the values of sums; peepholes see ``memory`` [batches, units]."""
        values = raw
        if self.peepholes is not None:
            values = raw.copy()
            values[:, :-1] += memory[:, np.newaxis] * self.peepholes
        if self.norm is not None:
            values = _normalised(values, self.norm, self.bias.reshape(self.norm.shape))
        _doubled_logistic(values[:, :-1])
        values[:, -1] = self.activation(values[:, -1])
        return values


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
    return one_step(pack(operation, STEP_CELL, _SETTINGS), operation, _STATES)


def _prepare_sequence(operation: BoundOperation) -> PreparedKernel:
    """Compute all steps of ``input: T [steps, batches, inputs]``, in either layout.

    Gives ``output: T [steps, batches, outputs]`` in the same layout and, if they are
    outputs, the states after the last step.
    """
    extent = Extent.of(operation, time_major=operation.boolean(23))
    return one_way(pack(operation, SEQUENCE_CELL, _SETTINGS), extent, _STATES)


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
