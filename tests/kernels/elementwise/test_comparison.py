"""Comparisons, logic and SELECT."""

import operator

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

COMPARISONS = {
    OperationType.EQUAL: operator.eq,
    OperationType.NOT_EQUAL: operator.ne,
    OperationType.LESS: operator.lt,
    OperationType.LESS_EQUAL: operator.le,
    OperationType.GREATER: operator.gt,
    OperationType.GREATER_EQUAL: operator.ge,
}
SELECT = OperationType.SELECT
ANY_BYTE = np.array([0, 1, 2, 255] * 20, np.uint8).view(np.bool_)
"""Booleans as a client may store them: every byte but 0 is true."""


def compare(operation, x, y):
    shape = np.broadcast_shapes(x.array.shape, y.array.shape)
    return compute(operation, [x, y], result(B8, shape))


@pytest.mark.parametrize(
    ("one", "other"),
    [((3, 4), (3, 4)), ((4, 1, 2), (5, 4, 3, 1)), ((2, 3), (1,)), ((0, 2), (1, 2))],
)
@pytest.mark.parametrize("operation", COMPARISONS)
@pytest.mark.parametrize("type_", [B8, F32, F16, I32, Q8, Q8S])
def test_elements_are_compared_one_by_one(type_, operation, one, other) -> None:
    x, y = random_values(type_, one, seed=1), random_values(type_, other, seed=2)
    np.testing.assert_array_equal(
        compare(operation, tensor(type_, x, 1.0), tensor(type_, y, 1.0)),
        COMPARISONS[operation](x, y),
    )


@pytest.mark.parametrize("operation", COMPARISONS)
@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_codes_are_compared_by_their_real_values(type_, operation) -> None:
    shift = 128 if type_ is Q8 else 0
    steps = np.arange(-128, 128)
    x = tensor(type_, (steps + shift).reshape(256, 1), 0.5, shift)
    y = tensor(type_, steps + shift, 2.0, shift - 3)
    expected = COMPARISONS[operation](steps[:, np.newaxis] * 0.5, (steps + 3) * 2.0)
    np.testing.assert_array_equal(compare(operation, x, y), expected)


@pytest.mark.parametrize("operation", COMPARISONS)
def test_any_nonzero_byte_is_true(operation) -> None:
    x, y = tensor(B8, ANY_BYTE), tensor(B8, ~ANY_BYTE)
    assert x.array.view(np.uint8).max() == 255
    clean = COMPARISONS[operation](ANY_BYTE.view(np.uint8) != 0, y.array)
    np.testing.assert_array_equal(compare(operation, x, y), clean)


@pytest.mark.parametrize(
    ("operation", "formula"),
    [
        (OperationType.LOGICAL_AND, np.logical_and),
        (OperationType.LOGICAL_OR, np.logical_or),
    ],
)
def test_logic_broadcasts(operation, formula) -> None:
    x, y = random_values(B8, (4, 1)), random_values(B8, (3, 1, 5), seed=1)
    computed = compare(operation, tensor(B8, x), tensor(B8, y))
    np.testing.assert_array_equal(computed, formula(x, y))


def test_negation_gives_clean_booleans() -> None:
    given = tensor(B8, ANY_BYTE)
    negated = compute(OperationType.LOGICAL_NOT, [given], result(B8, ANY_BYTE.shape))
    np.testing.assert_array_equal(negated.view(np.uint8), [1, 0, 0, 0] * 20)


@pytest.mark.parametrize("shape", [(80,), (2, 2, 20), (0, 3)])
@pytest.mark.parametrize("type_", [F32, F16, I32, Q8, Q8S])
def test_select_follows_the_condition(type_, shape) -> None:
    condition = np.resize(ANY_BYTE, shape)
    x, y = random_values(type_, shape, seed=1), random_values(type_, shape, seed=2)
    inputs = [tensor(B8, condition), tensor(type_, x, 1.0), tensor(type_, y, 1.0)]
    np.testing.assert_array_equal(
        compute(SELECT, inputs, result(type_, shape, 1.0)),
        np.where(condition.view(np.uint8) != 0, x, y),
    )


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_select_converts_codes_to_the_output(type_) -> None:
    shift = 128 if type_ is Q8 else 0
    steps = np.arange(-128, 128)
    condition = steps % 3 == 0
    inputs = [
        tensor(B8, condition),
        tensor(type_, steps + shift, 0.5, shift),
        tensor(type_, steps[::-1] + shift, 1.5, shift + 7),
    ]
    real = np.where(condition, steps * 0.5, (steps[::-1] - 7) * 1.5)
    expected = clamp_to(type_, half_away(real / 0.75) + shift - 20)
    np.testing.assert_array_equal(
        compute(SELECT, inputs, result(type_, (256,), 0.75, shift - 20)), expected
    )
