"""Rounding rules of quantised results, and the float64 line that equals them.

A rule maps an integer accumulator to an integer, never decreasing. `fit` finds for each
channel a scale and an offset with which ``trunc(accumulator * scale + offset)`` takes
every step of the rule at the same accumulator. It proves that by evaluating the very
float64 expression on both sides of each step: rounded multiplication and addition never
decrease either, so nothing can differ in between. A rule that treats signs differently
may need the signed form ``trunc(v + copysign(half, v))``, ``v`` being the line.
"""

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.kernels.quantized import round_half_away
from asyncnn.kernels.requantize import (
    INT32_MAX,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


class RoundingRule(Protocol):
    """Rounds ``scale`` times an int32 accumulator; nondecreasing, 0 stays 0."""

    scale: Reals
    """Real multipliers [channels, 1], as exact as the rule uses them."""

    def __call__(self, accumulators: Integers) -> Integers:
        """Return rounded products of int64 ``accumulators`` [channels, n]."""
        ...


class FixedPointRounding:
    """The double rounding of `multiply_by_quantized_multiplier`."""

    def __init__(self, real_multipliers: Reals) -> None:
        pairs = [quantize_multiplier(float(real)) for real in real_multipliers]
        self._multiplier, self._shift = np.array(pairs, np.int64).T[:, :, np.newaxis]
        self.scale = np.ldexp(self._multiplier.astype(np.float64), self._shift - 31)

    def __call__(self, accumulators: Integers) -> Integers:
        """Return the doubly rounded products."""
        return multiply_by_quantized_multiplier(
            accumulators, self._multiplier, self._shift
        )


class RealRounding:
    """One rounding of the float64 product, half away from zero."""

    def __init__(self, real_multipliers: Reals) -> None:
        self.scale = real_multipliers[:, np.newaxis]

    def __call__(self, accumulators: Integers) -> Integers:
        """Return the products, rounded once."""
        return round_half_away(accumulators * self.scale).astype(np.int64)


class Line(msgspec.Struct, frozen=True, eq=False):
    """``trunc(accumulator * scale + offset)``, all [channels, 1].

    With ``half``, ``copysign(half, v)`` is added to the line ``v`` before truncation.
    """

    scale: Reals
    offset: Reals
    half: Reals | None = None

    def __call__(self, accumulators: Integers) -> Reals:
        """Return the rounded values of ``accumulators`` [channels, n]."""
        values = accumulators * self.scale + self.offset
        if self.half is not None:
            values += np.copysign(self.half, values)
        return np.trunc(values)


def fit(
    rule: RoundingRule, fold: Integers, first: int, last: int, base: int
) -> Line | None:
    """Return a line that equals the rule for results clamped to ``[first, last]``.

    The line takes accumulators without ``fold`` [channels, 1], the constant part that
    the rule sees. Without ``half`` its values are ``base`` too high, so that
    truncation rounds down: ``first + base`` must not be negative.

    Returns None if no float64 line does it.
    """
    steps = np.arange(first + 1, last + 1)
    at = _first_at_least(rule, steps)
    constant = fold * rule.scale
    line = Line(rule.scale, _offset(rule, at, steps) + constant + base)
    if _proves(line, at, fold, steps + base):
        return line
    positive = steps > 0
    above = _offset(rule, at[:, positive], steps[positive])
    below = _offset(rule, at[:, ~positive], steps[~positive])
    half = (above - below + 1) / 2
    line = Line(rule.scale, (above + below - 1) / 2 + constant, half)
    return line if _proves(line, at, fold, steps) else None


def _first_at_least(rule: RoundingRule, steps: Integers) -> Integers:
    """Return the least accumulator [channels, n] that rounds to each step or more.

    It is one above or equal to the least int32 where none or all of them do.
    """
    with np.errstate(divide="ignore"):
        guess = np.ceil((steps - 0.5) / rule.scale)
    at = np.clip(guess, -INT32_MAX, INT32_MAX + 1).astype(np.int64)
    while True:
        low = (rule(at) < steps) & (at <= INT32_MAX)
        high = (rule(at - 1) >= steps) & (at > -INT32_MAX)
        if not (low.any() or high.any()):
            return at
        at += low.astype(np.int64) - high


def _offset(rule: RoundingRule, at: Integers, steps: Integers) -> Reals:
    """Return the middle of the offsets [channels, 1] that put every step in place."""
    least = steps - at * rule.scale
    most = np.where(at > -INT32_MAX, least + rule.scale, np.inf)
    least = np.where(at <= INT32_MAX, least, -np.inf)
    lowest = least.max(axis=1, initial=0.0, keepdims=True)
    highest = most.min(axis=1, initial=1.0, keepdims=True)
    return np.asarray((lowest + highest) / 2)


def _proves(line: Line, at: Integers, fold: Integers, steps: Integers) -> bool:
    """Tell whether the line takes every step where the rule does."""
    reached = (line(at - fold) >= steps) | (at > INT32_MAX)
    not_before = (line(at - 1 - fold) < steps) | (at <= -INT32_MAX)
    return bool(np.all(reached & not_before))
