"""The models and inputs that hold a loop longest."""

from collections.abc import Callable

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

_F32 = OperandType.TENSOR_FLOAT32
_WIDTH = 4
_SHAPE = (1, _WIDTH)
_COLUMNS = 4096
_NONE = FusedActivationFunc.NONE


class Sizes(msgspec.Struct, frozen=True):
    """How large they are."""

    operations: int = 20_000
    input_bytes: int = 64 * 2**20

    @property
    def input_shape(self) -> tuple[int, int]:
        """Shape of the large inputs, of float32."""
        return self.input_bytes // (4 * _COLUMNS), _COLUMNS


def long_model(operations: int, number: int) -> NamedModel:
    """Return a chain of additions, activations, products and dense layers.

    Every operation has constants of its own, as those of imported models do. Another
    ``number`` makes a model that has nothing in common with this one but its form.
    """
    builder = ModelBuilder()
    rng = np.random.default_rng(number)
    value = before = builder.input("x", _F32, _SHAPE)
    for index in range(operations):
        before, value = value, _add_step(builder, rng, index % 4, value, before)
    builder.output(value, "y")
    return builder.build()


def _add_step(
    builder: ModelBuilder, rng: np.random.Generator, kind: int, value: int, before: int
) -> int:
    result = Operand(_F32, _SHAPE)
    if kind == 0:
        offset = builder.constant(rng.random(_SHAPE, np.float32))
        inputs = [value, offset, builder.scalar(_NONE)]
        return builder.operation(OperationType.ADD, inputs, result)
    if kind == 1:
        return builder.operation(OperationType.LOGISTIC, [value], result)
    if kind == 2:
        inputs = [value, before, builder.scalar(_NONE)]
        return builder.operation(OperationType.MUL, inputs, result)
    weights = builder.constant(rng.random((_WIDTH, _WIDTH), np.float32))
    bias = builder.constant(rng.random(_WIDTH, np.float32))
    inputs = [value, weights, bias, builder.scalar(_NONE)]
    return builder.operation(OperationType.FULLY_CONNECTED, inputs, result)


def long_models_input() -> Array:
    """Return an input of `long_model`."""
    return np.ones(_SHAPE, np.float32)


def wide_model(shape: tuple[int, int]) -> NamedModel:
    """Return a model of one RELU."""
    builder = ModelBuilder()
    x = builder.input("x", _F32, shape)
    y = builder.operation(OperationType.RELU, [x], Operand(_F32, shape))
    builder.output(y, "y")
    return builder.build()


def contiguous(shape: tuple[int, int]) -> Array:
    """Return an array as NumPy makes it."""
    return np.ones(shape, np.float32)


def fortran_ordered(shape: tuple[int, int]) -> Array:
    """Return an array whose columns are contiguous."""
    return np.ones(shape, np.float32, order="F")


def strided(shape: tuple[int, int]) -> Array:
    """Return every second column of an array."""
    rows, columns = shape
    return np.ones((rows, 2 * columns), np.float32)[:, ::2]


def unaligned(shape: tuple[int, int]) -> Array:
    """Return an array at an odd address."""
    rows, columns = shape
    data = np.zeros(4 * rows * columns + 1, np.uint8)
    return data[1:].view(np.float32).reshape(shape)


def shared(shape: tuple[int, int]) -> Array:
    """Return an array that a driver process can use where it is."""
    array = shared_array(shape, np.float32)
    array[:] = 1
    return array


LAYOUTS: dict[str, Callable[[tuple[int, int]], Array]] = {
    "contiguous": contiguous,
    "fortran": fortran_ordered,
    "strided": strided,
    "unaligned": unaligned,
    "shared": shared,
}
"""Makers of large inputs, by layout."""
