from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
)
from asyncnn.hal.validate import validate_model
from asyncnn.tools.conformance.vectors import Case
from tests.derived.coverage import succeeding_cases
from tests.derived.rewriting import (
    Stored,
    is_single,
    put_together,
    rewritten,
    take_apart,
)
from tests.direct import run_direct

F32 = OperandType.TENSOR_FLOAT32


@pytest.fixture(scope="module")
def singles(shared: Path) -> list[Case]:
    """Cases of one operation."""
    cases = succeeding_cases(shared / "vts")
    return [case for case in cases if is_single(case)]


def test_a_case_survives_being_taken_apart(singles: list[Case]) -> None:
    for case in singles[::7]:
        parts = take_apart(case)
        again = rewritten(case, "again", parts, case.model.main.operations)
        assert again.name == f"{case.name}_again"
        validate_model(again.model)
        for before, after in zip(parts, take_apart(again), strict=True):
            assert before.operand.type == after.operand.type
            assert before.operand.number_of_consumers == (
                after.operand.number_of_consumers
            )
            assert before.ignored == after.ignored
            if before.value is None:
                assert after.value is None
            else:
                np.testing.assert_array_equal(before.value, after.value)


def test_models_of_several_operations_are_not_single(shared: Path) -> None:
    [loop] = [
        case
        for case in succeeding_cases(shared / "vts")
        if case.name == "while_fib_unknown_dimension_n_5"
    ]
    assert not is_single(loop)


def floats(lifetime: OperandLifeTime, *values: float) -> Stored:
    value = np.array(values, np.float32)
    return Stored(Operand(F32, value.shape, lifetime=lifetime), value)


def sum_of_constant_and_input() -> Case:
    activation = Operand(OperandType.INT32, lifetime=OperandLifeTime.CONSTANT_COPY)
    parts = [
        Stored(activation, np.array(0, np.int32)),
        floats(OperandLifeTime.CONSTANT_COPY, 1, 2),
        floats(OperandLifeTime.SUBGRAPH_INPUT, 10, 20),
        floats(OperandLifeTime.SUBGRAPH_OUTPUT, 11, 22),
    ]
    add = Operation(OperationType.ADD, (2, 1, 0), (3,))
    return put_together("V1_0", "spec", "sum", parts, [add])


def test_constants_are_laid_out_and_consumers_counted() -> None:
    case = sum_of_constant_and_input()
    validate_model(case.model)
    assert case.hal == HalVersion.V1_0
    assert case.inputs[0].tolist() == [10, 20]
    np.testing.assert_array_equal(run_direct(case)[0], case.outputs[0].value)


def test_the_version_is_the_one_that_the_operations_need() -> None:
    case = sum_of_constant_and_input()
    halves = [
        each
        if each.operand.type != F32
        else Stored(
            replace(each.operand, type=OperandType.TENSOR_FLOAT16),
            each.value.astype(np.float16),
        )
        for each in take_apart(case)
    ]
    rewrite = rewritten(case, "half", halves, case.model.main.operations)
    assert rewrite.hal == HalVersion.V1_2


def test_illegal_operations_are_refused() -> None:
    case = sum_of_constant_and_input()
    [add] = case.model.main.operations
    with pytest.raises(InvalidArgumentError, match="ADD has 2 inputs"):
        rewritten(case, "short", take_apart(case), [replace(add, inputs=(1, 2))])
