"""How far tensors are apart, and what they become in another type."""

import math

import numpy as np
import pytest

from asyncnn.hal.types import Operand, OperandType
from asyncnn.tools.differing.distances import Allowed, Distance, converted, distance

FLOAT = Operand(OperandType.TENSOR_FLOAT32, (3,))
HALF = Operand(OperandType.TENSOR_FLOAT16, (3,))
WHOLE = Operand(OperandType.TENSOR_INT32, (3,))
CODES = Operand(OperandType.TENSOR_QUANT8_ASYMM_SIGNED, (3,), scale=0.5, zero_point=-10)
FINE = Operand(OperandType.TENSOR_QUANT8_ASYMM, (3,), scale=0.25, zero_point=100)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def of(got, got_info, want, want_info, **allowed) -> Distance:
    return distance(got, got_info, want, want_info, Allowed(**allowed))


class TestDistance:
    def test_codes_are_compared_in_steps(self) -> None:
        got, want = np.int8([1, 2, 3]), np.int8([1, 3, 5])
        found = of(got, CODES, want, CODES)
        assert (found.largest, found.units, found.differing) == (2, 2, 1)
        assert found.in_steps
        assert str(found) == "2 LSB"
        assert of(got, CODES, want, CODES, lsb=2).passed

    def test_whole_steps_are_told_in_full(self) -> None:
        got, want = np.int32([70_000]), np.int32([0])
        assert str(of(got, WHOLE, want, WHOLE)) == "70000 LSB"
        halves = of(f32(0.25, 0, 0), FLOAT, np.int8([-10, -10, -10]), CODES)
        assert str(halves) == "0.5 LSB"

    def test_without_any_step_allowed_a_step_is_the_unit(self) -> None:
        found = of(np.int8([1, 1, 3]), CODES, np.int8([1, 2, 3]), CODES, lsb=0)
        assert not found.passed
        assert found.units == 1

    def test_counts_are_exact(self) -> None:
        found = of(np.int32([1, 2, 3]), WHOLE, np.int32([1, 2, 4]), WHOLE)
        assert not found.passed
        assert found.differing == 1

    def test_floats_go_by_the_criterion_of_the_hal(self) -> None:
        want = f32(1, 1000, 0)
        assert of(want + f32(9e-6, 5e-4, 9e-6), FLOAT, want, FLOAT).passed
        found = of(want + f32(0, 0, 3e-5), FLOAT, want, FLOAT)
        assert found.differing == 1
        assert found.units == pytest.approx(3, rel=1e-3)

    def test_float16_goes_by_its_own(self) -> None:
        want = np.float16([1, 2, 3])
        got = np.float16([1.004, 2, 3])
        assert of(got, HALF, want, HALF).passed
        assert not of(got, HALF, want, HALF, atol=0.0, rtol=1e-4).passed
        wide, other = got.astype(np.float32), want.astype(np.float32)
        assert not of(wide, FLOAT, other, FLOAT).passed
        assert of(wide, FLOAT, other, FLOAT, relaxed=True).passed

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_is_no_number_in_one_alone_diverges(self, value: float) -> None:
        want = f32(1, 2, 3)
        for pair in ((f32(1, value, 3), want), (want, f32(1, value, 3))):
            found = of(pair[0], FLOAT, pair[1], FLOAT)
            assert found.differing == 1
            assert found.units == math.inf
        both = f32(1, value, 3)
        assert of(both, FLOAT, both, FLOAT).largest == 0
        assert not of(f32(math.inf, 0, 0), FLOAT, f32(-math.inf, 0, 0), FLOAT).passed

    def test_equal_infinities_are_no_difference_whatever_is_allowed(self) -> None:
        both = f32(math.inf, -math.inf, 1)
        assert of(both, FLOAT, both, FLOAT, rtol=0.0, atol=0.0).passed
        # Nor do they make more of an absolute tolerance that others have.
        other = f32(math.inf, -math.inf, 9)
        assert of(other, FLOAT, both, FLOAT, atol=0.1).differing == 1

    def test_real_values_are_compared_in_steps_of_the_coarser(self) -> None:
        codes, fine = np.int8([-10, -8, 0]), np.uint8([100, 104, 121])
        found = of(fine, FINE, codes, CODES)
        assert found.in_steps
        assert found.largest == 0.5  # 5.25 and 5.0, of steps of 0.5
        found = of(codes, CODES, f32(0, 1, math.nan), FLOAT)
        assert (found.differing, found.largest) == (1, math.inf)

    def test_other_shapes_and_kinds_are_told(self) -> None:
        found = of(f32(1, 2), FLOAT, f32(1, 2, 3), FLOAT)
        assert str(found) == "shape [2], not [3]"
        assert not found.passed
        found = of(np.int32([1, 2, 3]), WHOLE, f32(1, 2, 3), FLOAT)
        assert str(found) == "int32, not float32"

    def test_ranks_and_widths_that_only_files_have_are_no_difference(self) -> None:
        one = Operand(OperandType.TENSOR_INT32, (1,))
        found = of(np.array(7), one, np.int32([7]), one)
        assert found.passed
        assert of(np.int64([1, 2, 1 << 40]), WHOLE, np.int32([1, 2, 3]), WHOLE).problem

    def test_truths_are_compared(self) -> None:
        truths = Operand(OperandType.TENSOR_BOOL8, (2,))
        found = of(np.array([True, False]), truths, np.array([True, True]), truths)
        assert found.differing == 1

    def test_samples_are_joined(self) -> None:
        one = of(f32(1, 0, 0), FLOAT, f32(0, 0, 0), FLOAT)
        other = of(f32(0, 2, 0), FLOAT, f32(0, 0, 0), FLOAT)
        joined = one.joined(other)
        assert (joined.largest, joined.differing, joined.elements) == (2, 2, 6)
        assert joined.typical == pytest.approx(math.sqrt(5 / 6) * 1e5, rel=1e-6)
        assert one.joined(None) == one


class TestConverted:
    def test_codes_are_the_nearest_within_the_range(self) -> None:
        codes = converted(f32(1.2, -0.3, 1e9), FLOAT, CODES, np.dtype(np.int8))
        np.testing.assert_array_equal(codes, [-8, -11, 127])
        assert codes.dtype == np.int8

    def test_there_and_back_is_the_same(self) -> None:
        codes = np.arange(-128, 128, dtype=np.int8)
        values = converted(codes, CODES, FLOAT, np.dtype(np.float32))
        again = converted(values, FLOAT, CODES, np.dtype(np.int8))
        np.testing.assert_array_equal(again, codes)

    def test_equal_types_are_left_alone(self) -> None:
        codes = np.int8([1, 2])
        assert converted(codes, CODES, CODES, np.dtype(np.int8)) is codes
