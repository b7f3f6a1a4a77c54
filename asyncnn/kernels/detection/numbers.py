"""What tensors of any type stand for, as float32, and back.

Detection kernels compute in float32 whatever the types of their operands are, in the
order of the reference's operations: what they compare with thresholds has to agree
to the last bit.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperand
from asyncnn.kernels.numerics.quantized import to_codes

Reals: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.intp]


def to_float32(values: Array, operand: BoundOperand) -> Reals:
    """Return what ``values`` of ``operand`` stand for; float32 ones as they are."""
    reals = values.astype(np.float32, copy=False)
    if operand.dtype.kind == "f":
        return reals
    return (reals - np.float32(operand.zero_point)) * np.float32(operand.scale)


def from_float32(reals: Reals, operand: BoundOperand) -> Array:
    """Return real values as ``operand`` stores them, rounded once and saturated."""
    if operand.dtype.kind == "f":
        return reals.astype(operand.dtype, copy=False)
    return to_codes(reals.astype(np.float64), operand)
