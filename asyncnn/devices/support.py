"""Which operations of a model the reference kernels can run."""

from asyncnn import kernels
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.types import Model, OperandLifeTime, Operation, Subgraph


def supported_by_kernels(model: Model) -> tuple[bool, ...]:
    """Tell for each operation of a validated model's main subgraph if it would run.

    IF and WHILE run if every operation of the subgraphs that they refer to does.
    """
    return tuple(_is_supported(model, model.main, op) for op in model.main.operations)


def _is_supported(model: Model, subgraph: Subgraph, operation: Operation) -> bool:
    if operation.type not in CONTROL_FLOW:
        return operation.type in kernels.supported_operations()
    operands = [subgraph.operands[index] for index in operation.inputs]
    return all(
        _is_supported(model, inner, inner_operation)
        for operand in operands
        if operand.lifetime == OperandLifeTime.SUBGRAPH
        for inner in (model.referenced[operand.location.offset],)
        for inner_operation in inner.operations
    )
