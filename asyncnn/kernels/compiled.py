"""Kernels in C, where they were built: of small arrays, NumPy's calls are all the time.

``_compiled.c`` has them. They compute what their twins in NumPy do, bit for bit, and
without the interpreter lock, so that a plan of them may be a job.
``ASYNCNN_PURE_KERNELS=1`` asks for the twins, which also compute what those refuse.
"""

import importlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.kernels.kernel import (
    Inputs,
    NativeArray,
    NativeKernel,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
)


def _compiled() -> Any:
    if os.environ.get("ASYNCNN_PURE_KERNELS") == "1":
        return None
    try:
        return importlib.import_module("asyncnn.kernels._compiled")
    except ImportError:  # there was no compiler
        return None


built = _compiled()
"""The module of compiled kernels; None without it."""


def native(
    kernel: Any, operation: BoundOperation, reads: Iterable[int]
) -> NativeKernel:
    """Return a kernel of the module, which reads those inputs, as a plan has it."""

    def array(operand: BoundOperand) -> NativeArray:
        return NativeArray(operand.dtype, _nbytes(operand))

    reads = tuple(reads)
    return NativeKernel(
        built.FUNCTION,
        kernel.address,
        reads,
        tuple([array(operation.input(index)) for index in reads]),
        tuple(map(array, operation.outputs)),
        kernel.run,
    )


def _nbytes(operand: BoundOperand) -> int:
    return math.prod(operand.require_shape()) * operand.dtype.itemsize


AND, OR, NOT = range(3)


def logic(kind: int, otherwise: Prepare) -> Prepare:
    """Return the kernel of booleans of one shape; ``otherwise`` has all others."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        shape = operation.outputs[0].require_shape()
        reads = range(len(operation.inputs))
        is_plain = all(operation.shape(index) == shape for index in reads)
        if built is None or not is_plain or not math.prod(shape):
            return otherwise(operation)
        return native(built.Logic(kind, math.prod(shape)), operation, reads)

    return prepare


Copies: TypeAlias = Callable[[Inputs, Outputs], Iterable[tuple[Array, Array]]]
"""Returns views of outputs, each with a view of an input to copy there."""

_AXES = 4
_LENGTHS = slice(5, 5 + _AXES)
"""What a ``Move`` has of how often it copies."""

_MOST_BYTES = 1 << 16
_MOST_CHUNKS = 1 << 10
"""NumPy copies more in less time."""


def moving(
    operation: BoundOperation, reads: Sequence[int], copies: Copies
) -> PreparedKernel:
    """Return the kernel that copies from inputs ``reads`` to the outputs."""

    def run(inputs: Inputs, outputs: Outputs) -> None:
        for target, source in copies(inputs, outputs):
            np.copyto(target, source)

    return moves_of(operation, reads, copies) or stateless(run)


def moves_of(
    operation: BoundOperation, reads: Sequence[int], copies: Copies
) -> NativeKernel | None:
    """Return the compiled kernel; None where there is none, or NumPy is as fast.

    ``copies`` is called with arrays that nobody has filled.
    """
    operands = [*map(operation.input, reads), *operation.outputs]
    sizes = [_nbytes(operand) for operand in operands]
    if built is None or max(sizes) > _MOST_BYTES or not min(sizes):
        return None
    arrays = [np.empty(each.require_shape(), each.dtype) for each in operands]
    numbers = {id(array): number for number, array in enumerate(arrays)}
    inputs: list[Any] = [None] * len(operation.inputs)
    for index, array in zip(reads, arrays, strict=False):
        inputs[index] = array
    results = arrays[len(reads) :]
    try:
        moves = [_move(numbers, *pair) for pair in copies(inputs, results)]
        table = np.array(moves, np.int64)
        if table[:, _LENGTHS].prod(axis=1).sum() > _MOST_CHUNKS:
            return None
        kernel = built.Moves(tuple(reads), tuple(sizes), len(results), table)
    except ValueError:
        return None
    return native(kernel, operation, reads)


def _move(numbers: dict[int, int], target: Array, source: Array) -> list[int]:
    """Return a ``Move`` of the C file."""
    if source.dtype != target.dtype:
        raise ValueError("elements are converted")
    begin = _place(numbers, source)
    source = np.broadcast_to(source, target.shape)
    width = target.itemsize
    axes: list[tuple[int, int, int]] = []
    for axis in zip(target.shape, source.strides, target.strides, strict=True):
        length, *strides = axis
        if length == 1:
            continue
        if axes and axes[-1][1:] == tuple(length * stride for stride in strides):
            length *= axes.pop()[0]
        axes.append((length, strides[0], strides[1]))
    if axes and axes[-1][1:] == (width, width):
        width *= axes.pop()[0]
    if len(axes) > _AXES:
        raise ValueError("too many axes")
    axes = [(1, 0, 0)] * (_AXES - len(axes)) + axes
    number, offset = begin
    to_number, to_offset = _place(numbers, target)
    first = [number, to_number, offset, to_offset, width]
    return first + [each for column in zip(*axes, strict=True) for each in column]


def _place(numbers: dict[int, int], view: Array) -> tuple[int, int]:
    """Return the number of the array that a view is of, and its offset there."""
    owner = view if view.base is None else view.base
    number = numbers.get(id(owner))
    if number is None:
        raise ValueError("it is no view of an array")
    return number, _address(view) - _address(owner)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
