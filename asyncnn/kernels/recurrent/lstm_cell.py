"""The float LSTM cell: one step for a batch, in memory that is allocated once.

With ``o, i, f, g`` the gates' sums ``W x + R h + b`` and peepholes ``p * c``, of which
``o`` sees the new cell state:

``c' = clip(logistic(f) * c + logistic(i) * activation(g))``
``h' = clip(P (logistic(o) * activation(c')) + bias)``, without projection ``P = 1``

An input gate that is coupled to the forget gate (CIFG) is ``1 - logistic(f)``. Layer
normalisation replaces the sum ``s`` of a gate by ``normalised(s) * weights + b``.

Source: 1.3/types.hal (LSTM).
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.kernels.kernel import Scratch

Activation: TypeAlias = Callable[[Array, Array], object]
"""Takes float32 values and the array for the results, which may be the same."""

_HALF = np.array(0.5, np.float32)


def to_logistic(tanh: Array) -> None:
    """Turn tanh of some values into the logistic function of twice these, in place."""
    np.multiply(tanh, _HALF, out=tanh)
    np.add(tanh, _HALF, out=tanh)


def _logistic(values: Array, out: Array) -> None:
    """Compute ``1 / (1 + exp(-values))``, by way of tanh as that cannot overflow."""
    np.multiply(values, _HALF, out=out)
    np.tanh(out, out=out)
    to_logistic(out)


def _copy(values: Array, out: Array) -> None:
    if values is not out:
        np.copyto(out, values)


def _clamp(low: float, high: float) -> Activation:
    bounds = np.array(low, np.float32), np.array(high, np.float32)
    return lambda values, out: values.clip(*bounds, out)


_BY_CODE: dict[int, Activation] = {
    0: _copy,
    1: _clamp(0, np.inf),
    2: _clamp(-1, 1),
    3: _clamp(0, 6),
    4: lambda values, out: np.tanh(values, out=out),
    6: _logistic,
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


class LayerNorm:
    """Normalises ``gates`` [batches, gates, units] in place along the units.

    ``weights * (x - mean(x)) / sqrt(variance(x) + 1e-8) + bias``, the latter two
    [gates, units].
    Source: TensorFlow Lite's LSTM, to which the HAL's reference device delegates.
    """

    def __init__(
        self, scratch: Scratch, gates: Array, weights: Array, bias: Array
    ) -> None:
        per_gate = (*gates.shape[:2], 1)
        self._gates, self._weights, self._bias = gates, weights, bias
        self._mean = scratch.transient(per_gate, np.float32)
        self._deviation = scratch.transient(per_gate, np.float32)
        self._squares = scratch.transient(gates.shape, np.float32)
        self._share = np.array(1 / gates.shape[2], np.float32)

    def __call__(self) -> None:
        """Replace the gates by their normalised values."""
        gates, mean, deviation = self._gates, self._mean, self._deviation
        np.add.reduce(gates, axis=2, out=mean, keepdims=True)
        np.multiply(mean, self._share, out=mean)
        np.subtract(gates, mean, out=gates)
        np.multiply(gates, gates, out=self._squares)
        np.add.reduce(self._squares, axis=2, out=deviation, keepdims=True)
        np.multiply(deviation, self._share, out=deviation)
        np.add(deviation, _EPSILON, out=deviation)
        np.sqrt(deviation, out=deviation)
        np.divide(gates, deviation, out=gates)
        np.multiply(gates, self._weights, out=gates)
        np.add(gates, self._bias, out=gates)


class Projection(msgspec.Struct, frozen=True, eq=False):
    """``weights`` [units, outputs], ``bias`` [outputs] or None, a clip or 0."""

    weights: Array
    bias: Array | None
    clip: float


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

    def bind(self, scratch: Scratch, batches: int) -> "LstmCell":
        """Allocate a cell for so many sequences at once."""
        return LstmCell(self, scratch, batches)


class _GateBlock:
    """Some neighbouring gates, from their sums to their values, in place."""

    def __init__(
        self,
        weights: LstmWeights,
        scratch: Scratch,
        gates: Array,
        start: int,
        stop: int,
    ) -> None:
        """Take gates ``[start, stop)`` of all ``gates`` [batches, gates, units]."""
        _, count, units = gates.shape
        self._gates = gates[:, start:stop]
        self._candidate = gates[:, -1] if stop == count else None
        self._logistic = gates[:, start : min(stop, count - 1)]
        self._activation = weights.activation
        self._peepholes = self._norm = None
        if weights.peepholes is not None:
            self._peepholes = weights.peepholes[start:stop]
            self._seen = scratch.transient(self._logistic.shape, np.float32)
        if weights.norm is not None:
            bias = weights.bias.reshape(count, units)[start:stop]
            norm = weights.norm[start:stop]
            self._norm = LayerNorm(scratch, self._gates, norm, bias)

    def finish(self, memory: Array) -> None:
        """Apply what follows the sums; peepholes see ``memory`` [batches, 1, units]."""
        if self._peepholes is not None:
            np.multiply(memory, self._peepholes, out=self._seen)
            np.add(self._logistic, self._seen, out=self._logistic)
        if self._norm is not None:
            self._norm()
        np.tanh(self._logistic, out=self._logistic)
        to_logistic(self._logistic)
        if self._candidate is not None:
            self._activation(self._candidate, self._candidate)


class LstmCell:
    """A cell at work. ``states`` are output [batches, outputs] and cell state."""

    def __init__(self, weights: LstmWeights, scratch: Scratch, batches: int) -> None:
        outputs, columns = weights.recurrent_weights.shape
        count, units = weights.gates, columns // weights.gates
        self._weights = weights
        self._output = scratch.transient((batches, outputs), np.float32)
        self._memory = scratch.transient((batches, units), np.float32)
        self.states = self._output, self._memory
        self._sums = scratch.transient((batches, columns), np.float32)
        self._term = scratch.transient((batches, units), np.float32)
        gates = self._sums.reshape(batches, count, units)
        self._output_gate, self._forget_gate = gates[:, 0], gates[:, -2]
        self._input_gate = gates[:, 1] if count == 4 else None
        self._candidate = gates[:, -1]
        self._seen_memory = self._memory[:, np.newaxis]
        first = 0 if weights.peepholes is None else 1
        self._early = _GateBlock(weights, scratch, gates, first, count)
        self._late = _GateBlock(weights, scratch, gates, 0, first) if first else None

    def step(self, inputs: Array) -> None:
        """Advance by one step; ``inputs`` [batches, gates * units] are products."""
        self._output.dot(self._weights.recurrent_weights, self._sums)
        np.add(self._sums, inputs, out=self._sums)
        self._early.finish(self._seen_memory)
        self._update_memory()
        if self._late is not None:
            self._late.finish(self._seen_memory)
        self._update_output()

    def _update_memory(self) -> None:
        memory, candidate = self._memory, self._candidate
        if self._input_gate is None:
            # f * c + (1 - f) * g = g + f * (c - g)
            np.subtract(memory, candidate, out=memory)
            np.multiply(memory, self._forget_gate, out=memory)
        else:
            np.multiply(memory, self._forget_gate, out=memory)
            np.multiply(candidate, self._input_gate, out=candidate)
        np.add(memory, candidate, out=memory)
        clip = self._weights.cell_clip
        if clip > 0:
            memory.clip(-clip, clip, memory)

    def _update_output(self) -> None:
        projection = self._weights.projection
        hidden = self._output if projection is None else self._term
        self._weights.activation(self._memory, self._term)
        np.multiply(self._term, self._output_gate, out=hidden)
        if projection is None:
            return
        hidden.dot(projection.weights, self._output)
        if projection.bias is not None:
            np.add(self._output, projection.bias, out=self._output)
        if projection.clip > 0:
            self._output.clip(-projection.clip, projection.clip, self._output)
