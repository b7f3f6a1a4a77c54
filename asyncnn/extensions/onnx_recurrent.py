"""LSTM, GRU and RNN of ONNX, with all of their attributes, one step after the other."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from asyncnn.hal.operations.bound import Array, OperationFailedError

_Function: TypeAlias = Callable[[Array], Array]


_FUNCTIONS: Mapping[str, Callable[[Array, float, float], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)),
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "affine": lambda x, a, b: a * x + b,
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}
_DEFAULTS = {
    "elu": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "affine": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}


class _Cell(NamedTuple):
    """One direction; ``clip`` bounds what goes into an activation."""

    recurrent: Array
    bias: Array
    peepholes: Array
    functions: Sequence[_Function]
    clip: _Function
    is_tied: bool
    is_after_reset: bool


def _lstm(cell: _Cell, gates: Array, h: Array, c: Array) -> tuple[Array, Array]:
    to_gate, to_cell, to_hidden = cell.functions
    i, o, f, g = np.split(gates + h @ cell.recurrent.T + cell.bias, 4, axis=-1)
    pi, po, pf = np.split(cell.peepholes, 3)
    enters = to_gate(cell.clip(i + pi * c))
    stays = 1 - enters if cell.is_tied else to_gate(cell.clip(f + pf * c))
    c = stays * c + enters * to_cell(cell.clip(g))
    return to_gate(cell.clip(o + po * c)) * to_hidden(c), c


def _gru(cell: _Cell, gates: Array, h: Array, c: Array) -> tuple[Array, Array]:
    to_gate, to_hidden = cell.functions
    z, r, n = np.split(gates, 3, axis=-1)
    wz, wr, wn = np.split(cell.recurrent, 3)
    bz, br, bn = np.split(cell.bias, 3)
    update = to_gate(cell.clip(z + h @ wz.T + bz))
    reset = to_gate(cell.clip(r + h @ wr.T + br))
    is_after = cell.is_after_reset
    rest = reset * (h @ wn.T + bn) if is_after else (reset * h) @ wn.T + bn
    new = to_hidden(cell.clip(n + rest))
    return (1 - update) * new + update * h, c


def _rnn(cell: _Cell, gates: Array, h: Array, c: Array) -> tuple[Array, Array]:
    total = gates + h @ cell.recurrent.T + cell.bias
    return cell.functions[0](cell.clip(total)), c


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
RECURRENT = frozenset(_STEPS)
"""The operators that `recurrence` computes."""


def recurrence(
    name: str, attributes: Mapping[str, Any], given: Sequence[Array | None]
) -> Generator[None, None, list[Array]]:
    """Compute one of `RECURRENT`, and stop after each step.

    :raises OperationFailedError: if shapes, lengths or activations do not fit.
    """
    whole: list[Array | None] = [*given, *[None] * 8]
    x, weights, recurrent, bias, lengths, first, state, peepholes = whole[:8]
    if x is None or weights is None or recurrent is None:
        raise OperationFailedError(f"{name} without sequences or weights")
    is_batch_first = bool(attributes.get("layout", 0))
    if is_batch_first:
        x = x.transpose(1, 0, 2)
        first, state = (s if s is None else s.swapaxes(0, 1) for s in (first, state))
    steps, batch, _ = x.shape
    count, rows, units = recurrent.shape
    direction = bytes(attributes.get("direction", b"forward")).decode()
    if rows != _GATES[name] * units or count != 1 + (direction == "bidirectional"):
        raise OperationFailedError(f"{name} with weights {recurrent.shape}")
    ends = np.full(batch, steps) if lengths is None else lengths.reshape(-1)
    if len(ends) != batch or ends.min() < 0 or ends.max() > steps:
        raise OperationFailedError(f"sequences of lengths {ends[:8].tolist()}")
    functions = _functions(name, attributes, count)
    limit = attributes.get("clip")
    clip: _Function = (
        (lambda v: v) if limit is None else (lambda v: np.clip(v, -limit, limit))
    )
    zeros = np.zeros((count, batch, units), x.dtype)
    hidden = np.array(zeros if first is None else first, x.dtype)
    cells = np.array(zeros if state is None else state, x.dtype)
    sequence = np.zeros((steps, count, batch, units), x.dtype)
    for place in range(count):
        both = np.zeros(2 * rows, x.dtype) if bias is None else bias[place]
        ties = np.zeros(3 * units, x.dtype) if peepholes is None else peepholes[place]
        cell = _Cell(
            *(recurrent[place], both[rows:], ties, functions[place], clip),
            bool(attributes.get("input_forget", 0)),
            bool(attributes.get("linear_before_reset", 0)),
        )
        gates = x @ weights[place].T + both[:rows]
        is_backwards = place == 1 or direction == "reverse"
        h, c = hidden[place], cells[place]
        for step in range(steps):
            at = np.full(batch, step)
            if is_backwards:
                at = ends - 1 - step
            runs = (step < ends)[:, None]
            own = np.arange(batch)
            new_h, new_c = _STEPS[name](cell, gates[at, own], h, c)
            h, c = np.where(runs, new_h, h), np.where(runs, new_c, c)
            kept = runs[:, 0]
            sequence[at[kept], place, own[kept]] = h[kept]
            yield
        hidden[place], cells[place] = h, c
    results = [sequence, hidden, cells]
    if is_batch_first:
        results = [
            sequence.transpose(2, 0, 1, 3),
            *(s.swapaxes(0, 1) for s in results[1:]),
        ]
    return results if name == "LSTM" else results[:2]


def _functions(
    name: str, attributes: Mapping[str, Any], count: int
) -> list[list[_Function]]:
    names = attributes.get("activations")
    known = [bytes(each).decode().lower() for each in names or ()]
    known = known or [each.lower() for each in _ACTIVATIONS[name]] * count
    size = len(_ACTIVATIONS[name])
    if len(known) < size * count or not set(known) <= _FUNCTIONS.keys():
        raise OperationFailedError(f"activations {known}")
    known = known[: size * count]  # the schema of RNN has two for one direction, too
    alphas = list(attributes.get("activation_alpha", ()))
    betas = list(attributes.get("activation_beta", ()))
    found: list[_Function] = []
    for place, each in enumerate(known):
        alpha, beta = _DEFAULTS.get(each, (0.0, 0.0))
        alpha = alphas[place] if place < len(alphas) else alpha
        beta = betas[place] if place < len(betas) else beta
        found.append(_bound(_FUNCTIONS[each], alpha, beta))
    return [found[place * size : (place + 1) * size] for place in range(count)]


def _bound(
    function: Callable[[Array, float, float], Array], alpha: float, beta: float
) -> _Function:
    return lambda x: function(x, alpha, beta).astype(x.dtype, copy=False)
