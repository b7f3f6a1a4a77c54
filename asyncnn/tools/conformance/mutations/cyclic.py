"""The one mutant that is not made from a vector: operations that feed each other."""

from asyncnn.hal.types import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.tools.conformance.mutations.mutant import Mutant

_F32 = OperandType.TENSOR_FLOAT32
_INPUT = OperandLifeTime.SUBGRAPH_INPUT


def cyclic_mutant() -> Mutant:
    """Return a model of three ADDs, two of which read what the other one writes."""
    no_activation = Operand(
        OperandType.INT32,
        number_of_consumers=3,
        lifetime=OperandLifeTime.CONSTANT_COPY,
        location=DataLocation(length=4),
    )
    main = Subgraph(
        operands=(
            Operand(_F32, (1,), 2, lifetime=_INPUT),
            Operand(_F32, (1,), 1, lifetime=_INPUT),
            Operand(_F32, (1,), 2),
            Operand(_F32, (1,), 1),
            Operand(_F32, (1,), 0, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
            no_activation,
        ),
        operations=(
            Operation(OperationType.ADD, (0, 2, 5), (3,)),
            Operation(OperationType.ADD, (1, 3, 5), (2,)),
            Operation(OperationType.ADD, (2, 0, 5), (4,)),
        ),
        input_indexes=(0, 1),
        output_indexes=(4,),
    )
    return Mutant("three ADDs in a circle", Model(main, operand_values=bytes(4)))
