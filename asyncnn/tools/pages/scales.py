"""Numbers as text, and where they lie on an axis."""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

DASH = "\N{EN DASH}"
"""In place of what was not measured."""

_THIN = "\N{NARROW NO-BREAK SPACE}"
"""Between thousands."""

_SCALED = (
    {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
)
_ALIASES = {"µs": "us", "bytes": "B"}

_LOGARITHMIC = 10.0
"""Values that span more than this are drawn on a logarithmic axis."""

_LARGEST = 1e300
"""Beyond it, and next to zero, the arithmetic of axes ends in infinity."""

_MOST_TICKS = 6

_ROOM = 0.1
"""Decades that the least value is above the end of its axis, so that it has a bar."""


def finite(values: Iterable[float | None]) -> list[float]:
    """Return those that were measured, and of which an axis can be made."""
    known = (v for v in values if v is not None and abs(v) < _LARGEST)
    return [v if abs(v) > 1 / _LARGEST else 0.0 for v in known]


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits; integers stand in full."""
    if value is None or not math.isfinite(value):
        return DASH
    if isinstance(value, int) or value == 0:
        return _grouped(f"{value:.0f}")
    exponent = math.floor(math.log10(abs(value)))
    if not -5 < exponent < 15:
        return f"{value:.{digits - 1}e}"
    return _grouped(f"{value:.{max(0, digits - 1 - exponent)}f}")


def _grouped(text: str) -> str:
    whole, dot, decimals = text.partition(".")
    if len(whole.lstrip("-")) < 5:
        return text
    return f"{int(whole):,}".replace(",", _THIN) + dot + decimals


def measure(value: float | None, unit: str, *, digits: int = 3) -> str:
    """Return a number with its unit; times and sizes in the unit that reads best."""
    if value is None or not math.isfinite(value):
        return DASH
    unit = _ALIASES.get(unit, unit)
    for units in _SCALED:
        if unit in units and value:
            base = value * units[unit]
            # Rounding must not leave 1000 of a unit where 1 of the next is meant.
            names = [n for n, size in units.items() if abs(base) >= 0.9995 * size]
            unit = names[-1] if names else next(iter(units))
            value = base / units[unit]
    text = figure(value, digits)
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}{_THIN if unit else ''}{unit}"


class Scale(msgspec.Struct, frozen=True):
    """An axis from ``low`` to ``high``."""

    low: float
    high: float
    is_logarithmic: bool

    def at(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        low, high = self.low, self.high
        if self.is_logarithmic:
            value, low, high = map(math.log10, (max(value, low), low, high))
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self) -> list[float]:
        """Return some round values within."""
        if not self.is_logarithmic:
            step = _round_step((self.high - self.low) / (_MOST_TICKS - 1))
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            return [n * step for n in range(first, last + 1)]
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            ticks = list(self._within(factors, range(first, last + 1)))
            if len(ticks) <= _MOST_TICKS:
                return ticks
        return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]

    def _within(
        self, factors: Sequence[int], decades: Iterable[int]
    ) -> Iterator[float]:
        for decade in decades:
            for factor in factors:
                value = factor * 10.0**decade
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    yield value


def scale_of(values: Sequence[float]) -> Scale:
    """Return an axis for values, logarithmic if they span more than a decade.

    :raises ValueError: if there are none.
    """
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOGARITHMIC:
        return Scale(low / 1.05, high * 1.05, True)
    if low == high:
        room = abs(low) / 2 or 1.0
        return Scale(low - room, high + room, False)
    if 0 <= low < high / 2:
        low = 0.0
    step = _round_step((high - low) / (_MOST_TICKS - 1))
    return Scale(
        math.floor(low / step + 1e-9) * step,
        math.ceil(high / step - 1e-9) * step,
        False,
    )


def decades_of(values: Sequence[float]) -> Scale:
    """Return an axis of whole decades for values above zero, the least not at its end.

    :raises ValueError: if there are none.
    """
    first = math.floor(math.log10(min(values)) - _ROOM)
    last = max(first + 1, math.ceil(math.log10(max(values))))
    return Scale(10.0**first, 10.0**last, True)


def _round_step(step: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, ... that is at least ``step``."""
    decade = 10.0 ** math.floor(math.log10(step))
    return next(f * decade for f in (1, 2, 5, 10) if f * decade >= step * (1 - 1e-9))
