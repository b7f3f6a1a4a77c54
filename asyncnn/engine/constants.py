"""Constants of a model as read-only arrays over the memory that they lie in."""

import numpy as np

from asyncnn.hal.operands import dtype_of, is_scalar
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import Model, Operand, OperandLifeTime
from asyncnn.memory.pools import view

CONSTANT_LIFETIMES = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)


_COPY = int(OperandLifeTime.CONSTANT_COPY)


def constant_array(model: Model, operand: Operand) -> Array:
    """Return the value of a constant operand of a validated model, without a copy.

    :raises GeneralFailureError: if its pool cannot be mapped.
    """
    type_, location = operand.type, operand.location
    source: bytes | memoryview = model.operand_values
    if operand.lifetime != _COPY:
        source = view(model.pools[location.pool_index])
    shape: Shape = () if is_scalar(type_) else operand.dimensions
    array: Array = np.ndarray(shape, dtype_of(type_), source, location.offset)
    if array.dtype.kind == "b":
        array = np.asarray(array.view(np.uint8) != 0)  # any byte but 0 is true
    array.flags.writeable = False
    return array
