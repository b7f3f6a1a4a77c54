"""Outputs are judged as the test suite does: by expected ones, by class, as speech."""

import math

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType
from asyncnn.runtime.model import TensorInfo
from asyncnn.tools.mlts.evaluators import (
    Golden,
    MelCepLogF0,
    PhoneErrorRate,
    TopK,
    edit_distance,
    largest_error,
    log_f0_error,
    mel_cepstral_distortion,
)
from asyncnn.tools.samples import Sample, Tolerance

F32, Q8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def floats(width: int) -> TensorInfo:
    return TensorInfo("y", F32, (1, width))


def steps(*rows: Array) -> list[Sample]:
    return [{"y": np.atleast_2d(np.asarray(row))} for row in rows]


class TestGolden:
    CODES = TensorInfo("y", Q8, (1, 2), 0.5, 3)

    def judge(self, actual: Array, expected: Array, **options: float) -> bool:
        golden = Golden([self.CODES], [steps(expected)], Tolerance(lsb=1))
        return golden.judge([steps(actual)], **options).passed

    def test_codes_may_be_off_by_steps(self) -> None:
        expected = np.int8([10, 20])
        assert self.judge(np.int8([11, 19]), expected)
        assert not self.judge(np.int8([12, 20]), expected)

    def test_what_another_runtime_is_off_is_allowed_in_real_units(self) -> None:
        expected, actual = np.int8([10, 20]), np.int8([14, 20])
        assert self.judge(actual, expected, allowance=2.0)
        assert not self.judge(actual, expected, allowance=1.9)

    def test_indices_and_truths_are_exact(self) -> None:
        info = TensorInfo("y", OperandType.TENSOR_INT32, (1, 2))
        golden = Golden([info], [steps(np.int32([1, 2]))], Tolerance(lsb=1))
        assert golden.judge([steps(np.int32([1, 2]))]).passed
        assert not golden.judge([steps(np.int32([1, 3]))]).passed

    def test_a_wrong_shape_is_never_allowed(self) -> None:
        assert not self.judge(np.int8([1, 2, 3]), np.int8([1, 2]), allowance=math.inf)

    def test_the_largest_error_is_in_real_units_and_problems_are_few(self) -> None:
        golden = Golden([self.CODES], [steps(*np.zeros((9, 2), np.int8))], Tolerance())
        outputs = [steps(*np.full((9, 2), 7, np.int8))]
        accuracy = golden.judge(outputs)
        assert accuracy.largest_error == 3.5
        assert accuracy.samples == 9
        assert accuracy.figures == {"elements": 18.0, "differing": 18.0}
        assert accuracy.problems[-1] == "6 more"
        assert len(accuracy.problems) == 4

    def test_a_nan_is_an_error_without_a_size(self) -> None:
        info, nan = floats(2), np.float32([1, math.nan])
        golden = Golden([info], [steps(np.float32([1, 2]))], Tolerance())
        accuracy = golden.judge([steps(nan)])
        assert not accuracy.passed
        assert accuracy.largest_error is None
        assert largest_error([info], [steps(nan)], [steps(nan)]) is None


class TestTopK:
    SCORES = np.float32([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.5, 0.3]])

    def judge(self, *labels: int, expected: float | None = None) -> dict[str, float]:
        outputs = [steps(row) for row in self.SCORES]
        accuracy = TopK(floats(3), labels, expected).judge(outputs)
        assert accuracy.passed is (expected is None or expected < 0.4)
        return {name: value or 0.0 for name, value in accuracy.figures.items()}

    def test_shares_grow_with_k_up_to_the_classes_that_there_are(self) -> None:
        assert self.judge(1, 2, 0) == pytest.approx(
            {"top_1": 1 / 3, "top_2": 2 / 3, "top_3": 1.0}
        )

    def test_at_most_five_classes_are_looked_at(self) -> None:
        outputs = [steps(np.float32(np.arange(9)))]
        accuracy = TopK(floats(9), [4]).judge(outputs)
        assert list(accuracy.figures) == [f"top_{k}" for k in range(1, 6)]
        assert list(accuracy.figures.values()) == [0.0] * 4 + [1.0]

    def test_of_equal_scores_the_first_class_comes_first(self) -> None:
        outputs = [steps(np.float32([0.5, 0.5]))]
        assert TopK(floats(2), [0]).judge(outputs).figures["top_1"] == 1.0
        assert TopK(floats(2), [1]).judge(outputs).figures["top_1"] == 0.0

    def test_top_1_may_be_five_hundredths_below_what_is_expected(self) -> None:
        self.judge(1, 2, 0, expected=0.38)
        self.judge(1, 2, 0, expected=0.4)


@pytest.mark.parametrize(
    ("actual", "expected", "edits"),
    [
        *(("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2)),
        *(("kitten", "sitting", 3), ("abcd", "bcd", 1), ("flaw", "lawn", 2)),
    ],
)
def test_edits_between_sequences(actual: str, expected: str, edits: int) -> None:
    codes = [[ord(letter) for letter in word] for word in (actual, expected)]
    assert edit_distance(*codes) == edit_distance(*reversed(codes)) == edits


class TestPhoneErrorRate:
    def phones(self, *phones: int) -> list[Sample]:
        return steps(*np.eye(4, dtype=np.float32)[list(phones)])

    def test_the_worst_sequence_counts_in_percent_of_its_length(self) -> None:
        expected = [self.phones(0, 1, 2, 3), self.phones(1, 1, 2, 2, 3)]
        judge = PhoneErrorRate(floats(4), expected).judge
        same = judge(expected)
        assert same.passed
        assert same.figures == {"max_phone_error_rate": 0.0}
        shifted = judge([self.phones(0, 1, 2, 3), self.phones(1, 2, 2, 3, 3)])
        assert shifted.figures == {"max_phone_error_rate": 40.0}
        assert shifted.problems == ("sequence 1: phone error rate 40 %",)
        assert shifted.samples == 9

    def test_five_percent_are_allowed(self) -> None:
        right, wrong = [0, 1] * 10, [0, 1] * 9 + [0, 2]
        expected = [self.phones(*right)]
        accuracy = PhoneErrorRate(floats(4), expected).judge([self.phones(*wrong)])
        assert accuracy.figures == {"max_phone_error_rate": 5.0}
        assert accuracy.passed

    def test_rows_of_a_step_are_of_a_phone_each(self) -> None:
        def together(*phones: int) -> list[Sample]:
            return [{"y": np.eye(4, dtype=np.float32)[list(phones)]}]

        evaluator = PhoneErrorRate(floats(4), [together(0, 1, 2, 3)])
        accuracy = evaluator.judge([together(0, 1, 3, 3)])
        assert accuracy.figures == {"max_phone_error_rate": 25.0}


class TestMelCepLogF0:
    INFO = TensorInfo("y", F32, (1, 4 * 49))

    def frames(self, **changed: float) -> Array:
        frames = np.zeros((8, 49), np.float32)
        frames[:, 48] = 1.0  # voiced
        for place, value in changed.items():
            frames[:, int(place[1:])] = value
        return frames

    def judge(self, frames: Array) -> tuple[bool, list[float | None]]:
        expected = [steps(*self.frames().reshape(2, 196))]
        evaluator = MelCepLogF0(self.INFO, expected)
        accuracy = evaluator.judge([steps(*frames.reshape(2, 196))])
        assert list(accuracy.figures) == ["max_mel_cep_distortion", "max_log_f0_error"]
        return accuracy.passed, list(accuracy.figures.values())

    def test_the_first_coefficient_does_not_count(self) -> None:
        assert self.judge(self.frames(_0=100.0)) == (True, [0.0, 0.0])
        passed, (distortion, _) = self.judge(self.frames(_1=39.0))
        assert not passed
        assert distortion == pytest.approx(math.sqrt(39.0))

    def test_distortion_up_to_the_limit_is_accurate(self) -> None:
        frames = self.frames()
        frames[:, 1:40] = 4.0
        assert self.judge(frames) == (True, [4.0, 0.0])
        assert mel_cepstral_distortion(frames, self.frames()) == 4.0

    def test_pitch_counts_where_both_are_voiced(self) -> None:
        assert self.judge(self.frames(_47=0.5)) == (False, [0.0, 0.5])
        assert self.judge(self.frames(_47=0.5, _48=-1.0)) == (True, [0.0, 0.0])
        some = self.frames(_47=0.5)
        some[4:, 48] = -1.0
        assert log_f0_error(some, self.frames()) == 0.5

    def test_nan_is_not_accurate(self) -> None:
        assert self.judge(self.frames(_3=math.nan)) == (False, [None, 0.0])

    def test_codes_are_judged_by_what_they_stand_for(self) -> None:
        info = TensorInfo("y", Q8, (1, 49), 0.25, 5)
        codes = steps(np.full(49, 9, np.int8))
        other = steps(np.full(49, 5, np.int8))
        figures = MelCepLogF0(info, [other]).judge([codes]).figures
        assert figures["max_mel_cep_distortion"] == 1.0

    def test_other_outputs_are_no_frames(self) -> None:
        rows = [steps(np.zeros(50, np.float32))]
        with pytest.raises(InvalidArgumentError, match="no frames of 49"):
            MelCepLogF0(floats(50), rows).judge(rows)
