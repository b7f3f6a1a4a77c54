"""Kernels in C, where they were built: of small arrays, NumPy's calls are all the time.

``_compiled.c`` has them. They compute what their twins in NumPy do, bit for bit, and
without the interpreter lock, so that a plan of them may be a job.
``ASYNCNN_PURE_KERNELS=1`` asks for the twins, which also compute what those refuse.
"""

import math
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
from asyncnn.lazy import compiled_module

built: Any = compiled_module("asyncnn.kernels._compiled", "ASYNCNN_PURE_KERNELS")
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

_MOST_BYTES = 1 << 16
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
    if all(operation.input(index).value is not None for index in reads):
        return None  # It runs once, in less time than this here takes.
    arrays = [np.empty(each.require_shape(), each.dtype) for each in operands]
    inputs: list[Any] = [None] * len(operation.inputs)
    for index, array in zip(reads, arrays, strict=False):
        inputs[index] = array
    pairs = tuple(copies(inputs, arrays[len(reads) :]))
    try:
        kernel = built.Moves(tuple(reads), tuple(arrays), pairs)
    except ValueError:
        return None
    return native(kernel, operation, reads)
