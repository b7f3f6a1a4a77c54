"""Random recurrent layers, float and integer, as TFLite operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.runtime.tflite.files import Op, T

F32, I8, I16, I32 = np.float32, np.int8, np.int16, np.int32

TANH = 4
DATA_SCALE, NORM_SCALE, STATE_SCALE = 0.05, 2.0**-15, 2.0**-11


class Reals:
    """Draws the constants of a float layer and describes its other tensors."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def data(self, shape: Sequence[int]) -> T:
        return T(F32, shape)

    def result(self, shape: Sequence[int], *, variable: bool = False) -> T:
        return T(F32, shape, variable=variable)

    def memory(self, shape: Sequence[int]) -> T:
        return T(F32, shape, variable=True)

    def matrix(self, rows: int, columns: int) -> T:
        return self.vector(rows, columns)

    def bias(self, units: int, *, normalised: bool = False) -> T:
        return self.vector(units)

    def norm(self, units: int) -> T:
        return T.constant(self._rng.uniform(0.3, 1, units), F32)

    def vector(self, *shape: int) -> T:
        return T.constant(self._rng.uniform(-0.5, 0.5, shape), F32)

    def intermediates(self, *, normalised: bool, projected: bool) -> list[T]:
        return []


class Integers:
    """Draws and describes the same as `Reals`, quantised as integer layers are.

    ``zero_point`` is that of the output, ``hidden`` that of what is projected to it.
    """

    def __init__(self, seed: int = 0, *, zero_point: int = 0, hidden: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._output = {"scale": (1 / 110,), "zero_point": (zero_point,)}
        self._hidden = {"scale": (1 / 127,), "zero_point": (hidden,)}

    def data(self, shape: Sequence[int]) -> T:
        return T(I8, shape, scale=(DATA_SCALE,), zero_point=(-7,))

    def result(self, shape: Sequence[int], *, variable: bool = False) -> T:
        return T(I8, shape, variable=variable, **self._output)

    def memory(self, shape: Sequence[int]) -> T:
        return T(I16, shape, scale=(STATE_SCALE,), variable=True)

    def matrix(self, rows: int, columns: int) -> T:
        codes = self._rng.integers(-127, 128, (rows, columns))
        return T.constant(codes, I8, scale=(self._rng.uniform(0.003, 0.006),))

    def bias(self, units: int, *, normalised: bool = False) -> T:
        scale = NORM_SCALE / 2**10 if normalised else DATA_SCALE * 0.004
        return T.constant(self._rng.uniform(-0.5, 0.5, units) / scale, I32)

    def norm(self, units: int) -> T:
        codes = self._rng.integers(9000, 32767, units)
        return T.constant(codes, I16, scale=(NORM_SCALE,))

    def vector(self, units: int) -> T:
        codes = self._rng.integers(-32767, 32768, units)
        return T.constant(codes, I16, scale=(2.0**-16,))

    def intermediates(self, *, normalised: bool, projected: bool) -> list[T]:
        gate = T(I16, (0,), scale=(2.0**-9 if normalised else 2.0**-12,))
        hidden = self._hidden if projected else self._output
        return [gate, gate, gate, gate, T(I8, (0,), **hidden)]


@dataclass(frozen=True)
class Lstm:
    """An LSTM layer; with a projection there are ``outputs``, else as many as units."""

    outputs: int = 0
    coupled: bool = False
    peephole: bool = False
    normalised: bool = False
    projection_bias: bool = False
    inputs: int = 4
    units: int = 6

    def sequence(
        self,
        draw: Reals | Integers,
        steps: int = 3,
        batch: int = 1,
        *,
        time_major: bool = False,
        **options: Any,
    ) -> Op:
        """Return the layer along a sequence."""
        outer = (steps, batch) if time_major else (batch, steps)
        return Op(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            [draw.data((*outer, self.inputs)), *self.cell(draw, batch)],
            [draw.result((*outer, self._width))],
            "UnidirectionalSequenceLSTMOptions",
            {"FusedActivationFunction": TANH, "TimeMajor": time_major, **options},
            self._intermediates(draw),
        )

    def step(self, draw: Reals | Integers, batch: int = 1, **options: Any) -> Op:
        """Return a single step of the layer."""
        return Op(
            "LSTM",
            [draw.data((batch, self.inputs)), *self.cell(draw, batch)],
            [draw.result((batch, self._width))],
            "LSTMOptions",
            {"FusedActivationFunction": TANH, **options},
            self._intermediates(draw),
        )

    @property
    def _width(self) -> int:
        return self.outputs or self.units

    def cell(self, draw: Reals | Integers, batch: int) -> list[T | None]:
        """Return the inputs after the first one."""
        tensors: list[T | None] = [None] * 24
        for gate in range(1 if self.coupled else 0, 4):
            tensors[1 + gate] = draw.matrix(self.units, self.inputs)
            tensors[5 + gate] = draw.matrix(self.units, self._width)
            tensors[12 + gate] = draw.bias(self.units, normalised=self.normalised)
            if self.normalised:
                tensors[20 + gate] = draw.norm(self.units)
        if self.peephole:
            for index in range(10 if self.coupled else 9, 12):
                tensors[index] = draw.vector(self.units)
        if self.outputs:
            tensors[16] = draw.matrix(self.outputs, self.units)
        if self.projection_bias:
            tensors[17] = draw.bias(self.outputs)
        tensors[18] = draw.result((batch, self._width), variable=True)
        tensors[19] = draw.memory((batch, self.units))
        return tensors[1:]

    def _intermediates(self, draw: Reals | Integers) -> list[T]:
        return draw.intermediates(
            normalised=self.normalised, projected=bool(self.outputs)
        )
