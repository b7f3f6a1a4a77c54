"""What follows the sums of a convolution: bias, fused activation and output type.

An `Epilogue` is bound to a buffer of accumulators [n, length] in which the channels
repeat along each row, and then turns its contents into stored values again and again.
Rows span many pixels, because NumPy needs inner loops of some hundred elements to be
fast: `pixels_per_row` chooses how many.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.affine import Integers, Line, RoundingRule, fit
from asyncnn.kernels.kernel import Scratch

Finish: TypeAlias = Callable[[Array], None]
"""Writes the stored values to an array of the same shape as the accumulators."""

_ROW_LENGTH = 768


def pixels_per_row(pixels: int, channels: int) -> int:
    """Return a divisor of ``pixels`` that makes rows long, but not much too long."""
    wanted = -(-_ROW_LENGTH // channels)
    return next(
        (count for count in range(wanted, pixels) if pixels % count == 0), pixels
    )


class Epilogue(Protocol):
    """Turns accumulators into stored values."""

    def bind(self, scratch: Scratch, accumulators: Array) -> Finish:
        """Return the pass over ``accumulators`` [n, length], which it may overwrite."""
        ...


class FloatEpilogue(msgspec.Struct, frozen=True, eq=False):
    """Adds ``bias`` [channels], clamps to ``bounds`` and stores as ``dtype``."""

    bias: Array
    bounds: tuple[float, float]
    dtype: np.dtype[Any]

    def bind(self, scratch: Scratch, accumulators: Array) -> Finish:
        """Return the pass over float32 accumulators [n, length]."""
        bias = np.resize(self.bias, accumulators.shape[1])
        low, high = (np.array(bound, np.float32) for bound in self.bounds)
        clamps = bool(np.isfinite([low, high]).any())

        def finish(out: Array) -> None:
            np.add(accumulators, bias, out=out)
            if clamps:
                out.clip(low, high, out=out)

        def finish_narrow(out: Array) -> None:
            finish(accumulators)
            np.copyto(out, accumulators, casting="same_kind")

        return finish if self.dtype == np.float32 else finish_narrow


class QuantizedEpilogue:
    """Multiplies sums by real multipliers, rounded by a `RoundingRule`, and clamps.

    ``fold`` [channels] is added to the sums first: bias and zero points of the inputs.
    No sum exceeds ``reach`` [channels] in magnitude.
    """

    def __init__(
        self,
        rule: RoundingRule,
        fold: Integers,
        reach: Integers,
        zero_point: int,
        bounds: tuple[int, int],
    ) -> None:
        self._rule = rule
        self._fold = fold[:, np.newaxis]
        self._zero_point = zero_point
        self._bounds = bounds
        low, high = bounds
        # A multiple of 256 vanishes when the last cast keeps the low byte only.
        self._lift = 256 if low < 0 else 0
        first, last = low - zero_point, high - zero_point
        base = zero_point + self._lift
        self._line = fit(rule, self._fold, first, last, base)
        self._stage = self._stage_dtype(reach[:, np.newaxis])

    def _stage_dtype(self, reach: Integers) -> type[np.signedinteger[Any]] | None:
        """Return the integers that hold every value of the line and then some."""
        if self._line is None:
            return None
        extreme = max(-self._line(-reach).min(), self._line(reach).max()) + 512
        if extreme < 2**15:
            return np.int16
        return np.int32 if extreme < 2**31 else None

    def bind(self, scratch: Scratch, accumulators: Array) -> Finish:
        """Return the pass over accumulators [n, length] that hold exact integers."""
        if self._line is None or self._stage is None:
            return self._bind_rule(accumulators)
        return self._bind_line(self._line, scratch, accumulators, self._stage)

    def _bind_line(
        self,
        line: Line,
        scratch: Scratch,
        accumulators: Array,
        dtype: type[np.signedinteger[Any]],
    ) -> Finish:
        length = accumulators.shape[1]
        values = scratch.transient(accumulators.shape, np.float64)
        stage = scratch.transient(accumulators.shape, dtype)
        scale, offset = (np.resize(v, length) for v in (line.scale, line.offset))

        def finish_rising(out: Array) -> None:
            np.copyto(values, accumulators)
            np.multiply(values, scale, out=values)
            np.add(values, offset, out=values)
            np.copyto(stage, values, casting="unsafe")
            stage.clip(low, high, out=stage)
            np.copyto(out, stage, casting="unsafe")

        if line.half is None:
            low, high = (np.array(b + self._lift, dtype) for b in self._bounds)
            return finish_rising
        low, high = (np.array(b, dtype) for b in self._bounds)
        half = np.resize(line.half, length)
        signed_half = scratch.transient(accumulators.shape, np.float64)
        zero_point = np.array(self._zero_point, dtype)

        def finish_signed(out: Array) -> None:
            np.copyto(values, accumulators)
            np.multiply(values, scale, out=values)
            np.add(values, offset, out=values)
            np.copysign(half, values, out=signed_half)
            np.add(values, signed_half, out=values)
            np.copyto(stage, values, casting="unsafe")
            np.add(stage, zero_point, out=stage)
            stage.clip(low, high, out=stage)
            np.copyto(out, stage, casting="unsafe")

        return finish_signed

    def _bind_rule(self, accumulators: Array) -> Finish:
        channels = len(self._fold)
        low, high = self._bounds

        def finish(out: Array) -> None:
            sums = accumulators.reshape(-1, channels).T.astype(np.int64)
            stored = self._rule(sums + self._fold) + self._zero_point
            np.copyto(
                out.reshape(-1, channels).T, stored.clip(low, high), casting="unsafe"
            )

        return finish
