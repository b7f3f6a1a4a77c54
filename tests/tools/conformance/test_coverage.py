"""Every operation is tested with every combination of types that the HAL allows."""

from pathlib import Path

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations import SIGNATURES, allowed_types
from asyncnn.hal.types import Operand, OperandType, Operation, OperationType
from tests.derived.cases import derived_cases
from tests.derived.coverage import (
    Pair,
    all_pairs,
    match,
    pairs_of,
    pairs_with_vectors,
    succeeding_cases,
)

F16 = OperandType.TENSOR_FLOAT16
F32 = OperandType.TENSOR_FLOAT32
I32 = OperandType.TENSOR_INT32
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


@pytest.fixture(scope="module")
def exercised(shared: Path) -> frozenset[Pair]:
    """Pairs with vectors or with cases that are derived from them and pass too."""
    derived = map(pairs_of, derived_cases(shared / "vts"))
    return pairs_with_vectors(shared / "vts").union(*derived)


@pytest.mark.parametrize("pair", all_pairs(), ids=str)
def test_each_pair_of_operation_and_types_has_a_case(
    pair: Pair, exercised: frozenset[Pair]
) -> None:
    assert pair in exercised


def test_pairs_are_those_of_the_table() -> None:
    pairs = all_pairs()
    assert len(set(pairs)) == len(pairs)
    assert {pair.operation for pair in pairs} == set(SIGNATURES)
    for type_ in SIGNATURES:
        mains = {pair.types[0] for pair in pairs if pair.operation == type_}
        assert mains == set(allowed_types(type_))


def operation(type_: OperationType, *types: OperandType) -> tuple[Operation, list]:
    """An operation whose last operand is its output, and the operands."""
    last = len(types) - 1
    return Operation(type_, tuple(range(last)), (last,)), list(map(Operand, types))


def test_a_match_tells_the_row_and_the_arguments() -> None:
    found = match(*operation(OperationType.DEQUANTIZE, Q8PC, F16))
    assert found.row.types == {"T": Q8PC, "U": F16}
    assert [argument.name for argument in found.inputs] == ["input"]
    assert [argument.name for argument in found.outputs] == ["output"]


@pytest.mark.parametrize("types", [(F32, F32), (Q8, I32), (Q8, Q8, F32)])
def test_types_outside_of_all_rows_do_not_match(types: tuple[OperandType]) -> None:
    with pytest.raises(InvalidArgumentError, match="no row of such types"):
        match(*operation(OperationType.DEQUANTIZE, *types))


def test_operations_inside_of_loops_count(shared: Path) -> None:
    [case] = [
        case
        for case in succeeding_cases(shared / "vts")
        if case.name == "while_fib_unknown_dimension_n_5"
    ]
    assert {pair.operation for pair in pairs_of(case)} >= {
        OperationType.WHILE,
        OperationType.LESS,
        OperationType.CONCATENATION,
    }


def test_cases_that_must_fail_do_not_count(shared: Path) -> None:
    assert not any(case.expect_failure for case in succeeding_cases(shared / "vts"))
    pairs = pairs_with_vectors(shared / "vts")
    assert Pair(OperationType.DIV, (F32,)) in pairs
    assert Pair(OperationType.DIV, (I32,)) not in pairs
