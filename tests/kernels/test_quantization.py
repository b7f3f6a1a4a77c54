"""DEQUANTIZE and QUANTIZE, and the rounding that all quantised kernels share."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from asyncnn.hal.types import OperationType, SymmPerChannelQuantParams
from asyncnn.kernels.kernel import HeapScratch
from asyncnn.kernels.quantized import (
    all_codes,
    code_store,
    mean_store,
    round_half_away,
    to_codes,
)
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYM,
    TOLERANCE,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

QUANTIZE, DEQUANTIZE = OperationType.QUANTIZE, OperationType.DEQUANTIZE


@pytest.mark.parametrize("output", [F32, F16])
@pytest.mark.parametrize(
    ("type_", "zero_point"), [(Q8, 0), (Q8, 200), (Q8S, -128), (Q8S, 5), (Q8SYM, 0)]
)
def test_codes_dequantise_to_their_real_values(type_, zero_point, output) -> None:
    codes = np.arange(256, dtype=np.uint8).view(type_dtype(type_)).reshape(2, 2, 8, 8)
    computed = compute(
        DEQUANTIZE,
        [tensor(type_, codes, 0.37, zero_point)],
        result(output, (2, 2, 8, 8)),
    )
    exact = np.float32(0.37) * (codes.astype(np.float32) - zero_point)
    np.testing.assert_array_equal(computed, exact.astype(computed.dtype))


def type_dtype(type_):
    return np.uint8 if type_ is Q8 else np.int8


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("output", [F32, F16])
def test_each_channel_has_its_own_scale(output, axis) -> None:
    shape = (2, 3, 4)
    scales = tuple(0.1 * (index + 1) for index in range(shape[axis]))
    codes = random_values(Q8PC, shape)
    given = tensor(Q8PC, codes, 0, 0, SymmPerChannelQuantParams(scales, axis))
    along = np.array(scales).reshape([-1 if i == axis else 1 for i in range(3)])
    np.testing.assert_allclose(
        compute(DEQUANTIZE, [given], result(output, shape)),
        codes * along,
        **TOLERANCE[output],
    )


@pytest.mark.parametrize("type_", [Q8, Q8S])
@pytest.mark.parametrize("source", [F32, F16])
def test_real_values_round_half_away_from_zero_and_saturate(source, type_) -> None:
    real = np.arange(-600, 600, dtype=np.float64) / 4
    zero_point = 100 if type_ is Q8 else -28
    output = result(type_, real.shape, 0.5, zero_point)
    computed = compute(QUANTIZE, [tensor(source, real)], output)
    exact = clamp_to(type_, half_away(real / 0.5) + zero_point)
    np.testing.assert_array_equal(computed, exact)


def test_infinities_quantise_to_the_limits() -> None:
    real = np.array([-np.inf, np.inf, 1e38], np.float32)
    computed = compute(QUANTIZE, [tensor(F32, real)], result(Q8S, (3,), 0.001, 7))
    np.testing.assert_array_equal(computed, [-128, 127, 127])


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_quantise_undoes_dequantise(type_) -> None:
    codes = np.arange(256, dtype=np.uint8).view(type_dtype(type_))
    real = compute(DEQUANTIZE, [tensor(type_, codes, 0.013, 5)], result(F32, (256,)))
    back = compute(QUANTIZE, [tensor(F32, real)], result(type_, (256,), 0.013, 5))
    np.testing.assert_array_equal(back, codes)


@pytest.mark.parametrize("source", [F32, F16])
def test_empty_tensors_stay_empty(source) -> None:
    empty = tensor(source, np.empty((0, 3)))
    assert compute(QUANTIZE, [empty], result(Q8, (0, 3), 1.0)).size == 0
    codes = tensor(Q8, np.empty((0, 3)), 1.0)
    assert compute(DEQUANTIZE, [codes], result(source, (0, 3))).size == 0


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_all_codes_are_in_the_order_of_their_bytes(dtype) -> None:
    codes = all_codes(np.dtype(dtype))
    np.testing.assert_array_equal(
        codes.astype(dtype).view(np.uint8), np.arange(256, dtype=np.uint8)
    )
