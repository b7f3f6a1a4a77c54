"""Constants of a model as read-only arrays over the memory that they lie in."""

import math

import numpy as np

from asyncnn.errors import GeneralFailureError
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import Model, Operand, OperandLifeTime
from asyncnn.memory.pools import view

CONSTANT_LIFETIMES = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)


def constant_array(model: Model, operand: Operand) -> Array:
    """Return the value of a constant operand of a validated model, without a copy.

    :raises GeneralFailureError: if its type has no dtype or its pool cannot be mapped.
    """
    if operand.type not in DTYPES:
        raise GeneralFailureError(f"constant of unsupported type {operand.type}")
    dtype = DTYPES[operand.type]
    shape: Shape = () if operand.type in SCALAR_TYPES else operand.dimensions
    count = math.prod(shape)
    if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
        data = memoryview(model.operand_values)
    else:
        data = view(model.pools[operand.location.pool_index])
    offset = operand.location.offset
    span = data[offset : offset + count * dtype.itemsize]
    array = np.frombuffer(span, dtype, count).reshape(shape)
    if dtype == np.bool_:
        array = np.asarray(array.view(np.uint8) != 0)  # any byte but 0 is true
    array.flags.writeable = False
    return array
