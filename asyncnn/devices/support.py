"""Which operations of a model the reference kernels can run."""

import logging
from collections import defaultdict

from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.extensions import check_extended_operation
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operands import bodies_of
from asyncnn.hal.types import Model, Operation, Subgraph
from asyncnn.kernels import registry as kernels
from asyncnn.memory.pages import check_mappable
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

_SLICE = 100
"""Operations that are looked at in one go."""


def supporting(model: Model) -> Steps[tuple[bool, ...]]:
    """Tell for each operation of a resolved model's main subgraph if it would run.

    IF and WHILE run if every operation of the subgraphs that they refer to does, and
    of those that these refer to, however deep they are nested. A caller can stop
    between two steps, which are short.

    :raises GeneralFailureError: if a pool for constants cannot be mapped, and hence no
        such model be prepared.
    """
    for pool in model.pools:
        check_mappable(pool)
    unsupported = yield from _unsupported_subgraphs(model)
    supported: list[bool] = []
    for position, operation in enumerate(model.main.operations):
        supported.append(
            _is_supported(model, model.main, operation)
            and (
                not unsupported
                or unsupported.isdisjoint(bodies_of(operation, model.main.operands))
            )
        )
        if not position % _SLICE:
            yield
    return tuple(supported)


def _is_supported(model: Model, subgraph: Subgraph, operation: Operation) -> bool:
    if model.extension_name_to_prefix:
        try:
            check_extended_operation(model, subgraph, operation)
        except AsyncnnError as error:
            logger.info("%s", error)
            return False
    return operation.type in CONTROL_FLOW or kernels.is_supported(operation.type)


def _unsupported_subgraphs(model: Model) -> Steps[set[int]]:
    """Return the numbers of the referenced subgraphs that would not run."""
    referrers: defaultdict[int, set[int]] = defaultdict(set)
    waiting: list[int] = []
    for number, subgraph in enumerate(model.referenced):
        runs = True
        for position, operation in enumerate(subgraph.operations):
            for referenced in bodies_of(operation, subgraph.operands):
                referrers[referenced].add(number)
            runs = runs and _is_supported(model, subgraph, operation)
            if not position % _SLICE:
                yield
        if not runs:
            waiting.append(number)
    unsupported: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in unsupported:
            unsupported.add(number)
            waiting.extend(referrers[number])
    return unsupported
