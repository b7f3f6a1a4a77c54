"""Arithmetic of two float or integer tensors against NumPy in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import FusedActivationFunc, OperationType
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    TOLERANCE,
    bind,
    compute,
    random_values,
    result,
    tensor,
)

ADD, SUB, MUL, DIV = (
    OperationType.ADD,
    OperationType.SUB,
    OperationType.MUL,
    OperationType.DIV,
)
FORMULAS = {
    ADD: np.add,
    SUB: np.subtract,
    MUL: np.multiply,
    DIV: np.divide,
    OperationType.MAXIMUM: np.maximum,
    OperationType.MINIMUM: np.minimum,
    OperationType.POW: np.power,
    OperationType.PRELU: lambda x, alpha: np.where(x >= 0, x, alpha * x),
}
FUSED = (ADD, SUB, MUL, DIV)
BOUNDS = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}
SHAPES = [
    pytest.param((2, 3, 4), (2, 3, 4), id="equal"),
    pytest.param((4, 1, 2), (5, 4, 3, 1), id="ranks-differ"),
    pytest.param((2, 3, 4), (1,), id="one-element"),
    pytest.param((1, 3), (1, 1, 1, 3), id="leading-ones"),
    pytest.param((0, 3), (1, 3), id="empty"),
]


def combine(operation, type_, x, y, activation=0):
    shape = np.broadcast_shapes(x.shape, y.shape)
    inputs = [tensor(type_, x), tensor(type_, y)]
    scalars = [activation] if operation in FUSED else []
    return compute(operation, inputs + scalars, result(type_, shape))


@pytest.mark.parametrize(("one", "other"), SHAPES)
@pytest.mark.parametrize("operation", FORMULAS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_floats_follow_the_formula_and_broadcast(type_, operation, one, other) -> None:
    low = 0.1 if operation is OperationType.POW else -4
    x = random_values(type_, one, seed=1, low=low)
    y = random_values(type_, other, seed=2)
    exact = FORMULAS[operation](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(
        combine(operation, type_, x, y), exact, **TOLERANCE[type_]
    )


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("operation", FUSED)
@pytest.mark.parametrize("type_", [F32, F16])
def test_the_activation_clamps_the_result(type_, operation, activation) -> None:
    x = random_values(type_, (50,), seed=1)
    y = random_values(type_, (50,), seed=2)
    exact = FORMULAS[operation](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(
        combine(operation, type_, x, y, int(activation)),
        np.clip(exact, *BOUNDS[activation]),
        **TOLERANCE[type_],
    )


@pytest.mark.parametrize(("one", "other"), SHAPES)
@pytest.mark.parametrize(
    "operation", [ADD, SUB, MUL, OperationType.MAXIMUM, OperationType.MINIMUM]
)
def test_integers_are_exact(operation, one, other) -> None:
    x, y = random_values(I32, one, seed=1), random_values(I32, other, seed=2)
    exact = FORMULAS[operation](x.astype(np.int64), y.astype(np.int64))
    np.testing.assert_array_equal(combine(operation, I32, x, y), exact)


def test_integers_wrap_around() -> None:
    x = np.array([2**31 - 1], np.int32)
    assert combine(ADD, I32, x, np.array([1], np.int32)).item() == -(2**31)


def test_integer_division_floors_and_gives_zero_for_a_divisor_of_zero() -> None:
    x = np.array([5, -5, 5, -5, -6, 7, -(2**31)], np.int32)
    y = np.array([2, 2, -2, -2, 3, 0, 1], np.int32)
    quotient = combine(DIV, I32, x, y)
    np.testing.assert_array_equal(quotient, [2, -3, -3, 2, -2, 0, -(2**31)])


def test_float_division_by_zero_gives_infinity() -> None:
    x, y = np.array([1, -1], np.float32), np.zeros(2, np.float32)
    np.testing.assert_array_equal(combine(DIV, F32, x, y), [np.inf, -np.inf])


@pytest.mark.parametrize("operation", FUSED)
def test_integers_take_no_activation(operation) -> None:
    x = np.ones(3, np.int32)
    bound = bind(operation, [tensor(I32, x), tensor(I32, x), 1], [result(I32, (3,))])
    with pytest.raises(OperationFailedError, match="RELU"):
        kernels.prepare(bound)


def test_prelu_keeps_infinities_of_the_positive_side() -> None:
    x, alpha = np.array([np.inf, 2], np.float32), np.array([0, np.inf], np.float32)
    np.testing.assert_array_equal(
        combine(OperationType.PRELU, F32, x, alpha), [np.inf, 2]
    )


@settings(max_examples=40, deadline=None)
@given(shapes=npst.mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=4))
def test_any_two_shapes_broadcast_as_in_numpy(shapes) -> None:
    x, y = (random_values(F32, shape) for shape in shapes.input_shapes)
    np.testing.assert_array_equal(combine(ADD, F32, x, y), x + y)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_float16_sums_are_rounded_once(data) -> None:
    elements = st.floats(-1000, 1000, width=16)
    values = npst.arrays(np.float16, 8, elements=elements)
    x, y = data.draw(values), data.draw(values)
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float32) + y.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(combine(ADD, F16, x, y), exact)
