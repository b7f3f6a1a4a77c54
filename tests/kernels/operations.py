"""Builds operations out of arrays and runs their kernels under harsh conditions.

Inputs are read-only and unaligned, scratch memory and outputs begin as garbage, and
every kernel runs twice in the same workspace.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from asyncnn import kernels
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperandType, OperationType, SymmPerChannelQuantParams

F32 = OperandType.TENSOR_FLOAT32
F16 = OperandType.TENSOR_FLOAT16
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL

TOLERANCE = {F32: {"rtol": 1e-6, "atol": 1e-5}, F16: {"rtol": 2e-3, "atol": 1e-3}}
"""How far a float kernel may be from the float64 formula."""


class Argument(NamedTuple):
    """An operand and the array that an execution passes for it."""

    operand: BoundOperand
    array: Array


def tensor(
    type_: OperandType,
    value: ArrayLike,
    scale: float = 0.0,
    zero_point: int = 0,
    channel_quant: SymmPerChannelQuantParams | None = None,
) -> Argument:
    """Return a tensor whose value only the execution tells."""
    array = np.asarray(value, DTYPES[type_])
    operand = BoundOperand(type_, array.shape, scale, zero_point, channel_quant)
    return Argument(operand, array)


def constant(
    type_: OperandType, value: ArrayLike, scale: float = 0.0, zero_point: int = 0
) -> Argument:
    """Return a tensor or scalar that is known at preparation."""
    array = np.asarray(value, DTYPES[type_])
    operand = BoundOperand(type_, array.shape, scale, zero_point, value=array)
    return Argument(operand, array)


def result(
    type_: OperandType, shape: Shape, scale: float = 0.0, zero_point: int = 0
) -> BoundOperand:
    """Return the description of an output."""
    return BoundOperand(type_, tuple(shape), scale, zero_point)


Given = Argument | int | float | np.float16 | None


def _argument(given: Given) -> Argument | None:
    if given is None or isinstance(given, Argument):
        return given
    types = {
        bool: OperandType.BOOL,
        int: OperandType.INT32,
        float: OperandType.FLOAT32,
        np.float16: OperandType.FLOAT16,
    }
    return constant(types[type(given)], given)


def _unaligned(array: Array) -> Array:
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    copy = memory.view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def _garbage(shape: Shape, dtype: DTypeLike) -> Array:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.full(size, 0xA5, np.uint8).view(dtype).reshape(shape)


class PoisonedScratch:
    """Scratch memory that never happens to hold zeros."""

    def transient(self, shape: Shape, dtype: DTypeLike) -> Array:
        return _garbage(shape, dtype)

    def persistent(self, shape: Shape, dtype: DTypeLike, fill: float = 0) -> Array:
        return np.full(shape, fill, dtype)


def bind(
    type_: OperationType, inputs: Sequence[Given], outputs: Sequence[BoundOperand]
) -> BoundOperation:
    """Return the operation on these operands."""
    arguments = map(_argument, inputs)
    operands = tuple(argument and argument.operand for argument in arguments)
    return BoundOperation(type_, operands, tuple(outputs))


def compute_all(
    type_: OperationType, inputs: Sequence[Given], outputs: Sequence[BoundOperand]
) -> list[Array]:
    """Prepare the kernel, run it twice and return the outputs."""
    run = kernels.prepare(bind(type_, inputs, outputs))(PoisonedScratch())
    arguments = [_argument(given) for given in inputs]
    arrays = [argument and _unaligned(argument.array) for argument in arguments]
    with np.errstate(all="ignore"):
        first, second = (_run_once(run, arrays, outputs) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, two, "a second run differs")
    return first


def _run_once(run, arrays, outputs) -> list[Array]:
    filled = [_garbage(output.shape, output.dtype) for output in outputs]
    run(arrays, filled)
    return filled


def compute(
    type_: OperationType, inputs: Sequence[Given], output: BoundOperand
) -> Array:
    """Return the only output of the kernel."""
    return compute_all(type_, inputs, [output])[0]


def random_values(
    type_: OperandType, shape: Shape, seed: int = 0, low: float = -4, high: float = 4
) -> Array:
    """Return an array of the type's dtype: floats in a range, codes over all bytes."""
    generator = np.random.default_rng(seed)
    dtype = DTYPES[type_]
    if dtype.kind == "f":
        return generator.uniform(low, high, shape).astype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype == np.int32:
        return generator.integers(-1000, 1000, shape, dtype)
    return generator.integers(*_limits(dtype), shape, dtype, endpoint=True)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def clamp_to(type_: OperandType, steps: ArrayLike) -> Array:
    """Return integers clamped to the codes of a quantised type."""
    return np.clip(np.asarray(steps), *_limits(DTYPES[type_])).astype(DTYPES[type_])


def half_away(values: ArrayLike) -> Array:
    """Round to the nearest integer, halves away from zero, without float tricks."""
    values = np.asarray(values, np.float64)
    return np.sign(values) * np.floor(np.abs(values) + 0.5)
