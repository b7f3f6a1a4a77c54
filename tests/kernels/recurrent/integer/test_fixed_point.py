"""Fixed-point functions against exact fractions and real functions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.kernels.recurrent.integer_steps import (
    TABLE_OFFSET,
    Rescaling,
    gate_places,
    gate_table,
    high_product,
    rounded_shift,
    saturated,
    saturated_shift,
    tanh_table,
)
from asyncnn.kernels.rounding import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)

RAW = np.arange(-(2**15), 2**15)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def nearest(value: Fraction) -> int:
    """Round to the nearest integer, halves away from zero."""
    magnitude = (2 * abs(value) + 1) // 2
    return int(magnitude if value >= 0 else -magnitude)


@given(value=INT32, shift=st.integers(0, 30))
def test_a_rounded_shift_goes_to_the_nearest_and_halves_away_from_zero(
    value, shift
) -> None:
    expected = nearest(Fraction(value, 2**shift))
    assert rounded_shift(np.array([value]), shift) == expected
    both = rounded_shift(np.array([value, -value]), np.array([shift, shift]))
    assert both.tolist() == [expected, -expected]


@given(first=INT16, second=INT16)
def test_a_high_product_is_rounded_and_saturates(first, second) -> None:
    exact = Fraction(first * second, 2**15)
    expected = min((exact + Fraction(1, 2)).__floor__(), 2**15 - 1)
    assert high_product(np.array([first]), second) == expected


@given(value=INT16, shift=st.integers(0, 8))
def test_a_saturated_shift_stays_within_16_bits(value, shift) -> None:
    expected = min(max(value * 2**shift, -(2**15)), 2**15 - 1)
    assert saturated_shift(np.array([value]), shift) == expected


@pytest.mark.parametrize("integer_bits", range(7))
def test_tanh_is_close_and_odd(integer_bits) -> None:
    table = tanh_table(integer_bits).astype(np.int64)
    real = np.tanh(np.ldexp(RAW.astype(np.float64), integer_bits - 15))
    np.testing.assert_allclose(table / 2**15, real, rtol=0, atol=7e-4)
    np.testing.assert_array_equal(table[1:], -table[:0:-1])


def test_gates_are_logistic_functions_and_then_tanh() -> None:
    logistic, tanh = gate_table().reshape(2, -1) / 2**15
    real = RAW / 2**12
    np.testing.assert_allclose(logistic, 1 / (1 + np.exp(-real)), rtol=0, atol=3e-4)
    np.testing.assert_allclose(tanh, np.tanh(real), rtol=0, atol=7e-4)
    assert logistic[TABLE_OFFSET] == 0.5


def test_the_last_gate_takes_tanh_the_others_the_logistic_function() -> None:
    raw = np.array([[-4096, 4096, -4096, 4096, -4096, 4096]])
    values = gate_table()[raw + gate_places(gates=3, units=2)]
    logistic, tanh = 1 / (1 + np.exp([1, -1])), np.tanh([-1, 1])
    expected = [*logistic, *logistic, *tanh]
    np.testing.assert_allclose(values[0] / 2**15, expected, atol=1e-3)


def test_tables_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match="read-only"):
        gate_table()[0] = 1


def test_saturation_is_to_16_bits() -> None:
    values = np.array([-40000, -32768, 5, 32767, 99999])
    assert saturated(values).tolist() == [-32768, -32768, 5, 32767, 32767]


@given(
    values=st.lists(INT32, min_size=1, max_size=8),
    reals=st.lists(st.floats(0, 300, width=32), min_size=1, max_size=4),
)
def test_rescaling_rounds_like_quantized_multipliers(values, reals) -> None:
    reals = np.array(reals)[:, np.newaxis]
    buffer = np.tile(np.array(values), (len(reals), 1))
    multipliers = [quantize_multiplier(real) for real in reals[:, 0]]
    factor, shift = np.array(multipliers).T[..., np.newaxis]
    expected = multiply_by_quantized_multiplier(buffer, factor, shift)
    np.testing.assert_array_equal(Rescaling(reals)(buffer), expected)
