"""Models that benchmarks make: a tiny addition, and chains of operations.

None of them is trained. Weights are random, the same for the same seed.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

import asyncnn
from asyncnn import OperationType, hal
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.sliding_windows import SAME

LENGTH = 4
"""Floats in each vector of the addition."""

BEFORE = None
"""Stands for what came before the last value of a chain."""

_FLOAT = asyncnn.OperandType.TENSOR_FLOAT32
_NONE = hal.FusedActivationFunc.NONE
_SEED = 1
_WIDTH = 4
_numbers = count()


def tiny_addition() -> asyncnn.NamedModel:
    """Return the model that adds two vectors of four floats."""
    builder = asyncnn.ModelBuilder()
    vector = hal.Operand(_FLOAT, (LENGTH,))
    inputs = [builder.input(name, vector.type, vector.dimensions) for name in "xy"]
    inputs.append(builder.scalar(_NONE))
    builder.output(builder.operation(OperationType.ADD, inputs, vector), "sum")
    return builder.build()


def chain(
    shape: Shape, steps: Iterable[tuple[Any, ...]], result: Shape | None = None
) -> asyncnn.NamedModel:
    """Return the model of steps, each on the value of the one before.

    A step is the type of an operation and its other inputs: arrays, scalars or
    `BEFORE`. All values have the shape of the input ``x``, or else of the ``result``.
    """
    builder = asyncnn.ModelBuilder()
    operand = hal.Operand(_FLOAT, result or shape)
    value = before = builder.input("x", _FLOAT, shape)
    for type_, *others in steps:
        inputs = [value]
        for each in others:
            if each is BEFORE:
                inputs.append(before)
            else:
                is_array = isinstance(each, np.ndarray)
                add = builder.constant if is_array else builder.scalar
                inputs.append(add(each))
        before, value = value, builder.operation(type_, inputs, operand)
    builder.output(value, "y")
    return builder.build()


def cutting_model(taken: Shape, given: Shape) -> asyncnn.NamedModel:
    """Return the model that takes floats of one shape and cuts another out of them."""
    begin, size = np.zeros(len(taken), np.int32), np.array(given, np.int32)
    return chain(taken, [(OperationType.SLICE, begin, size)], given)


def wide_model(shape: Shape) -> asyncnn.NamedModel:
    """Return a model of one RELU."""
    return chain(shape, [(OperationType.RELU,)])


def long_model(operations: int, number: int | None = None) -> asyncnn.NamedModel:
    """Return a chain of additions, activations, products and dense layers.

    Every operation has constants of its own, as in imported models. Another ``number``
    makes a model that has nothing in common with this one but its form; None makes
    one that is like no other.
    """
    rng = np.random.default_rng(next(_numbers) if number is None else number)

    def steps() -> Iterator[tuple[Any, ...]]:
        for index in range(operations):
            match index % 4:
                case 0:
                    yield OperationType.ADD, rng.random((1, _WIDTH), np.float32), _NONE
                case 1:
                    yield (OperationType.LOGISTIC,)
                case 2:
                    yield OperationType.MUL, BEFORE, _NONE
                case _:
                    shapes = (_WIDTH, _WIDTH), (_WIDTH,)
                    arrays = [rng.random(shape, np.float32) for shape in shapes]
                    yield OperationType.FULLY_CONNECTED, *arrays, _NONE

    return chain((1, _WIDTH), steps())


def long_models_input() -> Array:
    """Return an input of `long_model`."""
    return np.ones((1, _WIDTH), np.float32)


class Layers(NamedTuple):
    """A model of equal layers, each an operation with random weights of its own."""

    type: OperationType
    layers: int
    shape: Shape
    filters: Shape
    window: tuple[int, ...] = ()

    def build(self) -> asyncnn.NamedModel:
        """Return the model, with random weights."""
        rng = np.random.default_rng(_SEED)
        bias = np.zeros(self.filters[0], np.float32)
        spread = math.prod(self.filters[1:]) ** -0.5
        relu = hal.FusedActivationFunc.RELU
        weights = (rng.normal(0, spread, self.filters) for _ in range(self.layers))
        return chain(
            self.shape,
            [(self.type, w.astype("f4"), bias, *self.window, relu) for w in weights],
        )

    def input(self) -> Array:
        """Return a value for the input."""
        return np.random.default_rng(_SEED).normal(size=self.shape).astype(np.float32)


def dense(layers: int, width: int, rows: int) -> Layers:
    """Return dense layers of ``width``, for ``rows`` vectors at once."""
    type_ = OperationType.FULLY_CONNECTED
    return Layers(type_, layers, (rows, width), (width, width))


def convolutions(layers: int, side: int, channels: int = 64) -> Layers:
    """Return convolutions of 3 x 3 over an image, as detectors have."""
    type_, shape = OperationType.CONV_2D, (1, side, side, channels)
    return Layers(type_, layers, shape, (channels, 3, 3, channels), (SAME, 1, 1))
