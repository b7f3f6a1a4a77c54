"""Fixed-point arithmetic against a transcription in Python integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.rounding import (
    activation_bounds,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantized_activation_range,
)

NONE, RELU, RELU1, RELU6 = FusedActivationFunc
INT8, UINT8, INT16 = map(np.dtype, (np.int8, np.uint8, np.int16))


def rounded_twice(value: int, multiplier: int, shift: int) -> int:
    """The rule in integers: doubling high multiplication, then rounding division."""
    product = value * 2 ** max(shift, 0) * multiplier
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    high = abs(nudged) // 2**31 * (1 if nudged >= 0 else -1)
    divisor = 2 ** max(-shift, 0)
    quotient, remainder = divmod(abs(high), divisor)
    magnitude = quotient + (2 * remainder >= divisor > 1)
    return magnitude if high >= 0 else -magnitude


@pytest.mark.parametrize(
    ("real", "expected"),
    [
        (0.0, (0, 0)),
        (0.5, (2**30, 0)),
        (1.0, (2**30, 1)),
        (0.75, (3 * 2**29, 0)),
        (1 - 2**-40, (2**30, 1)),
        (2.0**-32, (2**30, -31)),
        (2.0**-33, (0, 0)),
        (6.0, (3 * 2**29, 3)),
    ],
)
def test_a_multiplier_is_a_31_bit_fraction_and_a_shift(real, expected) -> None:
    assert quantize_multiplier(real) == expected


@given(st.floats(2.0**-32, 2.0**30))
def test_a_multiplier_is_close(real) -> None:
    multiplier, shift = quantize_multiplier(real)
    assert 2**30 <= multiplier < 2**31
    assert math.isclose(math.ldexp(multiplier, shift - 31), real, rel_tol=2.0**-31)


@pytest.mark.parametrize("real", [-0.5, math.inf, math.nan])
def test_a_multiplier_is_finite_and_not_negative(real) -> None:
    with pytest.raises(GeneralFailureError, match="not a multiplier"):
        quantize_multiplier(real)


@given(
    st.integers(-(2**31), 2**31 - 1), st.integers(2**30, 2**31 - 1), st.integers(-31, 0)
)
def test_products_are_rounded_twice(value, multiplier, shift) -> None:
    product = multiply_by_quantized_multiplier(value, multiplier, shift)
    assert product == rounded_twice(value, multiplier, shift)


@pytest.mark.parametrize("shift", [-9, -2, -1, 0, 1, 3])
@pytest.mark.parametrize("multiplier", [0, 2**30, 2**30 + 1, 3 * 2**29, 2**31 - 1])
def test_every_small_product_and_tie_is_rounded_twice(multiplier, shift) -> None:
    values = np.arange(-2000, 2001)
    np.testing.assert_array_equal(
        multiply_by_quantized_multiplier(values, multiplier, shift),
        [rounded_twice(int(value), multiplier, shift) for value in values],
    )


def test_ties_of_the_division_go_away_from_zero() -> None:
    products = multiply_by_quantized_multiplier(
        [-6, -2, 2, 6], *quantize_multiplier(0.25)
    )
    assert products.tolist() == [-2, -1, 1, 2]


@pytest.mark.parametrize(("shift", "power"), [(8, 30), (30, 29), (100, 29)])
def test_a_left_shift_saturates(shift, power) -> None:
    products = multiply_by_quantized_multiplier([-(2**30), 2**30], 2**30, shift)
    assert products[0] <= -(2**power) + 2**22
    assert products[1] >= 2**power - 2**22


def test_multipliers_broadcast() -> None:
    values = np.array([[100, 200], [300, -400]], np.int32)
    pairs = np.array([quantize_multiplier(real) for real in (0.5, 3.0)])
    products = multiply_by_quantized_multiplier(values, pairs[:, 0], pairs[:, 1])
    assert products.tolist() == [[50, 600], [150, -1200]]


@pytest.mark.parametrize(
    ("activation", "scale", "zero_point", "dtype", "expected"),
    [
        (NONE, 0.5, 3, UINT8, (0, 255)),
        (NONE, 0.5, 3, INT8, (-128, 127)),
        (RELU, 0.5, 3, UINT8, (3, 255)),
        (RELU6, 0.5, 3, UINT8, (3, 15)),
        (RELU6, 0.01, 3, UINT8, (3, 255)),
        (RELU1, 0.5, 3, UINT8, (1, 5)),
        (RELU1, 0.5, 1, UINT8, (0, 3)),
        (RELU1, 0.4, 0, INT8, (-3, 3)),
        (RELU1, 2.0, 0, INT8, (-1, 1)),
        (RELU6, 0.5, -128, INT8, (-128, -116)),
        (RELU6, 2.0**-9, 0, INT16, (0, 3072)),
        (RELU6, 1e-44, 0, UINT8, (0, 255)),
        (RELU1, 1e-44, 0, INT8, (-128, 127)),
    ],
)
def test_activation_ranges_are_stored_values(
    activation, scale, zero_point, dtype, expected
) -> None:
    given_range = quantized_activation_range(activation, scale, zero_point, dtype)
    assert given_range == expected


def test_activation_bounds_are_real_values() -> None:
    bounds = [activation_bounds(activation) for activation in FusedActivationFunc]
    assert bounds == [(-math.inf, math.inf), (0, math.inf), (-1, 1), (0, 6)]
