"""What follows the sums of a convolution: bias, fused activation and output type.

An `Epilogue` is bound to a buffer of sums [rows, length] in which the channels repeat
along each row, and then turns its contents into stored values again and again. A row
holds many pixels, because NumPy is fast only where inner loops are long.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.rounding import Integers, Line, RoundingRule, fit

Finish: TypeAlias = Callable[[Array], None]
"""Writes stored values into an array of the shape of the sums."""

_LONG_ROW = 768


def pixels_per_row(pixels: int, channels: int) -> int:
    """Return the least divisor of ``pixels`` with which rows are long enough."""
    wanted = -(-_LONG_ROW // channels)
    divisors = (count for count in range(wanted, pixels) if pixels % count == 0)
    return next(divisors, pixels)


class Epilogue(Protocol):
    """Turns sums into stored values."""

    def bind(self, scratch: Scratch, sums: Array) -> Finish:
        """Return the pass over ``sums`` [rows, length], which it may overwrite."""


class FloatEpilogue(msgspec.Struct, frozen=True, eq=False):
    """Adds ``bias`` [channels], clamps to ``bounds`` and stores as ``dtype``."""

    bias: Array
    bounds: tuple[float, float]
    dtype: np.dtype[Any]

    def bind(self, scratch: Scratch, sums: Array) -> Finish:
        """Return the pass over float32 ``sums``."""
        bias = np.resize(self.bias, sums.shape[1])
        low, high = (np.array(bound, np.float32) for bound in self.bounds)
        clamps = bool(np.isfinite(self.bounds).any())

        def finish(out: Array) -> None:
            np.add(sums, bias, out=out)
            if clamps:
                out.clip(low, high, out=out)

        def finish_narrow(out: Array) -> None:
            finish(sums)
            np.copyto(out, sums, casting="same_kind")

        return finish if self.dtype == np.float32 else finish_narrow


class QuantizedEpilogue:
    """Adds ``fold`` [channels] to exact sums, rounds by a rule, clamps to ``bounds``.

    ``fold`` is what does not depend on the data: bias and zero points. Follows
    ``line``, which is what `fitted_line` gives; if that is nothing, the rule itself,
    made by ``make_rule``.
    """

    def __init__(
        self,
        make_rule: Callable[[], RoundingRule],
        fold: Integers,
        zero_point: int,
        bounds: tuple[int, int],
        line: Sequence[Array],
    ) -> None:
        self._make_rule = make_rule
        self._fold = fold[:, np.newaxis]
        self._zero_point = zero_point
        self._bounds = bounds
        self._lift = _lift(bounds)
        self._line: Line | None = None
        if line:
            stage, *parts = line
            self._stage = stage.dtype
            self._line = Line(*parts)

    def bind(self, scratch: Scratch, sums: Array) -> Finish:
        """Return the pass over ``sums``, integers in float32 or float64."""
        if self._line is None:
            return self._bind_rule(sums)
        values = scratch.transient(sums.shape, np.float64)
        stage = scratch.transient(sums.shape, self._stage)
        follow = _bind_line(self._line, sums, values)
        if self._line.half is None:
            return self._bind_rising(follow, values, stage)
        half = np.resize(self._line.half, sums.shape[1])
        signs = scratch.transient(sums.shape, np.float64)
        return self._bind_signed(follow, values, stage, half, signs)

    def _bind_rising(
        self, follow: Callable[[], None], values: Array, stage: Array
    ) -> Finish:
        low, high = (np.array(b + self._lift, stage.dtype) for b in self._bounds)

        def finish(out: Array) -> None:
            follow()
            np.copyto(stage, values, casting="unsafe")
            stage.clip(low, high, out=stage)
            np.copyto(out, stage, casting="unsafe")

        return finish

    def _bind_signed(
        self,
        follow: Callable[[], None],
        values: Array,
        stage: Array,
        half: Array,
        signs: Array,
    ) -> Finish:
        low, high = (np.array(bound, stage.dtype) for bound in self._bounds)
        zero_point = np.array(self._zero_point, stage.dtype)

        def finish(out: Array) -> None:
            follow()
            np.copysign(half, values, out=signs)
            np.add(values, signs, out=values)
            np.copyto(stage, values, casting="unsafe")
            np.add(stage, zero_point, out=stage)
            stage.clip(low, high, out=stage)
            np.copyto(out, stage, casting="unsafe")

        return finish

    def _bind_rule(self, sums: Array) -> Finish:
        channels = len(self._fold)
        rule = self._make_rule()

        def finish(out: Array) -> None:
            by_channel = sums.reshape(-1, channels).T.astype(np.int64)
            stored = rule(by_channel + self._fold) + self._zero_point
            out[:] = stored.clip(*self._bounds).T.reshape(out.shape)

        return finish


def fitted_line(
    rule: RoundingRule,
    fold: Integers,
    reach: Integers,
    zero_point: int,
    bounds: tuple[int, int],
) -> tuple[Array, ...]:
    """Return the line that equals the rule within ``bounds``, nothing if none does.

    ``reach`` [channels] is the largest magnitude of a sum. The first array is empty:
    its dtype is that of integers which hold whatever the line gives within reach. The
    others are those of the `Line`.
    """
    low, high = bounds
    lift = zero_point + _lift(bounds)
    line = fit(rule, fold[:, np.newaxis], low - zero_point, high - zero_point, lift)
    stage = None if line is None else _stage_dtype(line, reach[:, np.newaxis])
    if line is None or stage is None:
        return ()
    return np.empty(0, stage), *line.arrays()


def _lift(bounds: tuple[int, int]) -> int:
    """Return what makes stored values positive: the cast to a byte drops it again."""
    return 256 if bounds[0] < 0 else 0


def _stage_dtype(line: Line, reach: Integers) -> type[np.integer[Any]] | None:
    """Return the integers that hold what the line gives within ``reach``, and some."""
    largest = max(-line(-reach).min(), line(reach).max()) + 512
    if largest < 2**15:
        return np.int16
    return np.int32 if largest < 2**31 else None


def _bind_line(line: Line, sums: Array, values: Array) -> Callable[[], None]:
    """Return what fills float64 ``values`` with the line at ``sums``, not truncated."""
    scale, offset = (np.resize(v, sums.shape[1]) for v in (line.scale, line.offset))

    def follow() -> None:
        np.copyto(values, sums)
        np.multiply(values, scale, out=values)
        np.add(values, offset, out=values)

    return follow
