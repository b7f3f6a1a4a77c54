"""Models that no client may get prepared."""

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
from tests.networks import addition

SUM = addition(4).model


def nested(count: int) -> Model:
    """A model of ``count`` subgraphs, each with an operand that is the next one."""
    graphs = []
    for index in range(count):
        following = Operand(
            OperandType.SUBGRAPH,
            number_of_consumers=2,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(0, (index + 1) % count, 0),
        )
        condition = Operand(OperandType.TENSOR_BOOL8, (1,), 1, lifetime=1)
        result = Operand(OperandType.TENSOR_BOOL8, (1,), 0, lifetime=2)
        graphs.append(
            Subgraph(
                (condition, following, result),
                (Operation(OperationType.IF, (0, 1, 1), (2,)),),
                (0,),
                (2,),
            )
        )
    return Model(graphs[0], referenced=tuple(graphs))


def with_operation(operation: Operation) -> Model:
    return Model(
        Subgraph(
            SUM.main.operands,
            (operation,),
            SUM.main.input_indexes,
            SUM.main.output_indexes,
        ),
        operand_values=SUM.operand_values,
    )


def with_dimensions(*dimensions: int) -> Model:
    operands = [
        Operand(o.type, dimensions, o.number_of_consumers, 0.0, 0, o.lifetime)
        if o.type == OperandType.TENSOR_FLOAT32
        else o
        for o in SUM.main.operands
    ]
    main = Subgraph(
        tuple(operands),
        SUM.main.operations,
        SUM.main.input_indexes,
        SUM.main.output_indexes,
    )
    return Model(main, operand_values=SUM.operand_values)


BAD_MODELS = {
    "empty": Model(Subgraph((), (), (), ())),
    "cyclic": nested(1),
    "long cycle": nested(5000),
    "operand out of range": with_operation(Operation(0, (0, 1, 2**31), (3,))),
    "negative operand": with_operation(Operation(0, (0, 1, -1), (3,))),
    "output as input": with_operation(Operation(0, (3, 3, 2), (3,))),
    "unknown operation": with_operation(Operation(-1, (0, 1, 2), (3,))),
    "huge dimensions": with_dimensions(2**31, 2**31),
    "wide dimensions": with_dimensions(2**63, 2**63),
    "negative dimensions": with_dimensions(-4),
    "high rank": with_dimensions(*[1] * 10**5),
    "no constants": Model(SUM.main),
}
