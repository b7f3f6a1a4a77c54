"""Element-wise functions of one tensor."""

import numpy as np
import pytest

from asyncnn.hal.types import OperandType, OperationType
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    TOLERANCE,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

CAST = OperationType.CAST
FORMULAS = {
    OperationType.ABS: (np.abs, -9),
    OperationType.NEG: (np.negative, -9),
    OperationType.EXP: (np.exp, -4),
    OperationType.LOG: (np.log, 0.01),
    OperationType.SQRT: (np.sqrt, 0),
    OperationType.RSQRT: (lambda x: 1 / np.sqrt(x), 0.01),
    OperationType.SIN: (np.sin, -9),
    OperationType.FLOOR: (np.floor, -9),
}
"""The formula in float64 and the smallest argument to try."""

SAME_TYPE = [
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
]


def apply(operation, type_, values):
    given = tensor(type_, values)
    return compute(operation, [given], result(type_, given.array.shape))


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 3, 2, 2), (0, 3)])
@pytest.mark.parametrize("operation", FORMULAS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_floats_follow_the_formula(type_, operation, shape) -> None:
    formula, low = FORMULAS[operation]
    values = random_values(type_, shape, low=low, high=9)
    np.testing.assert_allclose(
        apply(operation, type_, values),
        formula(values.astype(np.float64)),
        **TOLERANCE[type_],
    )


@pytest.mark.parametrize("operation", [OperationType.ABS, OperationType.NEG])
def test_integers_are_exact(operation) -> None:
    values = random_values(I32, (40,))
    expected = FORMULAS[operation][0](values)
    np.testing.assert_array_equal(apply(operation, I32, values), expected)


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_rsqrt_of_codes_is_rounded_from_the_exact_value(type_, scale) -> None:
    zero_point, zero_point_out = (30, 20) if type_ is Q8 else (-98, -108)
    codes = np.arange(zero_point, zero_point + 100)
    given = tensor(type_, codes, scale, zero_point)
    output = result(type_, codes.shape, 0.01, zero_point_out)
    computed = compute(OperationType.RSQRT, [given], output)
    with np.errstate(divide="ignore"):
        exact = half_away(1 / np.sqrt(np.arange(100) * scale) / 0.01) + zero_point_out
    np.testing.assert_array_equal(computed, clamp_to(type_, exact))


class TestCast:
    @pytest.mark.parametrize("target", [F32, F16, I32, Q8])
    @pytest.mark.parametrize("source", [F32, F16, I32, Q8])
    def test_keeps_numbers_that_both_types_hold(self, source, target) -> None:
        numbers = np.array([[0, 1, 2], [3, 100, 255]])
        cast = compute(CAST, [tensor(source, numbers)], result(target, (2, 3)))
        np.testing.assert_array_equal(cast, numbers)

    @pytest.mark.parametrize("target", [I32, Q8])
    @pytest.mark.parametrize("source", [F32, F16])
    def test_drops_fractions(self, source, target) -> None:
        numbers = tensor(source, [0.99, 1.5, 254.75])
        cast = compute(CAST, [numbers], result(target, (3,)))
        np.testing.assert_array_equal(cast, [0, 1, 254])

    @pytest.mark.parametrize("source", [F32, F16, I32])
    def test_saturates_codes(self, source) -> None:
        numbers = tensor(source, [-1000, -1, 256, 60000])
        cast = compute(CAST, [numbers], result(Q8, (4,)))
        np.testing.assert_array_equal(cast, [0, 0, 255, 255])

    @pytest.mark.parametrize("source", [F32, F16])
    def test_saturates_integers(self, source) -> None:
        numbers = tensor(source, [-np.inf, -1.5, np.inf])
        cast = compute(CAST, [numbers], result(I32, (3,)))
        np.testing.assert_array_equal(cast, [-(2**31), -1, 2**31 - 1])

    @pytest.mark.parametrize("type_", SAME_TYPE)
    def test_to_the_same_type_copies(self, type_) -> None:
        values = random_values(type_, (4, 5))
        np.testing.assert_array_equal(apply(CAST, type_, values), values)
