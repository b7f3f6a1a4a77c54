"""Each claimed operation, in each claimed type, against the reference kernel."""

import numpy as np
import pytest

from asyncnn.devices.litert.claims import NOT_CLAIMED, RULES, refusal
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.operations import allowed_types
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.checking import require_close
from tests.devices.litert.cases import MAKE, all_pairs, usual_case
from tests.devices.litert.running import run_operation
from tests.kernels.operations import B8, F32, I32, Q8S, bind, result, tensor

PAIRS = [
    pytest.param(type_, main, id=f"{type_.name}-{main.name}")
    for type_, main in all_pairs()
]

LEAST_CLAIMED = 75

_FLOATS_ONLY = {OperationType.RSQRT}
"""Operations of which the HAL has codes too, and whose rule says why they are not."""


@pytest.mark.parametrize(("type_", "main"), PAIRS)
def test_it_is_computed_as_by_the_kernel(
    type_: OperationType, main: OperandType
) -> None:
    case = usual_case(type_, main)
    assert refusal(case.operation) is None
    require_close(
        case.operation, run_operation(case.operation, case.arrays), case.expected
    )


@pytest.mark.parametrize(("type_", "main"), PAIRS)
def test_the_kernels_of_litert_itself_agree(
    type_: OperationType, main: OperandType
) -> None:
    """They compute where XNNPACK refuses an operator, as of another processor."""
    case = usual_case(type_, main)
    results = run_operation(case.operation, case.arrays, reference=True)
    require_close(case.operation, results, case.expected)


def test_so_many_operations_are_claimed_in_their_main_types() -> None:
    claimed = [type_ for type_ in RULES if _main_types(type_) <= {*RULES[type_].types}]
    assert len(claimed) >= LEAST_CLAIMED
    assert {*RULES} - {*claimed} == _FLOATS_ONLY


def _main_types(type_: OperationType) -> set[OperandType]:
    """Return float32 and 8-bit codes where the HAL has them, else what there is."""
    if type_ == OperationType.CAST:
        return {F32, B8}
    allowed = {*allowed_types(type_)}
    return allowed & {F32, *QUANT8_TYPES}


def test_each_has_a_case() -> None:
    assert MAKE.keys() == RULES.keys()


def test_each_operation_is_either_claimed_or_left_for_a_reason() -> None:
    types = {*OperationType} - {OperationType.OEM_OPERATION}
    assert RULES.keys() | NOT_CLAIMED.keys() == types
    assert not RULES.keys() & NOT_CLAIMED.keys()


@pytest.mark.parametrize("index", [-1, 9, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("main", [F32, Q8S])
def test_an_index_out_of_range_fails_and_does_no_harm(
    main: OperandType, index: int
) -> None:
    values = np.ones((9, 3), DTYPES[main])
    scale = 0.5 if main == Q8S else 0.0
    inputs = [tensor(main, values, scale), 0, tensor(I32, [0, index])]
    operation = bind(OperationType.GATHER, inputs, [result(main, (2, 3), scale)])
    assert refusal(operation) is None
    arrays = [values, None, np.array([0, index], np.int32)]
    with pytest.raises(RuntimeError, match="failed to invoke"):
        run_operation(operation, arrays)
