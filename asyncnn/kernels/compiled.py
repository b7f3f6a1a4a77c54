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

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.kernels.kernel import (
    Inputs,
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


def native(kernel: Any, reads: Iterable[int]) -> NativeKernel:
    """Return a kernel of the module, which reads those inputs, as a plan has it."""
    return NativeKernel(built.FUNCTION, kernel.address, tuple(reads), kernel.run)


AND, OR, NOT = range(3)


def logic(kind: int, otherwise: Prepare) -> Prepare:
    """Return the kernel of booleans of one shape; ``otherwise`` has all others."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        shape = operation.outputs[0].require_shape()
        reads = range(len(operation.inputs))
        is_plain = all(operation.shape(index) == shape for index in reads)
        if built is None or not is_plain or not math.prod(shape):
            return otherwise(operation)
        return native(built.Logic(kind, math.prod(shape)), reads)

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
    results = [np.empty(each.require_shape(), each.dtype) for each in operation.outputs]
    size = sum(each.nbytes for each in results)
    if built is None or not 0 < size <= _MOST_BYTES:
        return None
    inputs: list[Any] = [None] * len(operation.inputs)
    for index in reads:
        inputs[index] = np.empty(operation.shape(index), operation.input(index).dtype)
    arrays = [inputs[index] for index in reads] + results
    try:
        moves = np.array(
            [_move(arrays, *pair) for pair in copies(inputs, results) if pair[0].size]
        )
        if moves[:, _LENGTHS].prod(axis=1).sum() > _MOST_CHUNKS:
            return None
        sizes = tuple(array.nbytes for array in arrays)
        kernel = built.Moves(tuple(reads), sizes, len(results), moves)
    except ValueError:
        return None
    return native(kernel, reads)


def _move(arrays: Sequence[Array], target: Array, source: Array) -> list[int]:
    """Return a ``Move`` of the C file."""
    if source.dtype != target.dtype:
        raise ValueError("elements are converted")
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
    number, offset = _place(arrays, source)
    to_number, to_offset = _place(arrays, target)
    begin = [number, to_number, offset, to_offset, width]
    return begin + [each for column in zip(*axes, strict=True) for each in column]


def _place(arrays: Sequence[Array], view: Array) -> tuple[int, int]:
    """Return the number of the array that a view is of, and its offset there."""
    address = _address(view)
    for number, array in enumerate(arrays):
        offset = address - _address(array)
        if 0 <= offset < array.nbytes:
            return number, offset
    raise ValueError("it is no view of an array")


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
