"""Activations against their formulas in float64; every 8-bit code is tried."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
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

FORMULAS = {
    OperationType.RELU: lambda x: np.maximum(x, 0),
    OperationType.RELU1: lambda x: np.clip(x, -1, 1),
    OperationType.RELU6: lambda x: np.clip(x, 0, 6),
    OperationType.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    OperationType.TANH: np.tanh,
    OperationType.HARD_SWISH: lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
CLAMPS = (OperationType.RELU, OperationType.RELU1, OperationType.RELU6)
FIXED_OUTPUT = {
    OperationType.LOGISTIC: (1 / 256, 0),
    OperationType.TANH: (1 / 128, 128),
}
SCALES = [0.004, 0.0474, 0.7, 1.0]


def activate_codes(operation, type_, scale, zero_point, output=None):
    """Apply an activation to all 256 codes, given in the order of their bytes."""
    scale_out, zero_point_out = output or (scale, zero_point)
    codes = np.arange(256, dtype=np.uint8).view(np.int8 if type_ is Q8S else np.uint8)
    described = result(type_, codes.shape, scale_out, zero_point_out)
    given = tensor(type_, codes, scale, zero_point)
    return codes, compute(operation, [given], described)


def unsigned_output(operation, scale, zero_point):
    return FIXED_OUTPUT.get(operation, (scale, zero_point))


@pytest.mark.parametrize("operation", FORMULAS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_floats_follow_the_formula(type_, operation) -> None:
    values = random_values(type_, (3, 5, 7), low=-9, high=9)
    np.testing.assert_allclose(
        compute(operation, [tensor(type_, values)], result(type_, values.shape)),
        FORMULAS[operation](values.astype(np.float64)),
        **TOLERANCE[type_],
    )


@pytest.mark.parametrize("zero_point", [0, 77, 255])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("operation", FORMULAS)
def test_every_code_is_rounded_from_the_exact_value(
    operation, scale, zero_point
) -> None:
    scale_out, zero_point_out = unsigned_output(operation, scale, zero_point)
    codes, activated = activate_codes(
        operation, Q8, scale, zero_point, (scale_out, zero_point_out)
    )
    real = (codes.astype(np.float64) - zero_point) * scale
    exact = half_away(FORMULAS[operation](real) / scale_out) + zero_point_out
    np.testing.assert_array_equal(activated, clamp_to(Q8, exact))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("operation", FORMULAS)
def test_signed_codes_give_the_unsigned_result_less_128(operation, scale) -> None:
    unsigned = unsigned_output(operation, scale, 100)
    signed = (unsigned[0], unsigned[1] - 128)
    codes, one = activate_codes(operation, Q8S, scale, -28, signed)
    _, two = activate_codes(operation, Q8, scale, 100, unsigned)
    order = codes.astype(int) + 128
    np.testing.assert_array_equal(one.astype(int) + 128, two[order])


def test_hard_swish_converts_to_the_scale_of_its_output() -> None:
    codes, activated = activate_codes(
        OperationType.HARD_SWISH, Q8S, 0.05, -10, (0.02, 4)
    )
    real = (codes.astype(np.float64) + 10) * 0.05
    exact = half_away(FORMULAS[OperationType.HARD_SWISH](real) / 0.02) + 4
    np.testing.assert_array_equal(activated, clamp_to(Q8S, exact))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, -0.5])
@pytest.mark.parametrize("type_", [F32, F16])
def test_elu_follows_its_formula(type_, alpha) -> None:
    values = np.append(random_values(type_, (40,)), [88, 1000, -1000])
    scalar = np.float16(alpha) if type_ is F16 else alpha
    given = tensor(type_, values)
    x = given.array.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = np.maximum(0, x) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0)))
    activated = compute(OperationType.ELU, [given, scalar], result(type_, x.shape))
    np.testing.assert_allclose(activated, exact, **TOLERANCE[type_])


@pytest.mark.parametrize("operation", [OperationType.LOGISTIC, OperationType.TANH])
def test_infinities_saturate(operation) -> None:
    values = np.array([-np.inf, np.inf], np.float32)
    activated = compute(operation, [tensor(F32, values)], result(F32, (2,)))
    low = 0 if operation is OperationType.LOGISTIC else -1
    np.testing.assert_array_equal(activated, [low, 1])


@pytest.mark.parametrize("operation", FORMULAS)
@pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
def test_empty_tensors_stay_empty(type_, operation) -> None:
    given = tensor(type_, np.empty((0, 2)), 1.0)
    assert compute(operation, [given], result(type_, (0, 2), 1.0)).shape == (0, 2)
