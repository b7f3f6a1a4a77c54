"""Small models that tests of several parts build."""

import numpy as np

from asyncnn.hal.types import (
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32


def addition(*dimensions: int) -> NamedModel:
    """``z = x + y`` of float32; an axis of 0 is left to the request."""
    builder = ModelBuilder()
    x = builder.input("x", F32, dimensions)
    y = builder.input("y", F32, dimensions)
    none = builder.scalar(FusedActivationFunc.NONE)
    z = builder.operation(OperationType.ADD, [x, y, none], Operand(F32, dimensions))
    builder.output(z, "z")
    return builder.build()


def chain(length: int, *dimensions: int) -> NamedModel:
    """``z = x + length``, one ADD of a constant 1 after the other."""
    builder = ModelBuilder()
    value = builder.input("x", F32, dimensions)
    one = builder.constant(np.ones((1,), np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    for _ in range(length):
        value = builder.operation(
            OperationType.ADD, [value, one, none], Operand(F32, dimensions)
        )
    builder.output(value, "z")
    return builder.build()


def picking(length: int) -> NamedModel:
    """``z = x[index]``; an execution fails if an index is not below ``length``."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (length,))
    index = builder.input("index", OperandType.TENSOR_INT32, (length,))
    z = builder.operation(
        OperationType.GATHER, [x, builder.scalar(0), index], Operand(F32, (length,))
    )
    builder.output(z, "z")
    return builder.build()
