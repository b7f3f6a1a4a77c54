"""Checks how the operations of a subgraph connect its operands: M8 and M10 to M13.

Source: HAL 1.0 to 1.3/types.hal (Operation, Model, Subgraph).
"""

from collections.abc import Sequence

from asyncnn.hal.operands import is_extension_type
from asyncnn.hal.types import (
    OperandLifeTime,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.hal.validate.wording import brief, broken

_OPERATION_TYPES = frozenset(OperationType)
WRITTEN = frozenset(
    {OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT}
)
"""Lifetimes of operands that exactly one operation writes; all others are given."""


def check_operation_form(
    operation: Operation, subgraph: Subgraph, rules: OperandRules
) -> None:
    """Check that an operation's type and indices exist (M8), outputs are such (M10).

    :raises InvalidArgumentError: if a rule is broken.
    """
    if is_extension_type(operation.type):
        rules.check_extension_prefix(operation.type, "M8")
    elif operation.type not in _OPERATION_TYPES:
        raise broken("M8", "there is no such operation")
    operands = subgraph.operands
    for kind, indexes in (("input", operation.inputs), ("output", operation.outputs)):
        for position, index in enumerate(indexes):
            if not 0 <= index < len(operands):
                raise broken(
                    "M8",
                    f"{kind} {position} is operand {brief(index)} of {len(operands)}",
                )
    for position, index in enumerate(operation.outputs):
        if operands[index].lifetime not in WRITTEN:
            lifetime = OperandLifeTime(operands[index].lifetime).name
            raise broken(
                "M10", f"output {position} is operand {index}, which is {lifetime}"
            )


def check_border(subgraph: Subgraph) -> None:
    """Check that inputs and outputs are listed exactly once (M11).

    :raises InvalidArgumentError: if they are not.
    """
    for indexes, lifetime in (
        (subgraph.input_indexes, OperandLifeTime.SUBGRAPH_INPUT),
        (subgraph.output_indexes, OperandLifeTime.SUBGRAPH_OUTPUT),
    ):
        _check_listed(subgraph, indexes, lifetime)


def _check_listed(
    subgraph: Subgraph, indexes: Sequence[int], lifetime: OperandLifeTime
) -> None:
    unlisted = {
        index
        for index, operand in enumerate(subgraph.operands)
        if operand.lifetime == lifetime
    }
    for index in indexes:
        if index not in unlisted:
            raise broken(
                "M11",
                f"operand {brief(index)} is listed, but is not (or already was) "
                f"one of the operands of lifetime {lifetime.name}",
            )
        unlisted.remove(index)
    if unlisted:
        raise broken("M11", f"{lifetime.name} operand {min(unlisted)} is not listed")


def check_order(subgraph: Subgraph) -> None:
    """Check that every operand is written once (M10), before it is read (M12).

    :raises InvalidArgumentError: if it is not.
    """
    pending = {
        index
        for index, operand in enumerate(subgraph.operands)
        if operand.lifetime in WRITTEN
    }
    for position, operation in enumerate(subgraph.operations):
        unwritten = pending.intersection(operation.inputs)
        if unwritten:
            raise broken(
                "M12",
                f"operation {position} reads operand {min(unwritten)} "
                "before it is written",
            )
        for index in operation.outputs:
            if index not in pending:
                raise broken(
                    "M10", f"operation {position} writes operand {index} again"
                )
            pending.remove(index)
    if pending:
        raise broken("M12", f"operand {min(pending)} is never written")


def check_consumers(subgraph: Subgraph) -> None:
    """Check the declared numbers of consumers (M13).

    :raises InvalidArgumentError: if one is wrong.
    """
    counts = [0] * len(subgraph.operands)
    for operation in subgraph.operations:
        for index in operation.inputs:
            counts[index] += 1
    for index, (operand, count) in enumerate(
        zip(subgraph.operands, counts, strict=True)
    ):
        if operand.number_of_consumers != count:
            raise broken(
                "M13",
                f"operand {index} is read {count} times, but declares "
                f"{brief(operand.number_of_consumers)} consumers",
            )
