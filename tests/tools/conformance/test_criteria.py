import math
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import Model, Operand, OperandType, Subgraph
from asyncnn.tools.conformance.judging import compare
from asyncnn.tools.conformance.vectors import Case, ExpectedOutput

F32 = OperandType.TENSOR_FLOAT32
F16 = OperandType.TENSOR_FLOAT16
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q16 = OperandType.TENSOR_QUANT16_SYMM


def case(type_: OperandType, expected: list[float], **changes: Any) -> Case:
    """A case whose only output must be ``expected``."""
    value = np.array(expected, DTYPES[type_])
    made = Case(
        spec="spec",
        folder="V1_0",
        name="case",
        min_hal=None,
        declared_hal=None,
        expect_failure=False,
        relaxed=False,
        model=Model(Subgraph((Operand(type_),), (), (), (0,))),
        inputs=(),
        outputs=(ExpectedOutput(value, ignored=False),),
    )
    return msgspec.structs.replace(made, **changes)


def verdict(made: Case, actual: list[float]) -> list[str]:
    expected = made.outputs[0].value
    return compare(made, [np.array(actual, expected.dtype).reshape(np.shape(actual))])


@pytest.mark.parametrize(
    ("type_", "expected", "within", "beyond"),
    [
        (F32, 0.0, 0.9e-5, 1.2e-5),
        (F32, 1000.0, 1000.0005, 1000.0008),
        (F16, 0.0, 0.0048, 0.0050),
        (F16, 100.0, 100.4, 100.6),
        (Q8, 7, 8, 9),
        (Q16, -7, -8, -9),
        (I32, 7, 7, 8),
        (B8, 1, 1, 0),
    ],
)
def test_an_element_may_be_off_by_the_tolerance_of_its_type(
    type_: OperandType, expected: float, within: float, beyond: float
) -> None:
    assert verdict(case(type_, [expected]), [within]) == []
    [mismatch] = verdict(case(type_, [expected]), [beyond])
    assert mismatch.startswith(f"output 0 ({type_.name}): 1 of 1 elements differ")


def test_relaxed_models_are_judged_as_float16() -> None:
    assert verdict(case(F32, [1.0], relaxed=True), [1.009]) == []
    assert verdict(case(F32, [1.0]), [1.009]) != []


@pytest.mark.parametrize("where", ["main", "referenced"])
def test_float32_outputs_beside_float16_operands_are_judged_as_float16(
    where: str,
) -> None:
    half = Subgraph((Operand(F32), Operand(F16)), (), (), (0,))
    plain = Subgraph((Operand(F32),), (), (), (0,))
    model = Model(half) if where == "main" else Model(plain, (half,))
    assert verdict(case(F32, [1.0], model=model), [1.009]) == []


def test_mobilenet_may_be_off_by_three() -> None:
    assert verdict(case(Q8, [7], name="mobilenet_quantized"), [10]) == []
    assert verdict(case(Q8, [7], name="mobilenet_quantized"), [11]) != []
    assert verdict(case(Q16, [7], name="mobilenet_quantized"), [10]) != []


def test_nan_never_passes() -> None:
    assert verdict(case(F32, [1.0]), [math.nan]) != []
    assert verdict(case(F32, [math.nan]), [math.nan]) != []
    assert verdict(case(F32, [math.nan]), [1.0]) != []


def test_an_infinity_passes_only_for_itself() -> None:
    assert verdict(case(F32, [math.inf]), [math.inf]) == []
    assert verdict(case(F32, [math.inf]), [1.0]) != []
    assert verdict(case(F32, [1.0]), [math.inf]) != []
    assert verdict(case(F32, [math.inf]), [-math.inf]) != []


def test_shape_dtype_and_number_of_outputs_are_exact() -> None:
    made = case(F32, [1.0, 2.0])
    assert "shape is (1, 2), expected (2,)" in verdict(made, [[1.0, 2.0]])[0]
    assert "dtype is float64" in compare(made, [np.array([1.0, 2.0])])[0]
    assert compare(made, []) == ["0 outputs where 1 are expected"]


def test_empty_outputs_pass_if_their_shape_does() -> None:
    made = case(F32, [])
    assert compare(made, [np.empty((0,), np.float32)]) == []
    assert compare(made, [np.empty((0, 1), np.float32)]) != []


def test_the_values_of_ignored_outputs_are_not_compared() -> None:
    ignored = ExpectedOutput(np.zeros(2, np.float32), ignored=True)
    made = case(F32, [0.0, 0.0], outputs=(ignored,))
    assert verdict(made, [5.0, math.nan]) == []
    assert verdict(made, [5.0]) != []


def test_other_types_have_no_criterion() -> None:
    made = case(OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, [1])
    assert "no criterion" in verdict(made, [1])[0]


def test_random_draws_are_judged_by_their_frequencies() -> None:
    logits = np.log(np.array([[0.25, 0.75]], np.float32))
    made = case(I32, [[0] * 8], inputs=(logits,), multinomial_tolerance=0.1)
    assert verdict(made, [[1, 1, 0, 1, 1, 0, 1, 1]]) == []
    assert "class 0 is drawn" in verdict(made, [[0, 1, 0, 1, 1, 0, 1, 0]])[0]
    assert "outside of [0, 2)" in verdict(made, [[1, 1, 0, 1, 1, 0, 1, 2]])[0]
