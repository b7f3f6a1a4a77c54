"""Rounding rules of quantised sums, and float64 lines that equal them.

A real multiplier is written as ``M * 2**(shift - 31)`` with a 31-bit integer ``M``. An
integer times it is rounded twice, as fixed-point hardware does: first ``floor(x +
1/2)`` of ``x = integer * 2**max(shift, 0) * M / 2**31``, then the division by
``2**-shift``, ties away from zero. Convolutions follow this rule bit for bit; of
FULLY_CONNECTED see `asyncnn.kernels.linear.matmul`.

A rule maps an integer sum to an integer and never decreases. `fit` looks for a line
whose truncation, ``trunc(sum * scale + offset)``, takes every step of the rule at the
same sum. It proves that by evaluating the very float64 expression on both sides of each
step: rounded multiplication and addition never decrease either, so that nothing can
differ in between. Where a rule says in advance how far from every sum its steps lie,
and float64 errs by less, the proof needs no evaluation. A rule that treats signs
differently needs the signed form
``trunc(v + copysign(half, v))``, where ``v`` is the line.

Source: NN common/OperationsExecutionUtils.cpp (QuantizeMultiplier and the activation
ranges); the double rounding of TensorFlow Lite's reference kernels.
"""

import math
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.numerics import round_half_away

INT32_MAX = 2**31 - 1

_EXACT_SHIFT = 20
"""Shifts to the right with which offsets of steps are exact in float64."""

_MANY_STEPS = 8
"""With so many steps on both sides of 0, the offsets of both never have one middle."""

_REAL_BOUNDS: dict[FusedActivationFunc, tuple[float, float]] = {
    FusedActivationFunc.NONE: (-math.inf, math.inf),
    FusedActivationFunc.RELU: (0.0, math.inf),
    FusedActivationFunc.RELU1: (-1.0, 1.0),
    FusedActivationFunc.RELU6: (0.0, 6.0),
}


def activation_bounds(activation: FusedActivationFunc) -> tuple[float, float]:
    """Return the closed range that a fused activation clamps real values to."""
    return _REAL_BOUNDS[activation]


def quantized_activation_range(
    activation: FusedActivationFunc, scale: float, zero_point: int, dtype: np.dtype[Any]
) -> tuple[int, int]:
    """Return the closed range of stored values after a fused activation.

    A bound is divided by ``scale`` in float32 and rounded half away from zero.
    """
    limits = np.iinfo(dtype)

    def quantize(bound: float, limit: int) -> int:
        if math.isinf(bound):
            return limit
        with np.errstate(over="ignore"):
            quotient = float(np.float32(bound) / np.float32(scale))
        steps = math.floor(min(abs(quotient), 1e6) + 0.5)
        stored = zero_point + (steps if quotient > 0 else -steps)
        return min(max(stored, int(limits.min)), int(limits.max))

    low, high = _REAL_BOUNDS[activation]
    return quantize(low, int(limits.min)), quantize(high, int(limits.max))


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return ``(M, shift)`` with ``real`` close to ``M * 2**(shift - 31)``.

    ``M`` is 0 or in ``[2**30, 2**31)``; multipliers below ``2**-32`` become 0.

    :raises GeneralFailureError: if ``real`` is negative or not finite.
    """
    multipliers, shifts = quantize_multipliers(np.array([real], np.float64))
    return int(multipliers[0]), int(shifts[0])


def quantize_multipliers(
    reals: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what `quantize_multiplier` does of each, as ``M`` and shifts.

    :raises GeneralFailureError: if one is negative or not finite.
    """
    legal = (reals >= 0) & (reals < math.inf)
    if not legal.all():
        wrong = float(reals[~legal][0])
        raise GeneralFailureError(f"{wrong} is not a multiplier of quantised values")
    fractions, exponents = np.frexp(reals)
    multipliers = np.floor(fractions * 2**31 + 0.5).astype(np.int64)
    carries = multipliers == 2**31
    shifts = exponents.astype(np.int64) + carries
    counts = shifts >= -31
    return (multipliers >> carries) * counts, shifts * counts


def multiply_by_quantized_multiplier(
    values: ArrayLike, multiplier: ArrayLike, shift: ArrayLike
) -> NDArray[np.int64]:
    """Return ``values`` times ``M * 2**(shift - 31)``, rounded twice, as int64.

    ``values`` must fit in int32 and saturate there when shifted left. Multipliers and
    shifts broadcast against ``values``.
    """
    left = np.clip(np.asarray(shift, np.int64), 0, 30)
    right = np.maximum(-np.asarray(shift, np.int64), 0)
    limit = INT32_MAX >> left
    shifted = np.clip(np.asarray(values, np.int64), -limit - 1, limit) << left
    high = (shifted * np.asarray(multiplier, np.int64) + (1 << 30)) >> 31
    half = np.left_shift(1, right, dtype=np.int64) >> 1
    tie_down = (high < 0) & (right > 0)
    return np.asarray((high + half - tie_down) >> right, np.int64)


Integers: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]


class Offsets(msgspec.Struct, frozen=True, eq=False):
    """What to add to ``sum * scale``, to reach a step where the rule does.

    It is ``above`` for positive steps and ``below`` for all others; for every integer
    sum in int32 the result is at least ``margin`` away from the step. All are
    [channels, 1] or [1, 1].
    """

    above: Reals
    below: Reals
    margin: Reals


class FixedPointRounding:
    """The double rounding of `multiply_by_quantized_multiplier`."""

    def __init__(self, multipliers: Reals) -> None:
        fraction, shift = quantize_multipliers(multipliers)
        self._fraction, self._shift = fraction[:, np.newaxis], shift[:, np.newaxis]
        self.scale = np.ldexp(self._fraction.astype(np.float64), self._shift - 31)

    def __call__(self, sums: Integers) -> Integers:
        """Return the products, rounded twice."""
        return multiply_by_quantized_multiplier(sums, self._fraction, self._shift)

    def first_sums(self, steps: Integers) -> Integers | None:
        """Return the least sums that round to each step, None if that takes a search.

        Where multipliers are below 1, both roundings can be undone: the second one is
        at a step from some quotient on, and the first one at that from some product on.
        """
        right = -self._shift
        if right.min() < 0 or not self._fraction.all():
            return None
        half = (1 << right) >> 1
        quotients = (steps << right) - half + ((steps <= 0) & (right > 0))
        if np.abs(quotients).max(initial=0) > INT32_MAX:
            return None
        products = (quotients << 31) - (1 << 30)
        least = -(-products // self._fraction)
        return np.asarray(np.clip(least, -INT32_MAX, INT32_MAX + 1), np.int64)

    def offsets(self) -> Offsets | None:
        """Return where all steps lie, None where multipliers are 1 or more.

        A step is reached from some integer product on, so that half an integer less
        is as far from that product as from the one before.
        """
        right = -self._shift
        if right.min() < 0 or right.max() > _EXACT_SHIFT or not self._fraction.all():
            return None
        power = np.left_shift(1, right, dtype=np.int64)
        unit = 1.0 / power
        above = ((power >> 1) + 0.5 + 2.0**-32) * unit
        return Offsets(above, above - (right > 0) * unit, 2.0**-32 * unit)


class RealRounding:
    """One rounding of the float64 product, half away from zero."""

    def __init__(self, multipliers: Reals) -> None:
        self.scale = multipliers[:, np.newaxis]

    def first_sums(self, steps: Integers) -> Integers | None:
        """Return None: they have to be searched for."""
        return None

    def offsets(self) -> Offsets | None:
        """Return None: the product is rounded to float64 first."""
        return None

    def __call__(self, sums: Integers) -> Integers:
        """Return the products, rounded once."""
        products = np.clip(sums * self.scale, -INT32_MAX, INT32_MAX)
        return round_half_away(products).astype(np.int64)


RoundingRule: TypeAlias = FixedPointRounding | RealRounding
"""Rounds int32 sums [channels, n] times ``scale``; saturates in int32.

That is [channels, 1] or, one for all channels, [1, 1]. First sums lie within int32 or
just above it.
"""


class RoundingLine(msgspec.Struct, frozen=True, eq=False):
    """Rounds sums as ``trunc(sum * scale + offset)``; all are [channels, 1].

    With ``half``, ``copysign(half, v)`` is added to the line ``v`` first.
    """

    scale: Reals
    offset: Reals
    half: Reals | None = None

    def arrays(self) -> tuple[Reals, ...]:
        """Return scale, offset and, if there is one, half."""
        parts = (self.scale, self.offset)
        return parts if self.half is None else (*parts, self.half)

    def __call__(self, sums: Integers) -> Reals:
        """Return the rounded values of ``sums`` [channels, n]."""
        values = sums * self.scale + self.offset
        if self.half is not None:
            values += np.copysign(self.half, values)
        return np.trunc(values)


def fit(
    rule: RoundingRule, fold: Integers, first: int, last: int, lift: int
) -> RoundingLine | None:
    """Return a line equal to the rule where results are clamped to [first, last].

    The line takes sums from which the constant ``fold`` [channels, 1] is left out. A
    line without ``half`` gives results that are ``lift`` too high, so that truncation
    rounds down; ``first + lift`` must not be negative. None if no such line is found.
    """
    line = _derived(rule, fold, first, last, lift)
    if line is not None:
        return line
    steps = np.arange(first + 1, last + 1)
    at = _first_sums(rule, steps)
    constant = fold * rule.scale
    line = RoundingLine(rule.scale, _middle_offset(rule, at, steps) + constant + lift)
    if _proves(line, at, fold, steps + lift):
        return line
    positive = steps > 0
    above = _middle_offset(rule, at[:, positive], steps[positive])
    below = _middle_offset(rule, at[:, ~positive], steps[~positive])
    offset = (above + below - 1) / 2 + constant
    line = RoundingLine(rule.scale, offset, (above - below + 1) / 2)
    return line if _proves(line, at, fold, steps) else None


def _derived(
    rule: RoundingRule, fold: Integers, first: int, last: int, lift: int
) -> RoundingLine | None:
    """Return what `fit` does, if the margins of the rule's offsets prove it.

    Only sums next to a step matter, for neither line nor rule ever decreases. What the
    line computes there is at most as large as the step and ``fold`` make it. It is a
    line if all that is rounded on the way stays within the margin.
    """
    offsets = rule.offsets()
    if offsets is None:
        return None
    above, below = offsets.above, offsets.below
    constant = fold * rule.scale
    moved = np.abs(constant)
    near = max(abs(first + 1), abs(last)) + rule.scale
    product = near + 1 + moved
    if first >= 0 or last <= 0:
        offset = (above if first >= 0 else below) + lift + constant
        line = RoundingLine(rule.scale, offset)
        lifted = 1.0 + abs(lift)
        terms = [product, moved, near + lifted, lifted + moved, np.array(lifted)]
    elif min(-first, last) >= _MANY_STEPS:
        offset = (above + below - 1) / 2 + constant
        line = RoundingLine(rule.scale, offset, (above - below + 1) / 2)
        terms = [product, moved, 1 + moved, near + 0.5, near]
    else:
        return None
    error = sum(map(_rounding_error, terms))
    return line if bool(np.all(error < offsets.margin)) else None


def _rounding_error(largest: Reals) -> Reals:
    """Return how far a result of float64 is from the exact one, at most.

    The exact one is as large as ``largest`` at most, but for what operands err by.
    """
    return np.asarray(np.spacing(largest + 2.0**-20) / 2)


def _first_sums(rule: RoundingRule, steps: Integers) -> Integers:
    """Return the least sums [channels, n] that the rule rounds to each step or more.

    Where the rule is below a step throughout int32, the sum lies just above int32.
    """
    at = rule.first_sums(steps)
    if at is not None:
        return at
    with np.errstate(divide="ignore"):
        guess = np.ceil((steps - 0.5) / rule.scale)
    at = np.clip(guess, -INT32_MAX, INT32_MAX + 1).astype(np.int64)
    while True:
        too_low = (at <= INT32_MAX) & (rule(at) < steps)
        too_high = (at > -INT32_MAX) & (rule(at - 1) >= steps)
        if not (too_low.any() or too_high.any()):
            return at
        at += too_low.astype(np.int64) - too_high


def _middle_offset(rule: RoundingRule, at: Integers, steps: Integers) -> Reals:
    """Return the middle of the offsets [channels, 1] that put every step in place."""
    least = steps - at * rule.scale
    most = least + rule.scale
    lowest = least.max(axis=1, initial=0.0, keepdims=True, where=at <= INT32_MAX)
    highest = most.min(axis=1, initial=1.0, keepdims=True, where=at > -INT32_MAX)
    return np.asarray((lowest + highest) / 2)


def _proves(line: RoundingLine, at: Integers, fold: Integers, steps: Integers) -> bool:
    """Return whether the line reaches each step at the sum ``at``, and not before."""
    reached = (line(at - fold) >= steps) | (at > INT32_MAX)
    not_before = (line(at - 1 - fold) < steps) | (at <= -INT32_MAX)
    return bool(np.all(reached & not_before))
