"""What there is to test: every operation with every row of types it is allowed."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import AnyOperandType, AnyOperationType
from asyncnn.hal.operations import SIGNATURES
from asyncnn.hal.operations.signature import Argument, OperationSignature, TypeRow
from asyncnn.hal.types import Operand, Operation, OperationType
from asyncnn.tools.conformance.vectors import Case, find_specs, load_cases


class Pair(NamedTuple):
    """An operation and one of its rows: operand types, the main one first."""

    operation: AnyOperationType
    types: tuple[AnyOperandType, ...]

    def __str__(self) -> str:
        return f"{self.operation.name}-{'/'.join(type_.name for type_ in self.types)}"


class Match(NamedTuple):
    """The row that an operation of a model follows, and the role of each operand."""

    row: TypeRow
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


def pair_of_row(type_: AnyOperationType, row: TypeRow) -> Pair:
    """Return the pair of an operation and one of its rows."""
    return Pair(type_, tuple(row.types.values()))


def differing_variables(one: TypeRow, other: TypeRow) -> frozenset[str]:
    """Return the type variables in which two rows of an operation differ."""
    return frozenset(
        name for name, type_ in one.types.items() if type_ != other.types[name]
    )


def all_pairs() -> tuple[Pair, ...]:
    """Return every pair that the HAL allows, by operation code."""
    return tuple(
        pair_of_row(signature.type, row)
        for signature in SIGNATURES.values()
        for row in signature.rows
    )


def match(operation: Operation, operands: Sequence[Operand]) -> Match:
    """Find the row and layout that an operation of a subgraph follows.

    :raises InvalidArgumentError: if there is none.
    """
    signature = SIGNATURES[OperationType(operation.type)]
    inputs = [operands[index].type for index in operation.inputs]
    outputs = [operands[index].type for index in operation.outputs]
    for found in _with_room(signature, len(inputs), len(outputs)):
        expected = [a.expected_type(found.row) for a in (*found.inputs, *found.outputs)]
        pairs = zip(expected, (*inputs, *outputs), strict=True)
        if all(wanted in (None, actual) for wanted, actual in pairs):
            return found
    raise InvalidArgumentError(f"{signature.type.name} has no row of such types")


def _with_room(
    signature: OperationSignature, inputs: int, outputs: int
) -> Iterable[Match]:
    for layout in signature.layouts:
        taken, given = layout.take_inputs(inputs), layout.take_outputs(outputs)
        if taken is not None and given is not None:
            yield from (Match(row, taken, given) for row in signature.rows)


def pairs_of(case: Case) -> frozenset[Pair]:
    """Return the pairs that a case exercises, referenced subgraphs included.

    :raises InvalidArgumentError: if an operation follows none of its rows.
    """
    return frozenset(
        pair_of_row(
            OperationType(operation.type), match(operation, subgraph.operands).row
        )
        for subgraph in (case.model.main, *case.model.referenced)
        for operation in subgraph.operations
    )


@cache
def cases_of(path: Path) -> tuple[Case, ...]:
    """Read one file of vectors, but once in a process: no test may change a case."""
    return tuple(load_cases(path))


@cache
def succeeding_cases(directory: Path) -> tuple[Case, ...]:
    """Read all vectors below ``directory``, except those that must fail."""
    return tuple(
        case
        for path in find_specs(directory)
        for case in cases_of(path)
        if not case.expect_failure
    )


@cache
def pairs_with_vectors(directory: Path) -> frozenset[Pair]:
    """Return the pairs that any of the vectors below ``directory`` exercises."""
    return frozenset().union(*map(pairs_of, succeeding_cases(directory)))
