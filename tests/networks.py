"""Small models that tests of several parts build."""

import msgspec
import numpy as np

from asyncnn.hal.types import (
    DataLocation,
    FusedActivationFunc,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32
IN, OUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT

FOREVER = np.full(1, -np.inf, np.float32)
"""With it, a run of `counting_up` lasts until it is ended, however quick the machine.

The loop's own timeout would end it, too: after 2 s, or as ``loop_timeout`` says.
"""

AT_ONCE = np.zeros(1, np.float32)
"""With it, a run of `counting_up` has nothing to do."""

for _each in (FOREVER, AT_ONCE):  # all tests share them
    _each.flags.writeable = False


def addition(*dimensions: int) -> NamedModel:
    """``z = x + y`` of float32; an axis of 0 is left to the request."""
    builder = ModelBuilder()
    x = builder.input("x", F32, dimensions)
    y = builder.input("y", F32, dimensions)
    none = builder.scalar(FusedActivationFunc.NONE)
    z = builder.operation(OperationType.ADD, [x, y, none], Operand(F32, dimensions))
    builder.output(z, "z")
    return builder.build()


def chain(length: int, *dimensions: int, alike: bool = True) -> NamedModel:
    """``z = x + length``, one ADD of a constant 1 after the other.

    Unless they are ``alike``, each has a constant, and so a kernel, of its own.
    """
    builder = ModelBuilder()
    value = builder.input("x", F32, dimensions)
    one = builder.constant(np.ones((1,), np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    for _ in range(length):
        if not alike:
            one = builder.constant(np.ones((1,), np.float32))
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


def counting_up() -> NamedModel:
    """``z = x``, after ``while x < 0: x = x + 1``; both are one number."""
    constant, number = OperandLifeTime.CONSTANT_COPY, (1,)
    values = np.array([0, 1], np.float32).tobytes()  # 0 is NONE, too
    subgraphs = [
        Operand(
            OperandType.SUBGRAPH,
            number_of_consumers=1,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(0, index, 0),
        )
        for index in range(2)
    ]
    x, zero, one = (
        Operand(F32, number, 1, lifetime=lifetime, location=DataLocation(0, offset, 4))
        for lifetime, offset in ((IN, 0), (constant, 0), (constant, 4))
    )
    x = msgspec.structs.replace(x, location=DataLocation(0, 0, 0))
    none = msgspec.structs.replace(zero, type=OperandType.INT32, dimensions=())
    result = Operand(F32, number, lifetime=OUT)
    is_below = Operand(OperandType.TENSOR_BOOL8, number, lifetime=OUT)
    condition = Subgraph(
        (x, zero, is_below), (Operation(OperationType.LESS, (0, 1), (2,)),), (0,), (2,)
    )
    body = Subgraph(
        (x, one, none, result),
        (Operation(OperationType.ADD, (0, 1, 2), (3,)),),
        (0,),
        (3,),
    )
    main = Subgraph(
        (*subgraphs, x, result),
        (Operation(OperationType.WHILE, (0, 1, 2), (3,)),),
        (2,),
        (3,),
    )
    return NamedModel.of(Model(main, (condition, body), values), ("x",), ("z",))
