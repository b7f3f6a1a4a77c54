"""A signed 8-bit tensor behaves as an unsigned one less 128, whatever the operation."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.operations import SIGNATURES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.vectors import Case
from tests.derived.cases import derived_cases
from tests.derived.coverage import succeeding_cases
from tests.derived.rewriting import is_single, take_apart
from tests.derived.variants import EXEMPT, twin
from tests.direct import run_direct

Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def types_of(operation: OperationType) -> set[OperandType]:
    rows = SIGNATURES[operation].rows
    return {type_ for row in rows for type_ in row.types.values()}


COUPLED = [
    operation
    for operation in SIGNATURES
    if types_of(operation) >= {Q8, Q8S} and operation not in EXEMPT
]


def in_other_codes(output: Array) -> Array:
    """Codes of 8 bits less or plus 128 as the other type has them."""
    other = {np.uint8: np.int8, np.int8: np.uint8}.get(output.dtype.type)
    return output if other is None else (output.view(np.uint8) ^ 0x80).view(other)


@pytest.fixture(scope="module")
def singles(shared: Path) -> dict[OperationType, list[Case]]:
    """Cases of one operation, by it."""
    found = defaultdict(list)
    vectors = shared / "vts"
    for case in succeeding_cases(vectors) + derived_cases(vectors):
        if is_single(case):
            found[OperationType(case.model.main.operations[0].type)].append(case)
    return found


@pytest.mark.parametrize("operation", COUPLED, ids=lambda operation: operation.name)
def test_results_of_twins_differ_by_128(
    operation: OperationType, singles: dict[OperationType, list[Case]]
) -> None:
    pairs = [(case, other) for case in singles[operation] if (other := twin(case))]
    assert pairs
    for case, other in pairs:
        expected = map(in_other_codes, run_direct(case))
        for want, got in zip(expected, run_direct(other), strict=True):
            assert want.dtype == got.dtype
            np.testing.assert_array_equal(got, want, case.name)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in SIGNATURES if operation not in COUPLED],
    ids=lambda operation: operation.name,
)
def test_other_operations_have_no_twins(
    operation: OperationType, singles: dict[OperationType, list[Case]]
) -> None:
    assert [case.name for case in singles[operation] if twin(case)] == []


@pytest.fixture(scope="module")
def convolution(singles: dict[OperationType, list[Case]]) -> Case:
    """A case with 8-bit input, constant filter and output, and an integer bias."""
    cases = singles[OperationType.CONV_2D]
    return next(case for case in cases if case.name == "conv_quant8_2")


def test_codes_and_zero_points_move_and_nothing_else(convolution: Case) -> None:
    other = twin(convolution)
    assert other is not None
    assert other.name == "conv_quant8_2_signed"
    for before, after in zip(take_apart(convolution), take_apart(other), strict=True):
        assert before.operand.scale == after.operand.scale
        assert before.operand.lifetime == after.operand.lifetime
        if before.operand.type == Q8:
            assert after.operand.type == Q8S
            assert after.operand.zero_point == before.operand.zero_point - 128
            difference = before.value.astype(int) - after.value.astype(int)
            assert np.all(difference == 128)
        else:
            assert after.operand.type == before.operand.type
            np.testing.assert_array_equal(before.value, after.value)


def test_the_twin_of_the_twin_is_the_case(convolution: Case) -> None:
    again = twin(twin(convolution))
    assert again.name == "conv_quant8_2_signed_unsigned"
    for before, after in zip(take_apart(convolution), take_apart(again), strict=True):
        assert before.operand.type == after.operand.type
        assert before.operand.zero_point == after.operand.zero_point
        np.testing.assert_array_equal(before.value, after.value)
