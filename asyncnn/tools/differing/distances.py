"""How far two tensors are apart, in units of what is allowed.

Integers of a quantisation are compared in its steps, floats by a relative and an
absolute tolerance. Where one is quantised and the other is not, or otherwise, both are
compared as real values, in steps of the coarser quantisation.
"""

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand
from asyncnn.runtime.model import TensorInfo
from asyncnn.tools.samples import (
    HAL_ATOL,
    HAL_RTOL,
    HALF_TOLERANCE,
    Tolerance,
    as_narrow,
    errors_and_limits,
    without_common_nan,
)

Info = TensorInfo | Operand
"""What has a type and a quantisation."""


class Allowed(msgspec.Struct, frozen=True):
    """How far elements may be apart: ``lsb`` steps, and floats as in `Tolerance`.

    What is None is what the HAL allows, which for float16, or for arithmetic that is
    ``relaxed`` to it, is more than for float32.
    """

    lsb: int = 1
    rtol: float | None = None
    atol: float | None = None
    relaxed: bool = False

    def of(self, dtype: np.dtype[Any]) -> Tolerance:
        """Return the tolerance for elements of a dtype."""
        rtol, atol = self.rtol, self.atol
        tolerance = Tolerance.asked(self.lsb, rtol, atol)
        if not self.relaxed and dtype != np.float16:
            return tolerance
        return replace(
            tolerance,
            rtol=HALF_TOLERANCE if rtol is None else rtol,
            atol=HALF_TOLERANCE if atol is None else atol,
        )


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """How far a tensor is from another, at most over all samples.

    ``largest`` is in steps of the quantisation if ``in_steps``, else absolute.
    ``units`` are the same in units of what is allowed of an element, and ``typical``
    the root of their mean square. ``differing`` of ``elements`` are out of tolerance.
    """

    largest: float
    units: float
    typical: float
    differing: int
    elements: int
    in_steps: bool
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether all is within tolerance."""
        return not self.differing

    @property
    def rank(self) -> tuple[float, float]:
        """What the largest of several is found by."""
        return self.units, self.typical

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if math.isinf(self.largest):
            return "inf"
        if not self.in_steps:
            return f"{self.largest:.3g}"
        is_whole = float(self.largest).is_integer()
        return f"{self.largest:{'.0f' if is_whole else '.3g'}} LSB"

    def joined(self, other: "Distance | None") -> "Distance":
        """Return the distance over the samples of both."""
        if other is None:
            return self
        worse = max(self, other, key=lambda each: each.rank)
        count = self.elements + other.elements
        squares = self.typical**2 * self.elements + other.typical**2 * other.elements
        return replace(
            worse,
            largest=max(self.largest, other.largest),
            typical=math.sqrt(squares / count) if count else 0.0,
            differing=self.differing + other.differing,
            elements=count,
            problem=self.problem or other.problem,
        )


def is_quantised(info: Info) -> bool:
    """Return whether elements are codes of real values."""
    return bool(info.scale)


def real(array: Array, info: Info) -> Array:
    """Return real values, float64; elements of no quantisation as they are."""
    if not is_quantised(info):
        return array
    values: Array = (array.astype(np.float64) - info.zero_point) * float(info.scale)
    return values


def converted(array: Array, given: Info, wanted: Info, dtype: np.dtype[Any]) -> Array:
    """Return a tensor of one quantisation, or none, as another type has it.

    What lies beyond the range of a quantisation becomes its end; NaN becomes zero.
    """
    same = (given.scale, given.zero_point) == (wanted.scale, wanted.zero_point)
    if array.dtype == dtype and same:
        return array
    values = real(array, given)
    if not is_quantised(wanted):
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    codes = np.nan_to_num(values.astype(np.float64)) / float(wanted.scale)
    codes = np.rint(codes) + wanted.zero_point
    return np.clip(codes, limits.min, limits.max).astype(dtype)


def distance(
    actual: Array, got: Info, expected: Array, wanted: Info, allowed: Allowed
) -> Distance:
    """Return how far ``actual`` is from ``expected``.

    Equal infinities are no difference, nor is NaN in both; NaN in one alone is an
    infinite one. So is another shape, or another kind of elements.
    """
    actual = as_shaped(as_narrow(actual, expected.dtype), expected)
    expected = as_narrow(expected, actual.dtype)
    if actual.shape != expected.shape:
        problem = f"shape {list(actual.shape)}, not {list(expected.shape)}"
        return _apart(expected, problem)
    same = (got.scale, got.zero_point) == (wanted.scale, wanted.zero_point)
    if actual.dtype == expected.dtype and same:
        return _alike(actual, expected, wanted, allowed.of(expected.dtype))
    if is_quantised(got) or is_quantised(wanted):
        step = max(float(got.scale), float(wanted.scale))
        with np.errstate(over="ignore", invalid="ignore"):
            pair = (
                real(each, info).astype(np.float64) / step
                for each, info in ((actual, got), (expected, wanted))
            )
            error = _errors(*pair)
        return _measured(error, np.full(error.shape, float(allowed.lsb)), 1.0, True)
    if {actual.dtype.kind, expected.dtype.kind} == {"f"}:
        wide = np.promote_types(actual.dtype, expected.dtype)
        narrow = min(actual.dtype, expected.dtype, key=lambda each: each.itemsize)
        return _alike(
            actual.astype(wide), expected.astype(wide), wanted, allowed.of(narrow)
        )
    return _apart(expected, f"{actual.dtype}, not {expected.dtype}")


def as_shaped(array: Array, like: Array) -> Array:
    """Return a tensor of rank 0 with the rank that the HAL gives it, or reverse."""
    if array.ndim != like.ndim and array.size == like.size == 1:
        return array.reshape(like.shape)
    return array


def _alike(actual: Array, expected: Array, info: Info, allowed: Tolerance) -> Distance:
    kind = expected.dtype.kind
    if kind == "V":
        differing = (actual != expected).astype(np.float64)
        return _measured(differing, np.zeros(differing.shape), 1.0, False)
    in_steps = kind not in "fc"
    if in_steps and not is_quantised(info):
        allowed = replace(allowed, lsb=0)  # counts, indices, truths
    if kind in "fc":
        actual, expected = without_common_nan(actual, expected)
    error, limit = errors_and_limits(actual, expected, allowed)
    usual = 1.0 if in_steps else HAL_ATOL + HAL_RTOL * np.abs(expected)
    return _measured(error, limit, usual, in_steps)


def _errors(actual: Array, expected: Array) -> Array:
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    errors: Array = np.where(equal, 0.0, np.abs(actual - expected))
    return errors


def _measured(
    error: Array, limit: Array, usual: Array | float, in_steps: bool
) -> Distance:
    """Summarise errors; ``usual`` is the unit where nothing at all is allowed."""
    failing = ~((error <= limit) & np.isfinite(error))
    with np.errstate(all="ignore"):
        units = np.where(limit > 0, error / limit, error / usual)
        units = np.where(error == 0, 0.0, units)
        units = np.nan_to_num(units, nan=np.inf, posinf=np.inf)
        largest = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
        typical = math.sqrt(float(np.mean(np.square(units)))) if units.size else 0.0
    return Distance(
        largest=float(np.max(largest, initial=0.0)),
        units=float(np.max(units, initial=0.0)),
        typical=typical,
        differing=int(failing.sum()),
        elements=int(error.size),
        in_steps=in_steps,
    )


def _apart(expected: Array, problem: str) -> Distance:
    size = max(int(expected.size), 1)
    return Distance(
        largest=math.inf,
        units=math.inf,
        typical=math.inf,
        differing=size,
        elements=size,
        in_steps=False,
        problem=problem,
    )
