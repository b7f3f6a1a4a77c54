"""How outputs are judged: beside expected ones, by classes, and as speech.

An evaluator gets outputs in sequences. A sequence is what a model with state takes from
its first state on, step by step; all others have sequences of one.

Rules and limits are from the benchmark of the Android Machine Learning Test Suite,
whose CSV files have the figures under the same names.

Source: test/mlts/benchmark, evaluators TopK, PhoneErrorRate and MelCepLogF0.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import TensorInfo
from asyncnn.tools.mlts.suite_records import Accuracy
from asyncnn.tools.reference_models import FRAME
from asyncnn.tools.samples import Sample, Tolerance, compare

Sequences: TypeAlias = Sequence[Sequence[Sample]]
"""Outputs by name, of each step of each sequence."""

GOLDEN = "golden"
TOP_K = "top-k"
PHONE_ERROR_RATE = "phone-error-rate"
MEL_CEP_LOG_F0 = "mel-cep-log-f0"
OF_EXPECTED = (GOLDEN, PHONE_ERROR_RATE, MEL_CEP_LOG_F0)
"""Evaluators that hold outputs beside expected ones."""

MOST_CLASSES = 5
"""The largest k of top-k."""

TOP_1_MARGIN = 0.05
"""How far top-1 may fall below what is expected of it."""

PHONE_ERROR_LIMIT = 5.0
"""In percent."""

MEL_CEP_LIMIT, LOG_F0_LIMIT = 4.0, 0.01

_CEPSTRUM, _APERIODICITY = 40, 7
_LOG_F0 = _CEPSTRUM + _APERIODICITY
_VOICING = _LOG_F0 + 1

_SHOWN_PROBLEMS = 3


class Evaluator(Protocol):
    """Judges what a model has given for the samples that the evaluator knows of."""

    @property
    def name(self) -> str:
        """What it is called in options and reports."""
        ...

    def judge(self, outputs: Sequences, allowance: float = 0.0) -> Accuracy:
        """Judge outputs; those within ``allowance``, in real units, need no more."""
        ...


class Golden(msgspec.Struct, frozen=True, eq=False):
    """Holds each output beside the expected one."""

    infos: Sequence[TensorInfo]
    expected: Sequences
    tolerance: Tolerance
    name: str = GOLDEN

    def judge(self, outputs: Sequences, allowance: float = 0.0) -> Accuracy:
        """Judge by a tolerance of each element, or by how far all are off at most."""
        differing = elements = 0
        problems: list[str] = []
        pairs = _pairs(outputs, self.expected)
        for number, (actual, wanted) in enumerate(pairs):
            for info in self.infos:
                title = f"sample {number}, {info.name}"
                pair = actual[info.name], wanted[info.name]
                result = compare(title, *pair, self._tolerance(info))
                elements += result.elements
                worst = result.worst * (info.scale or 1.0)
                if result.passed or (not result.problem and worst <= allowance):
                    continue
                differing += result.differing
                problems.append(str(result))
        hidden = len(problems) - _SHOWN_PROBLEMS
        shown = [*problems[:_SHOWN_PROBLEMS], *([f"{hidden} more"] * (hidden > 0))]
        figures: dict[str, float | None] = {
            "elements": float(elements),
            "differing": float(differing),
        }
        error = largest_error(self.infos, outputs, self.expected)
        return Accuracy(self.name, len(pairs), figures, tuple(shown), error)

    def _tolerance(self, info: TensorInfo) -> Tolerance:
        """Return an output's; counts, indices and truths are exact."""
        if info.dtype.kind in "fc" or info.scale:
            return self.tolerance
        return replace(self.tolerance, lsb=0)


class TopK(msgspec.Struct, frozen=True, eq=False):
    """Looks for the class of each sample among those that score best."""

    info: TensorInfo
    labels: Sequence[int]
    expected_top_1: float | None = None
    name: str = TOP_K

    def judge(self, outputs: Sequences, allowance: float = 0.0) -> Accuracy:
        """Judge by the share of samples whose class is found among the best k.

        Of classes with equal scores the first one comes first. With ``expected_top_1``,
        top-1 may be `TOP_1_MARGIN` below that.
        """
        scores = np.stack(
            [step[self.info.name].reshape(-1) for steps in outputs for step in steps]
        )
        order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")
        ranks = np.argmax(order == np.asarray(self.labels)[:, np.newaxis], axis=1)
        figures: dict[str, float | None] = {
            f"top_{k}": float(np.mean(ranks < k))
            for k in range(1, min(MOST_CLASSES, scores.shape[1]) + 1)
        }
        problems = []
        expected, top_1 = self.expected_top_1, float(np.mean(ranks < 1))
        if expected is not None and top_1 < expected - TOP_1_MARGIN:
            problems.append(f"top-1 is {top_1:.2%}, {expected:.2%} was expected")
        return Accuracy(self.name, len(scores), figures, tuple(problems))


class PhoneErrorRate(msgspec.Struct, frozen=True, eq=False):
    """Compares the phones of sequences, in which each row of scores is of one."""

    info: TensorInfo
    expected: Sequences
    name: str = PHONE_ERROR_RATE

    def judge(self, outputs: Sequences, allowance: float = 0.0) -> Accuracy:
        """Judge by the edits that make a sequence the expected one.

        The rate is in percent of the expected length; the worst's counts.
        """
        rates = []
        for steps, wanted in zip(outputs, self.expected, strict=True):
            phones, expected = (
                np.argmax(rows_of(self.info, each), axis=1).tolist()
                for each in (steps, wanted)
            )
            rates.append(100.0 * edit_distance(phones, expected) / len(expected))
        problems = [
            f"sequence {number}: phone error rate {rate:.3g} %"
            for number, rate in enumerate(rates)
            if rate > PHONE_ERROR_LIMIT
        ]
        figures: dict[str, float | None] = {"max_phone_error_rate": max(rates)}
        error = largest_error([self.info], outputs, self.expected)
        count = len(_pairs(outputs, self.expected))
        return Accuracy(self.name, count, figures, tuple(problems), error)


class MelCepLogF0(msgspec.Struct, frozen=True, eq=False):
    """Compares frames for a vocoder: mel cepstrum, aperiodicity, log F0 and voicing."""

    info: TensorInfo
    expected: Sequences
    name: str = MEL_CEP_LOG_F0

    def judge(self, outputs: Sequences, allowance: float = 0.0) -> Accuracy:
        """Judge by cepstral distortion and pitch of the worst sequence."""
        distortions, pitches, problems = [], [], []
        for number, (steps, wanted) in enumerate(
            zip(outputs, self.expected, strict=True)
        ):
            frames, expected = (_frames_of(self.info, each) for each in (steps, wanted))
            distortion = mel_cepstral_distortion(frames, expected)
            pitch = log_f0_error(frames, expected)
            distortions.append(distortion)
            pitches.append(pitch)
            if not distortion <= MEL_CEP_LIMIT:
                problems.append(f"sequence {number}: distortion {distortion:.3g}")
            if not pitch <= LOG_F0_LIMIT:
                problems.append(f"sequence {number}: error of log F0 {pitch:.3g}")
        figures: dict[str, float | None] = {
            "max_mel_cep_distortion": finite(max(distortions)),
            "max_log_f0_error": finite(max(pitches)),
        }
        error = largest_error([self.info], outputs, self.expected)
        count = len(_pairs(outputs, self.expected))
        return Accuracy(self.name, count, figures, tuple(problems), error)


def edit_distance(actual: Sequence[int], expected: Sequence[int]) -> int:
    """Return how many insertions, deletions and substitutions lead to ``expected``."""
    above = list(range(len(expected) + 1))
    for count, item in enumerate(actual, 1):
        row = [count]
        for column, wanted in enumerate(expected):
            substituted = above[column] + (item != wanted)
            row.append(min(above[column + 1] + 1, row[column] + 1, substituted))
        above = row
    return above[-1]


def mel_cepstral_distortion(frames: Array, expected: Array) -> float:
    """Return the root of the mean square difference of mel cepstra, float.

    ``frames`` are [N, 49]. The first of 40 coefficients, which is how loud a frame is,
    does not count.
    """
    difference = frames[:, 1:_CEPSTRUM] - expected[:, 1:_CEPSTRUM]
    return float(np.sqrt(np.mean(difference**2)))


def log_f0_error(frames: Array, expected: Array) -> float:
    """Return the root of the mean square difference of log F0.

    Only frames [N, 49] count that are voiced in both; without one it is 0.
    """
    both = (frames[:, _VOICING] > 0) & (expected[:, _VOICING] > 0)
    if not both.any():
        return 0.0
    difference = frames[both, _LOG_F0] - expected[both, _LOG_F0]
    return float(np.sqrt(np.mean(difference**2)))


def rows_of(info: TensorInfo, steps: Sequence[Sample]) -> Array:
    """Return the real numbers of all steps, float64 [N, last axis of the output]."""
    return np.concatenate([_real(info, step[info.name]) for step in steps])


def _real(info: TensorInfo, array: Array) -> Array:
    rows: Array = array.reshape(-1, array.shape[-1]).astype(np.float64)
    return (rows - info.zero_point) * info.scale if info.scale else rows


def _frames_of(info: TensorInfo, steps: Sequence[Sample]) -> Array:
    rows = rows_of(info, steps)
    if rows.shape[1] % FRAME:
        raise InvalidArgumentError(
            f"{info.name} has {rows.shape[1]} numbers, which are no frames of {FRAME}",
            hint=f"{MEL_CEP_LOG_F0} is for 40 of a mel cepstrum, 7 of aperiodicity, "
            "log F0 and voicing",
        )
    return rows.reshape(-1, FRAME)


def largest_error(
    infos: Sequence[TensorInfo], outputs: Sequences, expected: Sequences
) -> float | None:
    """Return how far an element is off at most, in real units; None if that is NaN."""
    largest = 0.0
    for actual, wanted in _pairs(outputs, expected):
        for info in infos:
            mine, theirs = actual[info.name], wanted[info.name]
            if mine.shape != theirs.shape or mine.dtype.kind == "V":
                continue
            difference = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
            worst = float(np.max(difference, initial=0.0)) * (info.scale or 1.0)
            largest = max(largest, worst) if np.isfinite(worst) else np.inf
    return finite(largest)


def finite(value: float) -> float | None:
    """Return a number as reports have it: None for infinity and what is none."""
    return value if np.isfinite(value) else None


def _pairs(outputs: Sequences, expected: Sequences) -> list[tuple[Sample, Sample]]:
    return [
        pair
        for steps, wanted in zip(outputs, expected, strict=True)
        for pair in zip(steps, wanted, strict=True)
    ]
