"""Random LSTM cells with any of their optional parts; the formula in plain loops."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncnn.hal.types import OperandType
from tests.kernels.operations import F16, F32, Given, constant

GATES = INPUT, FORGET, CELL, OUTPUT = range(4)
TANH = 4

ACTIVATIONS = {
    0: lambda x: x,
    1: lambda x: max(x, 0.0),
    2: lambda x: min(max(x, -1.0), 1.0),
    3: lambda x: min(max(x, 0.0), 6.0),
    4: math.tanh,
    6: lambda x: 1 / (1 + math.exp(-x)),
}


class Parts(NamedTuple):
    """Which optional parts a cell has."""

    coupled: bool = False
    peephole: bool = False
    norm: bool = False
    projection: bool = False
    projection_bias: bool = True
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    activation: int = TANH


class Sizes(NamedTuple):
    """Lengths of a cell's axes; without a projection there are as many outputs."""

    inputs: int = 3
    units: int = 5
    outputs: int = 2


class Cell(NamedTuple):
    """Arrays in the order of the HAL's arguments, None where they are omitted."""

    weights: tuple[np.ndarray | None, ...]
    norm: tuple[np.ndarray | None, ...]
    parts: Parts
    sizes: Sizes

    def given(self, type_: OperandType = F32) -> list[Given]:
        """Return the 17 inputs from the first weights to the projection bias."""
        return [None if w is None else constant(type_, w) for w in self.weights]

    def given_norm(self, type_: OperandType = F32) -> list[Given]:
        """Return the four inputs of layer normalisation."""
        return [None if w is None else constant(type_, w) for w in self.norm]

    def scalars(self, type_: OperandType = F32) -> list[Given]:
        """Return activation and clips."""
        real = np.float16 if type_ is F16 else float
        clips = self.parts.cell_clip, self.parts.projection_clip
        return [self.parts.activation, *map(real, clips)]


PLAIN = Parts()
SMALL = Sizes()


def random_cell(parts: Parts = PLAIN, sizes: Sizes = SMALL, seed: int = 0) -> Cell:
    """Return a cell whose values have a float16."""
    generator = np.random.default_rng(seed)
    inputs, units, outputs = sizes
    if not parts.projection:
        outputs = units

    def values(present, *shape):
        if not present:
            return None
        return generator.normal(0, 0.6, shape).astype(np.float16).astype(np.float32)

    own = [gate != INPUT or not parts.coupled for gate in GATES]
    weights = (
        *(values(present, units, inputs) for present in own),
        *(values(present, units, outputs) for present in own),
        *(values(parts.peephole and own[gate], units) for gate in (0, 1, 3)),
        *(values(present, units) for present in own),
        values(parts.projection, outputs, units),
        values(parts.projection and parts.projection_bias, outputs),
    )
    norm = tuple(values(parts.norm and present, units) for present in own)
    return Cell(weights, norm, parts, Sizes(inputs, units, outputs))


def random_states(cell: Cell, batches: int, seed: int = 0) -> list[np.ndarray]:
    """Return an output [batches, outputs] and a cell state [batches, units]."""
    generator = np.random.default_rng(seed + 1000)
    return [
        generator.uniform(-1, 1, (batches, length)).astype(np.float16)
        for length in (cell.sizes.outputs, cell.sizes.units)
    ]


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(float(a) * float(b) for a, b in zip(first, second, strict=True))


def _clip(value: float, clip: float) -> float:
    return min(max(value, -clip), clip) if clip else value


def _gate(cell: Cell, gate: int, x, h, memory) -> list[float]:
    """Return what one gate is before its activation, for every unit."""
    units = range(cell.sizes.units)
    peephole = None if gate == CELL else cell.weights[{0: 8, 1: 9, 3: 10}[gate]]
    bias, norm = cell.weights[11 + gate], cell.norm[gate]
    sums = [
        _dot(cell.weights[gate][u], x)
        + _dot(cell.weights[4 + gate][u], h)
        + (0 if peephole is None else float(peephole[u]) * memory[u])
        for u in units
    ]
    if norm is not None:
        mean = math.fsum(sums) / len(sums)
        variance = math.fsum((s - mean) ** 2 for s in sums) / len(sums)
        root = math.sqrt(variance + 1e-8)
        sums = [(sums[u] - mean) / root * float(norm[u]) for u in units]
    return [sums[u] + float(bias[u]) for u in units]


def _step_of_one(cell: Cell, x, h, c) -> tuple[list[float], list[float]]:
    parts, units = cell.parts, range(cell.sizes.units)
    act = ACTIVATIONS[parts.activation]
    c = [float(value) for value in c]
    forget = [_logistic(s) for s in _gate(cell, FORGET, x, h, c)]
    if parts.coupled:
        enter = [1 - f for f in forget]
    else:
        enter = [_logistic(s) for s in _gate(cell, INPUT, x, h, c)]
    candidate = [act(s) for s in _gate(cell, CELL, x, h, c)]
    new = [
        _clip(forget[u] * c[u] + enter[u] * candidate[u], parts.cell_clip)
        for u in units
    ]
    leave = [_logistic(s) for s in _gate(cell, OUTPUT, x, h, new)]
    hidden = [leave[u] * act(new[u]) for u in units]
    if not parts.projection:
        return hidden, new
    bias = cell.weights[16]
    projected = [
        _dot(row, hidden) + (0 if bias is None else float(bias[o]))
        for o, row in enumerate(cell.weights[15])
    ]
    return [_clip(value, parts.projection_clip) for value in projected], new


def expected_step(cell: Cell, x, h, c) -> tuple[np.ndarray, np.ndarray]:
    """Return output and cell state [batches, n] after one step, in float64."""
    steps = [_step_of_one(cell, *row) for row in zip(x, h, c, strict=True)]
    return (
        np.array([step[0] for step in steps], np.float64).reshape(len(x), -1),
        np.array([step[1] for step in steps], np.float64).reshape(len(x), -1),
    )


def expected_sequence(cell: Cell, sequence, h, c) -> tuple[np.ndarray, ...]:
    """Return the outputs [steps, batches, n] and the last states."""
    outputs = []
    for x in sequence:
        h, c = expected_step(cell, x, h, c)
        outputs.append(h)
    return np.array(outputs), h, c
