"""Which operations of a model the reference kernels can run, and have memory for."""

import logging
from collections import defaultdict

from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.extensions import check_extended_operation
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedPersistentError,
    all_memory_bytes,
)
from asyncnn.hal.operands import bodies_of, size_of_data_bytes
from asyncnn.hal.types import Model, OperandLifeTime, Operation, Subgraph
from asyncnn.kernels import registry as kernels
from asyncnn.memory.pages import check_mappable
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

_SLICE = 100
"""Operations that are looked at in one go."""


def supporting(model: Model, most_bytes: int | None = None) -> Steps[tuple[bool, ...]]:
    """Tell for each operation of a resolved model's main subgraph if it would run.

    IF and WHILE run if every operation of the subgraphs that they refer to does, and
    of those that these refer to, however deep they are nested. One whose temporaries
    take more than `check_memory` allows does not. A caller can stop between two steps,
    which are short.

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
            and _fits(model.main, operation, most_bytes)
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


def check_memory(needed_bytes: int, most_bytes: int | None) -> None:
    """Check that temporaries of ``needed_bytes`` may be there at a time.

    ``most_bytes`` are `DeviceSettings.max_run_bytes`.

    :raises ResourceExhaustedPersistentError: if not.
    """
    most = most_bytes or all_memory_bytes()
    if needed_bytes > most:
        limit = (
            "DeviceSettings.max_run_bytes is" if most_bytes else "a process can have"
        )
        raise ResourceExhaustedPersistentError(
            f"temporaries take {needed_bytes} bytes at a time: {limit} {most}"
        )


def fitting(model: Model, most_bytes: int | None) -> Steps[None]:
    """Check the temporaries of each operation of the main subgraph, in steps.

    What an engine computes has them, too, though no plan has.

    :raises ResourceExhaustedPersistentError: as `check_memory`.
    """
    for position, operation in enumerate(model.main.operations):
        check_memory(_needed_bytes(model.main, operation), most_bytes)
        if not position % _SLICE:
            yield


def _fits(subgraph: Subgraph, operation: Operation, most_bytes: int | None) -> bool:
    try:
        check_memory(_needed_bytes(subgraph, operation), most_bytes)
    except ResourceExhaustedPersistentError as error:
        logger.info("an operation is not supported: %s", error)
        return False
    return True


def _needed_bytes(subgraph: Subgraph, operation: Operation) -> int:
    """Return the bytes of the temporaries that an operation reads and writes."""
    needed = 0
    for index in {*operation.inputs, *operation.outputs}:
        operand = subgraph.operands[index]
        if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
            needed += size_of_data_bytes(operand.type, operand.dimensions)
    return needed


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
