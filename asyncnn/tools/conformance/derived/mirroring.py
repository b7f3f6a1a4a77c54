"""Comparisons with their inputs exchanged: a > b is b < a."""

from collections.abc import Iterator, Set

from msgspec.structs import replace

from asyncnn.hal.types import OperationType
from asyncnn.tools.conformance.coverage import Pair, match, pair_of_row
from asyncnn.tools.conformance.rewriting import rewritten, take_apart
from asyncnn.tools.conformance.vectors import Case

_MIRRORED: dict[int, OperationType] = {
    OperationType.LESS: OperationType.GREATER,
    OperationType.GREATER: OperationType.LESS,
    OperationType.LESS_EQUAL: OperationType.GREATER_EQUAL,
    OperationType.GREATER_EQUAL: OperationType.LESS_EQUAL,
}


def mirrored(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    """Yield a comparison with its inputs exchanged, if that exercises a wanted pair."""
    (operation,) = case.model.main.operations
    if operation.type not in _MIRRORED:
        return
    type_ = _MIRRORED[operation.type]
    row = match(operation, case.model.main.operands).row
    if pair_of_row(type_, row) in wanted:
        swapped = replace(operation, type=type_, inputs=operation.inputs[::-1])
        yield rewritten(case, f"as_{type_.name.lower()}", take_apart(case), [swapped])
