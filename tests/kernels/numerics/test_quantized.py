"""What 8-bit codes stand for, and the rounding that all quantised kernels share."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from asyncnn.kernels.kernel import HeapScratch
from asyncnn.kernels.numerics import (
    code_steps,
    code_store,
    mean_store,
    round_half_away,
    to_codes,
)
from tests.kernels.operations import Q8, Q8S, half_away, result


class TestRounding:
    @settings(max_examples=200, deadline=None)
    @given(value=st.floats(-1e6, 1e6))
    def test_is_that_of_exact_arithmetic(self, value) -> None:
        exact = math.copysign(math.floor(abs(value) * 2), value)
        expected = math.copysign(math.ceil(abs(exact) / 2), value)
        assert round_half_away(np.array(value)) == expected

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_does_not_round_the_largest_float_below_a_half_up(self, dtype) -> None:
        steps = np.array([np.nextafter(dtype(0.5), dtype(0)), 0.5, -0.5, 1.5], dtype)
        codes = np.empty(4, np.int8)
        code_store(HeapScratch(), (4,), dtype, 0, (-128, 127))(steps, codes)
        np.testing.assert_array_equal(codes, [0, 1, -1, 2])

    @settings(max_examples=100, deadline=None)
    @given(
        values=npst.arrays(np.float32, 16, elements=st.floats(-300, 300, width=32)),
        zero_point=st.integers(-128, 127),
    )
    def test_of_an_execution_equals_that_of_the_preparation(
        self, values, zero_point
    ) -> None:
        output = result(Q8S, (16,), 1.0, zero_point)
        codes = np.empty(16, np.int8)
        store = code_store(HeapScratch(), (16,), np.float32, zero_point, (-128, 127))
        store(values.copy(), codes)
        np.testing.assert_array_equal(
            codes, to_codes(values.astype(np.float64), output)
        )

    def test_turns_nan_into_zero_at_preparation(self) -> None:
        output = result(Q8, (1,), 1.0, 7)
        assert to_codes(np.array([np.nan]), output).item() == 7

    def test_of_means_is_the_same_for_signed_and_unsigned_codes(self) -> None:
        sums = np.arange(-9, 10).astype(np.int64)
        counts = np.array(2)
        signed, unsigned = np.empty(19, np.int8), np.empty(19, np.uint8)
        scratch, shape = HeapScratch(), (19,)
        mean_store(scratch, shape, signed.dtype, counts, (-128, 127))(
            sums.copy(), signed
        )
        mean_store(scratch, shape, unsigned.dtype, counts, (0, 255))(
            sums + 256, unsigned
        )
        np.testing.assert_array_equal(signed, half_away(sums / 2))
        np.testing.assert_array_equal(signed.astype(int) + 128, unsigned)


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_steps_are_in_the_order_of_the_raw_bytes_of_codes(type_) -> None:
    operand = result(type_, (1,), 1.0, 7)
    codes = np.arange(256, dtype=np.uint8).view(operand.dtype)
    np.testing.assert_array_equal(code_steps(operand), codes.astype(np.int64) - 7)
