"""Which operations of a model the reference kernels can run."""

import logging
from collections import defaultdict
from collections.abc import Iterator

from asyncnn import kernels
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.errors import AsyncnnError
from asyncnn.extensions import check_extended_operation
from asyncnn.hal.types import Model, OperandLifeTime, Operation, Subgraph

logger = logging.getLogger(__name__)


def supported_by_kernels(model: Model) -> tuple[bool, ...]:
    """Tell for each operation of a resolved model's main subgraph if it would run.

    IF and WHILE run if every operation of the subgraphs that they refer to does, and
    of those that these refer to, however deep they are nested.
    """
    unsupported = _unsupported_subgraphs(model)
    return tuple(
        _is_supported(model, model.main, operation)
        and unsupported.isdisjoint(_references(model.main, operation))
        for operation in model.main.operations
    )


def _is_supported(model: Model, subgraph: Subgraph, operation: Operation) -> bool:
    try:
        check_extended_operation(model, subgraph, operation)
    except AsyncnnError as error:
        logger.info("%s", error)
        return False
    return operation.type in CONTROL_FLOW or kernels.is_supported(operation.type)


def _references(subgraph: Subgraph, operation: Operation) -> Iterator[int]:
    """Yield the numbers of the subgraphs that ``operation`` refers to."""
    for index in operation.inputs:
        operand = subgraph.operands[index]
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            yield operand.location.offset


def _unsupported_subgraphs(model: Model) -> set[int]:
    """Return the numbers of the referenced subgraphs that would not run."""
    referrers: defaultdict[int, set[int]] = defaultdict(set)
    waiting: list[int] = []
    for number, subgraph in enumerate(model.referenced):
        for operation in subgraph.operations:
            for referenced in _references(subgraph, operation):
                referrers[referenced].add(number)
        if not all(
            _is_supported(model, subgraph, operation)
            for operation in subgraph.operations
        ):
            waiting.append(number)
    unsupported: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in unsupported:
            unsupported.add(number)
            waiting.extend(referrers[number])
    return unsupported
