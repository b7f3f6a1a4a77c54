"""Constants of a model as read-only arrays over the memory that they lie in."""

import math

import numpy as np

from asyncnn.hal.operands import dtype_of, is_scalar
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import Model, Operand, OperandLifeTime
from asyncnn.memory.pools import view

CONSTANT_LIFETIMES = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)


def constant_array(model: Model, operand: Operand) -> Array:
    """Return the value of a constant operand of a validated model, without a copy.

    :raises GeneralFailureError: if its pool cannot be mapped.
    """
    dtype = dtype_of(operand.type)
    shape: Shape = () if is_scalar(operand.type) else operand.dimensions
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
