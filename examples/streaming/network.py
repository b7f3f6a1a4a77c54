"""The recurrent network in NumPy, forward and backward through time, for training.

Weights lie as the HAL has them, so that `models` uses them as they are. Sequences are
float32 [time, batch, features].
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framing import CLASSES, Floats
from models import FEATURES, GATES, UNITS, Weights


class _Tape(NamedTuple):
    """What the way back needs of the way forth; arrays [time, batch, ...]."""

    gates: Floats
    """After their activations, [time, batch, 4, units]."""
    cells: Floats
    """[time + 1, batch, units], the first one zero."""
    hidden: Floats
    """[time + 1, batch, units], the first one zero."""


def new_weights(rng: np.random.Generator) -> Weights:
    """Draw weights; the forget gate starts open."""
    bias = np.zeros((len(GATES), UNITS), np.float32)
    bias[GATES.index("forget")] = 1
    return Weights(
        _random(rng, (len(GATES), UNITS, FEATURES)),
        _random(rng, (len(GATES), UNITS, UNITS)),
        bias,
        _random(rng, (CLASSES, UNITS)),
        np.zeros(CLASSES, np.float32),
    )


def logits(weights: Weights, x: Floats) -> Floats:
    """Return one logit for each class, [time, batch, 17]."""
    hidden = _forward(weights, x).hidden[1:]
    return np.asarray(hidden @ weights.decision.T + weights.decision_bias)


def gradients(
    weights: Weights, x: Floats, labels: NDArray[np.integer[Any]]
) -> tuple[float, Weights]:
    """Return the mean cross entropy over all frames, and its gradients."""
    tape = _forward(weights, x)
    hidden = tape.hidden[1:]
    scores = hidden @ weights.decision.T + weights.decision_bias
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    dscores = powers / powers.sum(-1, keepdims=True)
    time, batch = np.indices(labels.shape)
    loss = -float(np.log(dscores[time, batch, labels] + 1e-9).mean())
    dscores[time, batch, labels] -= 1
    dscores /= labels.size
    return loss, _through_time(
        weights,
        x,
        tape,
        dscores @ weights.decision,
        ddecision=np.tensordot(dscores, hidden, ([0, 1], [0, 1])),
        ddecision_bias=dscores.sum((0, 1)),
    )


def _forward(weights: Weights, x: Floats) -> _Tape:
    time, batch, _ = x.shape
    gates = x @ _flat(weights.input).T + weights.bias.ravel()
    cells = np.zeros((time + 1, batch, UNITS), x.dtype)
    hidden = np.zeros_like(cells)
    back = _flat(weights.recurrent).T
    for step in range(time):
        now = gates[step]
        now += hidden[step] @ back
        now[:] = _activate(now.reshape(batch, len(GATES), UNITS)).reshape(now.shape)
        i, f, g, o = np.split(now, len(GATES), 1)
        cells[step + 1] = f * cells[step] + i * g
        hidden[step + 1] = o * np.tanh(cells[step + 1])
    return _Tape(gates.reshape(time, batch, len(GATES), UNITS), cells, hidden)


def _activate(gates: Floats) -> Floats:
    """Apply the sigmoid, and tanh to the cell gate, to [batch, 4, units]."""
    y: Floats = 0.5 + 0.5 * np.tanh(0.5 * gates)
    cell = GATES.index("cell")
    y[:, cell] = np.tanh(gates[:, cell])
    return y


def _through_time(
    weights: Weights,
    x: Floats,
    tape: _Tape,
    dhidden: Floats,
    *,
    ddecision: Floats,
    ddecision_bias: Floats,
) -> Weights:
    time, batch, _ = x.shape
    dgates = np.empty_like(tape.gates)
    dcell = np.zeros((batch, UNITS), x.dtype)
    dnext = np.zeros((batch, UNITS), x.dtype)
    forth = _flat(weights.recurrent)
    for step in reversed(range(time)):
        i, f, g, o = np.moveaxis(tape.gates[step], 1, 0)
        squashed = np.tanh(tape.cells[step + 1])
        dh = dhidden[step] + dnext
        dcell += dh * o * (1 - squashed**2)
        parts = (
            dcell * g * i * (1 - i),
            dcell * tape.cells[step] * f * (1 - f),
            dcell * i * (1 - g**2),
            dh * squashed * o * (1 - o),
        )
        dgates[step] = np.stack(parts, 1)
        dcell *= f
        dnext = dgates[step].reshape(batch, -1) @ forth
    axes = ([0, 1], [0, 1])
    return Weights(
        np.tensordot(dgates, x, axes),
        np.tensordot(dgates, tape.hidden[:-1], axes),
        dgates.sum((0, 1)),
        ddecision,
        ddecision_bias,
    )


def _flat(gates: Floats) -> Floats:
    return gates.reshape(-1, gates.shape[-1])


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
