"""Variants of a case of one operation, whose results follow from those of the case.

`mirrored` knows that a > b is b < a; `reinterpreted`, that some operations see nothing
but bytes; `retyped`, that a number means the same in every type; `twin`, that signed
8-bit tensors behave as unsigned ones less 128.
"""

from collections.abc import Iterator, Sequence, Set

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES, AnyOperandType
from asyncnn.hal.operations import SIGNATURES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.operations.signature import Argument, TypeRow
from asyncnn.hal.types import Operand, OperandType, Operation, OperationType
from asyncnn.tools.conformance.vectors import Case
from tests.derived.coverage import (
    Match,
    Pair,
    differing_variables,
    match,
    pair_of_row,
    pairs_of,
)
from tests.derived.rewriting import Stored, is_single, rewritten, take_apart

_MIRRORED: dict[int, OperationType] = {
    OperationType.LESS: OperationType.GREATER,
    OperationType.GREATER: OperationType.LESS,
    OperationType.LESS_EQUAL: OperationType.GREATER_EQUAL,
    OperationType.GREATER_EQUAL: OperationType.LESS_EQUAL,
}


_BLIND = frozenset(
    {
        OperationType.EMBEDDING_LOOKUP,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
    }
)
"""Operations that never look at what the bytes of their variable ``T`` mean."""

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

EXEMPT = frozenset(
    {
        OperationType.CAST,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
        OperationType.PAD_V2,
        OperationType.QUANTIZED_16BIT_LSTM,
    }
)
"""Operations that read or write codes as such, or have no signed form."""

_TWIN = {
    OperandType.TENSOR_QUANT8_ASYMM: OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: OperandType.TENSOR_QUANT8_ASYMM,
}
_SUFFIX = {
    OperandType.TENSOR_QUANT8_ASYMM: "signed",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "unsigned",
}
_SHIFT = 128


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
        if pair_of_row(type_, row) in wanted and _fits_bytes(found.row, row):
            stored = [
                _viewed(each, row.types["T"]) if index in values else each
                for index, each in enumerate(take_apart(case))
            ]
            suffix = f"as_bytes_of_{row.types['T'].name.lower()}"
            yield rewritten(case, suffix, stored, [operation])


def retyped(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    """Yield the case with its numbers as floats, for each row that is wanted.

    Results that it has in 8 bits are quantised again by an operation at the end, so
    that they saturate alike, and its tolerance holds.
    """
    (operation,) = case.model.main.operations
    if operation.type == _HASHES:
        return
    found = match(operation, case.model.main.operands)
    type_ = OperationType(operation.type)
    for row in SIGNATURES[type_].rows:
        if pair_of_row(type_, row) in wanted and _is_possible(found, row):
            yield _with_row(case, operation, found, row)


def coupled(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    """Yield the twin of a case, if that exercises a wanted pair."""
    other = twin(case)
    if other is not None and pairs_of(other) & wanted:
        yield other


def twin(case: Case) -> Case | None:
    """Return a case of one operation with its unsigned 8-bit tensors signed, or back.

    Zero points and codes move by 128, so that all real values are the same. None if
    there is no 8-bit tensor, or the operation is exempt or lacks the other type.
    Source: the public suite's driver tests, HAL 1.3 (quantization coupling).
    """
    if not is_single(case) or case.model.main.operations[0].type in EXEMPT:
        return None
    main = case.model.main
    types = {OperandType(operand.type) for operand in main.operands}
    if len(types & _TWIN.keys()) != 1:
        return None
    (codes,) = types & _TWIN.keys()
    stored = [_shifted(each) for each in take_apart(case)]
    try:
        return rewritten(case, _SUFFIX[codes], stored, main.operations)
    except InvalidArgumentError:
        return None


def _fits_bytes(source: TypeRow, target: TypeRow) -> bool:
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


def _shifted(stored: Stored) -> Stored:
    operand, value = stored.operand, stored.value
    if operand.type not in _TWIN:
        return stored
    source = OperandType(operand.type)
    unsigned = source == OperandType.TENSOR_QUANT8_ASYMM
    zero_point = operand.zero_point - (_SHIFT if unsigned else -_SHIFT)
    return Stored(
        replace(operand, type=_TWIN[source], zero_point=zero_point),
        None if value is None else _shifted_codes(value),
        stored.ignored,
    )


def _shifted_codes(codes: Array) -> Array:
    if codes.dtype == np.uint8:
        return (codes.astype(np.int16) - _SHIFT).astype(np.int8)
    return (codes.astype(np.int16) + _SHIFT).astype(np.uint8)
