"""Lookup tables: any function of 8-bit codes is evaluated once for every code.

A unary function has 256 entries and costs under a nanosecond per element; of many
elements two are looked up at once, in all 65,536 pairs. A function of two codes has as
many entries, whose index is built in 16 bits.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics import real_values, to_codes

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
    ``shape``, that of the output.
    """
    flat = np.ascontiguousarray(table).reshape(-1)
    rows = np.array(256, np.uint16)

    def instantiate(scratch: Scratch) -> Run:
        index = scratch.transient(shape, np.uint16)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.multiply(inputs[0].view(_BYTE), rows, out=index)
            np.add(index, inputs[1].view(_BYTE), out=index)
            flat.take(index, None, outputs[0], "clip")

        return run

    return instantiate


def conversion_table(source: BoundOperand, target: BoundOperand) -> NDArray[np.integer]:
    """Return the 256 codes of ``target`` nearest to the codes of ``source``."""
    return to_codes(real_values(source), target)
