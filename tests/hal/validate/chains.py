"""Long models: many operations in a row, like each other or each one different."""

from itertools import pairwise

from asyncnn.hal.types import (
    DataLocation,
    Model,
    Operand,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from tests.hal.validate.samples import COPY, INPUT, OUTPUT, TEMPORARY

F32, INT32 = OperandType.TENSOR_FLOAT32, OperandType.INT32


def chain(length: int, *, varied: bool = False) -> Model:
    """ADD of a constant, again and again; if ``varied``, no two tensors are alike."""
    shapes = [(2, position + 1 if varied else 1) for position in range(length + 1)]
    source = Operand(F32, shapes[0], 1, lifetime=INPUT)
    code = Operand(INT32, (), length, lifetime=COPY, location=DataLocation(0, 0, 4))
    term = Operand(F32, (1,), length, lifetime=COPY, location=DataLocation(0, 4, 4))
    between = [Operand(F32, shape, 1, lifetime=TEMPORARY) for shape in shapes[1:-1]]
    result = Operand(F32, shapes[-1], lifetime=OUTPUT)
    steps = [0, *range(3, length + 3)]
    return Model(
        Subgraph(
            (source, code, term, *between, result),
            tuple(
                Operation(OperationType.ADD, (given, 2, 1), (made,))
                for given, made in pairwise(steps)
            ),
            (0,),
            (length + 2,),
        ),
        operand_values=bytes(8),
    )
