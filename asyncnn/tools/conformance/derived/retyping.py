"""Floats in place of integers, or of other floats: a number means the same in both.

Results that the template has in 8 bits are quantised again by an operation at the end,
so that they saturate alike, and the tolerance is the template's.
"""

from collections.abc import Iterator, Sequence, Set

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operands import DTYPES, QUANT8_TYPES, AnyOperandType
from asyncnn.hal.operations import SIGNATURES
from asyncnn.hal.operations.signature import Argument, TypeRow
from asyncnn.hal.types import (
    Operand,
    OperandType,
    Operation,
    OperationType,
)
from asyncnn.tools.conformance.coverage import (
    Match,
    Pair,
    differing_variables,
    match,
    pair_of_row,
)
from asyncnn.tools.conformance.rewriting import Stored, rewritten, take_apart
from asyncnn.tools.conformance.vectors import Case

_FLOATS = frozenset(
    {
        OperandType.TENSOR_FLOAT32,
        OperandType.TENSOR_FLOAT16,
        OperandType.FLOAT32,
        OperandType.FLOAT16,
    }
)
_NUMBERS = _FLOATS | {
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT16_ASYMM,
}
"""Types whose stored values, scale and zero point tell which numbers they hold."""

_COMPARABLE = _FLOATS | QUANT8_TYPES
"""Main types and types of results: integers may exceed what floats can hold, and
nothing turns floats into 16-bit codes again.
"""

_HASHES = OperationType.LSH_PROJECTION
"""Reads the bytes of its input, not the numbers that they stand for."""


def retyped(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    """Yield the case with its numbers as floats, for each row that is wanted."""
    (operation,) = case.model.main.operations
    if operation.type == _HASHES:
        return
    found = match(operation, case.model.main.operands)
    type_ = OperationType(operation.type)
    for row in SIGNATURES[type_].rows:
        if pair_of_row(type_, row) in wanted and _is_possible(found, row):
            yield _with_row(case, operation, found, row)


def _is_possible(found: Match, target: TypeRow) -> bool:
    source = found.row.types
    changed = differing_variables(found.row, target)
    results = changed & {argument.type for argument in found.outputs}
    return (
        found.row.main in _COMPARABLE
        and all(source[name] in _NUMBERS for name in changed)
        and all(source[name] in _COMPARABLE for name in results)
        and all(target.types[name] in _FLOATS for name in changed)
    )


def _with_row(case: Case, operation: Operation, found: Match, row: TypeRow) -> Case:
    stored = take_apart(case)
    operations = [operation]
    for index, type_ in _changes(operation.inputs, found.inputs, stored, row).items():
        stored[index] = _as_float(stored[index], type_)
    for index, type_ in _changes(operation.outputs, found.outputs, stored, row).items():
        if stored[index].operand.type in QUANT8_TYPES:
            operations = _quantized_after(operations, stored, index, type_)
        else:
            stored[index] = _as_float(stored[index], type_)
    names = dict.fromkeys(row.types[name].name.lower() for name in row.types)
    return rewritten(case, f"as_{'_'.join(names)}", stored, operations)


def _changes(
    indexes: Sequence[int],
    arguments: Sequence[Argument],
    stored: Sequence[Stored],
    row: TypeRow,
) -> dict[int, AnyOperandType]:
    """Return the new types of the operands that ``row`` has other types for."""
    expected = (argument.expected_type(row) for argument in arguments)
    return {
        index: type_
        for index, type_ in zip(indexes, expected, strict=True)
        if type_ is not None and type_ != stored[index].operand.type
    }


def _as_float(stored: Stored, type_: AnyOperandType) -> Stored:
    operand, value = stored.operand, stored.value
    if value is not None:
        steps = value.astype(np.float64) - operand.zero_point
        value = (steps * (operand.scale or 1.0)).astype(DTYPES[type_])
    plain = replace(operand, type=type_, scale=0.0, zero_point=0)
    return Stored(plain, value, stored.ignored)


def _quantized_after(
    operations: list[Operation], stored: list[Stored], index: int, type_: AnyOperandType
) -> list[Operation]:
    """Let the operations write floats, and quantise these into operand ``index``."""
    floats = len(stored)
    dimensions = stored[index].operand.dimensions
    stored.append(Stored(Operand(type_, dimensions)))
    return [
        *(
            replace(op, outputs=tuple(floats if i == index else i for i in op.outputs))
            for op in operations
        ),
        Operation(OperationType.QUANTIZE, (floats,), (index,)),
    ]
