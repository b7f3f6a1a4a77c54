"""What stored values stand for: float16 operands, and codes of quantised tensors.

Any function of 8-bit codes is evaluated once for every code. A unary function has a
table of 256 entries and costs under a nanosecond per element; of many elements two are
looked up at once, in all 65,536 pairs. A function of two codes has as many entries,
whose index is built in 16 bits.

float16 is widened to float32, computed, and rounded once. A real value is stored as
``round(real / scale) + zero_point``, rounded half away from zero *before* the zero
point is added, then clamped to the type. So a signed tensor gives the same result as
the unsigned one whose zero point is 128 higher.

Source: 1.3/types.hal (QUANTIZE, DEQUANTIZE).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperandType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    PreparedKernel,
    Run,
    Scratch,
    TiledRun,
    stateless,
    tiles_of,
    with_scratch,
)


def widen_float16(operation: BoundOperation, kernel: PreparedKernel) -> PreparedKernel:
    """Return ``kernel`` such that every float16 tensor reaches it as float32.

    Results are rounded to float16 once, at the end. Other operands pass unchanged;
    without float16 tensors the result is ``kernel`` itself.
    """
    if not any(map(_is_float16, operation.inputs + operation.outputs)):
        return kernel

    def instantiate(scratch: Scratch) -> Run:
        wide_inputs = _float32_copies(operation.inputs, scratch)
        wide_outputs = _float32_copies(operation.outputs, scratch)
        run = kernel(scratch)

        def run_widened(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
            arguments, results = list(inputs), list(outputs)
            for index, copy in wide_inputs.items():
                np.copyto(copy, inputs[index])
                arguments[index] = copy
            for index, copy in wide_outputs.items():
                results[index] = copy
            yield from tiles_of(run, arguments, results)
            for index, copy in wide_outputs.items():
                np.copyto(outputs[index], copy)

        return TiledRun(run_widened)

    return instantiate


def _is_float16(operand: BoundOperand | None) -> bool:
    return operand is not None and operand.type is OperandType.TENSOR_FLOAT16


def _float32_copies(
    operands: tuple[BoundOperand | None, ...], scratch: Scratch
) -> dict[int, Array]:
    return {
        index: scratch.transient(operand.require_shape(), np.float32)
        for index, operand in enumerate(operands)
        if operand is not None and _is_float16(operand)
    }


def code_steps(operand: BoundOperand) -> NDArray[np.int64]:
    """Return ``code - zero_point`` of all codes of an 8-bit operand, by raw byte."""
    codes = np.arange(256, dtype=np.uint8).view(operand.dtype)
    return codes.astype(np.int64) - operand.zero_point


def code_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and the largest code of a dtype."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def real_values(operand: BoundOperand) -> NDArray[np.float64]:
    """Return what the 256 codes of an 8-bit operand stand for, by raw byte."""
    return code_steps(operand).astype(np.float64) * operand.scale


def round_half_away(values: Array) -> NDArray[np.float64]:
    """Return the nearest integers as float64; halves go away from zero."""
    half = np.nextafter(0.5, 0.0)
    rounded: NDArray[np.float64] = np.trunc(values + np.copysign(half, values))
    return rounded


def to_codes(real: Array, operand: BoundOperand) -> Array:
    """Return float64 real values as the operand stores them; NaN becomes zero."""
    steps = round_half_away(np.nan_to_num(real / operand.scale, nan=0.0))
    codes = np.clip(steps + operand.zero_point, *code_limits(operand.dtype))
    return codes.astype(operand.dtype)


def same_quantization(first: BoundOperand, second: BoundOperand) -> bool:
    """Return whether equal codes of the two operands mean equal real values."""
    return (first.scale, first.zero_point) == (second.scale, second.zero_point)


Store = Callable[[Array, Array], None]
"""Rounds numbers into an array of codes; overwrites the numbers."""


def code_store(
    scratch: Scratch,
    shape: Shape,
    dtype: type[np.floating[Any]],
    zero_point: int,
    bounds: tuple[int, int],
) -> Store:
    """Return ``store(steps, codes)`` for float ``steps`` of this shape and dtype.

    ``steps`` are real values divided by the scale; ``bounds`` clamp the codes.
    """
    # The largest float below 1/2: adding 1/2 itself would round 0.49999997 up.
    half = np.array(np.nextafter(dtype(0.5), dtype(0)))
    offset = np.array(zero_point, dtype)
    low, high = (np.array(bound, dtype) for bound in bounds)
    signed_half = scratch.transient(shape, dtype)

    def store(steps: Array, codes: Array) -> None:
        np.copysign(half, steps, out=signed_half)
        np.add(steps, signed_half, out=steps)
        np.trunc(steps, out=steps)
        np.add(steps, offset, out=steps)
        steps.clip(low, high, steps)
        np.copyto(codes, steps, casting="unsafe")

    return store


def mean_store(
    scratch: Scratch,
    shape: Shape,
    code_dtype: np.dtype[Any],
    counts: Array,
    bounds: tuple[int, int],
) -> Store:
    """Return ``store(sums, codes)`` for int64 sums of stored values of this shape.

    ``counts`` says how many values each sum has, and broadcasts to ``shape``. Means
    are rounded half away from the middle of the type's range (0 for signed, 128 for
    unsigned codes) and clamped to ``bounds``.
    """
    middle = 128 if code_dtype == np.uint8 else 0
    offsets = np.asarray(counts * middle, np.int64)
    means = scratch.transient(shape, np.float64)
    store_means = code_store(scratch, shape, np.float64, middle, bounds)

    def store(sums: Array, codes: Array) -> None:
        if middle:
            np.subtract(sums, offsets, out=sums)
        np.divide(sums, counts, out=means)
        store_means(means, codes)

    return store


_BYTE = np.dtype(np.uint8)

_PAIRS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint16), 2: np.dtype(np.uint32)}
"""What holds two entries, by the size of one."""

_WORTH_PAIRS = 2**15
"""With so many elements the larger table of pairs pays off."""


def unary_lookup(table: Array, size: int) -> PreparedKernel:
    """Return the kernel ``output = table[raw byte of input 0]`` for ``size`` elements.

    The table has 256 entries of the output's dtype.
    """
    if table.itemsize in _PAIRS and size >= _WORTH_PAIRS and size % 2 == 0:
        return _lookup_of_pairs(table)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        look_up(table, inputs[0], outputs[0])

    return stateless(run)


def formula_lookup(
    operation: BoundOperation, formula: Callable[[Array], Array]
) -> PreparedKernel:
    """Return the kernel ``output = formula(input 0)`` between codes.

    The formula takes and gives real values in float64, which are rounded once.
    """
    real = formula(real_values(operation.input(0)))
    table = to_codes(real, operation.outputs[0])
    return unary_lookup(table, math.prod(operation.shape(0)))


def _lookup_of_pairs(table: Array) -> PreparedKernel:
    """Return the kernel that looks up two neighbours at a time."""
    indexes = np.arange(2**16, dtype=np.uint16)
    pair = _PAIRS[table.itemsize]
    pairs = table[indexes.view(_BYTE)].view(pair)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        codes, out = (array.reshape(-1) for array in (inputs[0], outputs[0]))
        pairs.take(codes.view(np.uint16), None, out.view(pair), "clip")

    return stateless(run)


def look_up(table: Array, codes: Array, out: Array) -> None:
    """Write ``table[raw byte]`` of every 8-bit code to ``out``, of the same shape."""
    # With mode "clip" NumPy writes to `out` directly; no byte is out of range.
    table.take(codes.view(_BYTE), None, out, "clip")


def binary_lookup(table: Array, shape: Shape) -> PreparedKernel:
    """Return the kernel ``output = table[raw byte of input 0, raw byte of input 1]``.

    The table has 256 x 256 entries of the output's dtype; inputs broadcast to
    ``shape``, the output's.
    """
    flat = np.ascontiguousarray(table).reshape(-1)
    rows = np.array(256, np.uint16)

    def run(index: Array, inputs: Inputs, outputs: Outputs) -> None:
        np.multiply(inputs[0].view(_BYTE), rows, out=index)
        np.add(index, inputs[1].view(_BYTE), out=index)
        flat.take(index, None, outputs[0], "clip")

    return with_scratch(run, (shape, np.uint16))


def conversion_table(source: BoundOperand, target: BoundOperand) -> NDArray[np.integer]:
    """Return the 256 codes of ``target`` nearest to the codes of ``source``."""
    return to_codes(real_values(source), target)
