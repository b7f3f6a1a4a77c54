"""Operations that only move or hash bytes: other types of the same bytes."""

from collections.abc import Iterator, Set

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operands import DTYPES, QUANT8_TYPES, AnyOperandType
from asyncnn.hal.operations import SIGNATURES
from asyncnn.hal.operations.signature import TypeRow
from asyncnn.hal.types import OperationType
from asyncnn.tools.conformance.coverage import (
    Pair,
    differing_variables,
    match,
    pair_of_row,
)
from asyncnn.tools.conformance.rewriting import Stored, rewritten, take_apart
from asyncnn.tools.conformance.vectors import Case

_BLIND = frozenset(
    {
        OperationType.EMBEDDING_LOOKUP,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
    }
)
"""Operations that never look at what the bytes of their variable ``T`` mean."""


def reinterpreted(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    """Yield the case with the bytes of its values read as each type that is wanted.

    Types of longer elements are left out, as they may not divide the last axis.
    """
    (operation,) = case.model.main.operations
    if operation.type not in _BLIND:
        return
    type_ = OperationType(operation.type)
    found = match(operation, case.model.main.operands)
    arguments = (*found.inputs, *found.outputs)
    indexes = (*operation.inputs, *operation.outputs)
    values = {i for i, a in zip(indexes, arguments, strict=True) if a.type == "T"}
    for row in SIGNATURES[type_].rows:
        if pair_of_row(type_, row) in wanted and _is_possible(found.row, row):
            stored = [
                _viewed(each, row.types["T"]) if index in values else each
                for index, each in enumerate(take_apart(case))
            ]
            suffix = f"as_bytes_of_{row.types['T'].name.lower()}"
            yield rewritten(case, suffix, stored, [operation])


def _is_possible(source: TypeRow, target: TypeRow) -> bool:
    before, after = (DTYPES[row.types["T"]].itemsize for row in (source, target))
    return differing_variables(source, target) <= {"T"} and before >= after


def _viewed(stored: Stored, type_: AnyOperandType) -> Stored:
    """Read bytes as another type; the last axis becomes longer or shorter."""
    assert stored.value is not None
    value = np.ascontiguousarray(stored.value).view(DTYPES[type_])
    scale = 1.0 if type_ in QUANT8_TYPES else 0.0
    operand = replace(
        stored.operand, type=type_, dimensions=value.shape, scale=scale, zero_point=0
    )
    return Stored(operand, value, stored.ignored)
