"""The three models a frame passes: features, recurrent, decision.

Each is built for a number of frames at a time: 1 in a stream, all of a recording in
training. Results are the same; the state goes from one run to the next.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from asyncnn import ModelBuilder, NamedModel, OperandType, OperationType
from asyncnn.hal.types import FusedActivationFunc, Operand
from framing import CLASSES, WINDOW, Floats
from synthesis import COLUMNS, RATE, ROWS

WEIGHTS = Path(__file__).parent / "weights.npz"

UNITS = 24

_BETWEEN = (655, 733, 811, 896, 1000, 1100, 1272, 1406, 1555, 1720)
_ELSEWHERE = (150, 350, 500, 2100, 2900, 3600)
_OVERTONES = tuple(2 * frequency for frequency in (*ROWS, *COLUMNS))
BANK = (*ROWS, *COLUMNS, *_BETWEEN, *_ELSEWHERE, *_OVERTONES)
"""Frequencies in Hz whose power is measured: the tones, and what tells talk apart."""

FEATURES = len(BANK) + 1
"""The powers, and that of all frequencies together."""

_FLOOR = 1e-8
"""Power of silence, relative to a sine wave of full scale."""

_F32 = OperandType.TENSOR_FLOAT32
_LINEAR = FusedActivationFunc.NONE
_TANH = 4
"""The number that recurrent operations give this activation."""


class Weights(NamedTuple):
    """What is trained: an LSTM and a linear layer; gates in the order of `GATES`."""

    input: Floats
    """[4, units, features]"""
    recurrent: Floats
    """[4, units, units]"""
    bias: Floats
    """[4, units]"""
    decision: Floats
    """[classes, units]"""
    decision_bias: Floats
    """[classes]"""


GATES = ("input", "forget", "cell", "output")
"""As the HAL orders them."""


def load_weights(path: Path = WEIGHTS) -> Weights:
    """Read what `train.py` has written."""
    with np.load(path) as arrays:
        return Weights(**arrays)


def features(frames: int = 1) -> NamedModel:
    """Return ``window`` [frames, 256] -> ``features`` [frames, 33].

    A bank of filters as a matrix (cosine and sine under a Hann window), squared and
    summed in pairs to powers, whose logarithms are scaled to about [-2, 2].
    """
    builder = ModelBuilder()
    window = builder.input("window", _F32, (frames, WINDOW))
    waves, pairs, envelope = _bank()
    amplitudes = _linear(builder, window, waves, 0.0, frames)
    powers = _linear(builder, _square(builder, amplitudes), pairs, _FLOOR, frames)
    loudness = _linear(builder, _square(builder, window), envelope, _FLOOR, frames)
    shape = Operand(_F32, (frames, FEATURES))
    joined = builder.operation(
        OperationType.CONCATENATION, [powers, loudness, builder.scalar(1)], shape
    )
    logarithms = builder.operation(OperationType.LOG, [joined], shape)
    x = _with_constant(builder, OperationType.ADD, logarithms, 10.0)
    x = _with_constant(builder, OperationType.MUL, x, 0.25)
    builder.output(x, "features")
    return builder.build()


def recurrent(weights: Weights, frames: int = 1) -> NamedModel:
    """Return ``features``, ``state``, ``cell`` -> ``hidden``, next state and cell.

    ``hidden`` is [frames, 1, 24]; the states, all [1, 24], start as zeros.
    """
    builder = ModelBuilder()
    x = builder.input("features", _F32, (frames, FEATURES))
    state = builder.input("state", _F32, (1, UNITS))
    cell = builder.input("cell", _F32, (1, UNITS))
    sequence = builder.operation(
        OperationType.RESHAPE,
        [x, builder.constant(np.array((frames, 1, FEATURES), np.int32))],
        Operand(_F32, (frames, 1, FEATURES)),
    )
    none = builder.omitted(_F32)
    constants = [
        [builder.constant(part) for part in array]
        for array in (weights.input, weights.recurrent, weights.bias)
    ]
    outputs = builder.operation(
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        [
            sequence,
            *constants[0],
            *constants[1],
            *[none] * 3,  # no peepholes
            *constants[2],
            *[none] * 2,  # no projection
            state,
            cell,
            builder.scalar(_TANH),
            *[builder.scalar(0.0)] * 2,  # no clipping
            builder.scalar(True),  # time first
            *[none] * 4,  # no layer normalisation
        ],
        [Operand(_F32, (frames, 1, UNITS)), *[Operand(_F32, (1, UNITS))] * 2],
    )
    for output, name in zip(
        outputs, ("hidden", "next_state", "next_cell"), strict=True
    ):
        builder.output(output, name)
    return builder.build()


def decision(weights: Weights, frames: int = 1) -> NamedModel:
    """Return ``hidden`` -> ``probabilities`` [frames, 17]: 16 keys, then silence."""
    builder = ModelBuilder()
    hidden = builder.input("hidden", _F32, (frames, 1, UNITS))
    logits = builder.operation(
        OperationType.FULLY_CONNECTED,
        [
            hidden,
            builder.constant(weights.decision),
            builder.constant(weights.decision_bias),
            builder.scalar(_LINEAR),
        ],
        Operand(_F32, (frames, CLASSES)),
    )
    probabilities = builder.operation(
        OperationType.SOFTMAX,
        [logits, builder.scalar(1.0)],
        Operand(_F32, (frames, CLASSES)),
    )
    builder.output(probabilities, "probabilities")
    return builder.build()


def _bank() -> tuple[Floats, Floats, Floats]:
    """Return waves [2 K, 256], which pairs to sum [K, 2 K], and weights [1, 256].

    A sine wave of amplitude 1 at a frequency of the bank has power 1.
    """
    hann = np.hanning(WINDOW + 1)[:-1]
    phases = 2 * np.pi * np.outer(BANK, np.arange(WINDOW)) / RATE
    waves = np.concatenate([np.cos(phases), np.sin(phases)]) * (2 * hann / hann.sum())
    pairs = np.tile(np.eye(len(BANK)), 2)
    envelope = 2 * hann**2 / (hann**2).sum()
    return (
        waves.astype(np.float32),
        pairs.astype(np.float32),
        envelope.astype(np.float32)[None],
    )


def _linear(
    builder: ModelBuilder, x: int, matrix: Floats, bias: float, frames: int
) -> int:
    inputs = [
        x,
        builder.constant(matrix),
        builder.constant(np.full(len(matrix), bias, np.float32)),
        builder.scalar(_LINEAR),
    ]
    return builder.operation(
        OperationType.FULLY_CONNECTED, inputs, Operand(_F32, (frames, len(matrix)))
    )


def _square(builder: ModelBuilder, x: int) -> int:
    return builder.operation(
        OperationType.MUL, [x, x, builder.scalar(_LINEAR)], builder.operand(x)
    )


def _with_constant(
    builder: ModelBuilder, type_: OperationType, x: int, value: float
) -> int:
    constant = builder.constant(np.array([value], np.float32))
    return builder.operation(
        type_, [x, constant, builder.scalar(_LINEAR)], builder.operand(x)
    )
