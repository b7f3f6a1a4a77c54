"""The float LSTM cell: one step for a batch.

With ``o, i, f, g`` the gates' sums ``W x + R h + b`` and peepholes ``p * c``, of which
``o`` sees the new cell state:

``c' = clip(logistic(f) * c + logistic(i) * activation(g))``
``h' = clip(P (logistic(o) * activation(c')) + bias)``, without projection ``P = 1``

An input gate that is coupled to the forget gate (CIFG) is ``1 - logistic(f)``. Layer
normalisation replaces the sum ``s`` of a gate by ``normalised(s) * weights + b``.

Source: 1.3/types.hal (LSTM).
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError

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
