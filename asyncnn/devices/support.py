"""Which operations of a model the reference kernels can run, and have memory for."""

import logging
from collections import defaultdict

from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.extensions import check_extended_operation
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedPersistentError,
    all_memory_bytes,
    check_memory,
)
from asyncnn.hal.operands import bodies_of, size_of_data_bytes
from asyncnn.hal.types import Dimensions, Model, OperandLifeTime, Operation, Subgraph
from asyncnn.kernels import registry as kernels
from asyncnn.memory.pages import check_mappable
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

_SLICE = 100
"""Operations that are looked at in one go."""


def supporting(model: Model, most_bytes: int | None = None) -> Steps[tuple[bool, ...]]:
    """Return which operations of a resolved model's main subgraph would run.

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
    main = model.main
    runs: dict[int, bool] = {}
    are_alike = not model.extension_name_to_prefix and not unsupported
    are_alike = are_alike and (yield from _surely_fitting(main, most_bytes))
    supported: list[bool] = []
    for start in range(0, len(main.operations), _SLICE):
        part = main.operations[start : start + _SLICE]
        new = {operation.type for operation in part} - runs.keys()
        runs.update((type_, _has_kernel(type_)) for type_ in new)
        supported += [
            runs[operation.type]
            and (
                are_alike
                or (
                    _is_known(model, main, operation)
                    and _fits(main, operation, most_bytes)
                    and unsupported.isdisjoint(bodies_of(operation, main.operands))
                )
            )
            for operation in part
        ]
        yield
    return tuple(supported)


def _has_kernel(type_: int) -> bool:
    return type_ in CONTROL_FLOW or kernels.is_supported(type_)


def _is_known(model: Model, subgraph: Subgraph, operation: Operation) -> bool:
    if model.extension_name_to_prefix:
        try:
            check_extended_operation(model, subgraph, operation)
        except AsyncnnError as error:
            logger.info("%s", error)
            return False
    return True


def fitting(model: Model, most_bytes: int | None) -> Steps[None]:
    """Check the temporaries of each operation of the main subgraph, in steps.

    What an engine computes has them, too, though no plan has.

    :raises ResourceExhaustedPersistentError: as `check_memory`.
    """
    is_plain = not model.extension_name_to_prefix
    if is_plain and (yield from _surely_fitting(model.main, most_bytes)):
        return
    for position, operation in enumerate(model.main.operations):
        check_memory(_needed_bytes(model.main, operation), most_bytes)
        if not position % _SLICE:
            yield


def _surely_fitting(subgraph: Subgraph, most_bytes: int | None) -> Steps[bool]:
    """Return whether each operation would fit if all its parts were the largest.

    The subgraph has no types of extensions.
    """
    kinds: set[tuple[int, Dimensions]] = set()
    for start in range(0, len(subgraph.operands), _SLICE):
        part = subgraph.operands[start : start + _SLICE]
        kinds.update([(each.type, tuple(each.dimensions)) for each in part])
        yield
    longest = 0
    for start in range(0, len(subgraph.operations), _SLICE):
        of_part = subgraph.operations[start : start + _SLICE]
        counts = [len(each.inputs) + len(each.outputs) for each in of_part]
        longest = max(longest, *counts)
        yield
    largest = max([size_of_data_bytes(*kind) for kind in kinds])
    return largest * longest <= all_memory_bytes(most_bytes)


def _fits(subgraph: Subgraph, operation: Operation, most_bytes: int | None) -> bool:
    try:
        check_memory(_needed_bytes(subgraph, operation), most_bytes)
    except ResourceExhaustedPersistentError as error:
        logger.info("an operation is not supported: %s", error)
        return False
    return True


def _needed_bytes(subgraph: Subgraph, operation: Operation) -> int:
    needed = 0
    for index in {*operation.inputs, *operation.outputs}:
        operand = subgraph.operands[index]
        if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
            needed += size_of_data_bytes(operand.type, operand.dimensions)
    return needed


def _unsupported_subgraphs(model: Model) -> Steps[set[int]]:
    referrers: defaultdict[int, set[int]] = defaultdict(set)
    waiting: list[int] = []
    for number, subgraph in enumerate(model.referenced):
        runs = True
        for position, operation in enumerate(subgraph.operations):
            for referenced in bodies_of(operation, subgraph.operands):
                referrers[referenced].add(number)
            runs = (
                runs
                and _has_kernel(operation.type)
                and _is_known(model, subgraph, operation)
            )
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
