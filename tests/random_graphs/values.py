"""Types of operands, and arrays to fill them with."""

import numpy as np

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperandType

F32 = OperandType.TENSOR_FLOAT32
F16 = OperandType.TENSOR_FLOAT16
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
TYPES = (F32, F16, I32, B8, Q8, Q8S)


def sample(
    type_: OperandType, shape: Shape, seed: int, low: float = -4, high: float = 4
) -> Array:
    """Return values by seed; those of seed 0 are easy to read."""
    dtype = DTYPES[type_]
    generator = np.random.default_rng(seed)
    if dtype.itemsize == 1 and dtype != np.bool_:
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if seed == 0:
        ramp = np.arange(int(np.prod(shape))) % 5 + 1
        return (ramp if low > 0 else ramp - 2).astype(dtype).reshape(shape)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype == np.int32:
        return generator.integers(-9, 10, shape, dtype)
    return generator.uniform(low, high, shape).astype(dtype)


def another(value: Array) -> Array:
    """Return other values in the range of these."""
    if value.size > 1:
        return np.roll(value, 1)
    return ~value if value.dtype == np.bool_ else (value // 2).astype(value.dtype)


def as_float32(value: float) -> float:
    """Return what a float32 holds of ``value``."""
    return float(np.float32(value))
