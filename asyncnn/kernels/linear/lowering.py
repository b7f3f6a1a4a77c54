"""Convolution-like operations as products of float matrices and an epilogue.

Quantised operands are multiplied as integers in floating point. That is exact: of every
output channel ``sum(|weight - zero point|) * max(|data|)`` stays below the integers
that the chosen float holds. The data's zero point goes into the epilogue, and what pads
an image is that zero point.

The sums times ``data scale * filter scale / output scale``, computed in float64, are
rounded by the rule of the operation. Bias scales are not used: they are that product of
the first two. Signed and unsigned tensors give the same real values.

What follows the sums are bias, fused activation and output type. An `Epilogue` is bound
to a buffer of sums [rows, length] in which the channels repeat along each row, and then
turns its contents into stored values again and again. A row holds many pixels, because
NumPy is fast only where inner loops are long.

Source: 1.3/types.hal; the multipliers of TensorFlow Lite's reference kernels.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.numerics import code_limits
from asyncnn.kernels.rounding import (
    FixedPointRounding,
    Integers,
    Reals,
    RoundingLine,
    RoundingRule,
    activation_bounds,
    fit,
    quantized_activation_range,
)

Finish: TypeAlias = Callable[[Array], None]
"""Writes stored values into an array of the shape of the sums."""

_LONG_ROW = 768


def pixels_per_row(pixels: int, channels: int) -> int:
    """Return the least divisor of ``pixels`` with which rows are long enough."""
    wanted = -(-_LONG_ROW // channels)
    divisors = (count for count in range(wanted, pixels) if pixels % count == 0)
    return next(divisors, pixels)


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
        self._line: RoundingLine | None = None
        if line:
            stage, *parts = line
            self._stage = stage.dtype
            self._line = RoundingLine(*parts)

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


Epilogue: TypeAlias = FloatEpilogue | QuantizedEpilogue
"""Turns sums into stored values."""


def fitted_line(
    rule: RoundingRule,
    fold: Integers,
    reach: Integers,
    zero_point: int,
    bounds: tuple[int, int],
) -> tuple[Array, ...]:
    """Return the line that equals the rule within ``bounds``, nothing if none does.

    ``reach`` [channels] is the largest magnitude of a sum. The first array is empty:
    its dtype is of integers which hold whatever the line gives within reach. The
    others are the `RoundingLine`'s.
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


def _stage_dtype(line: RoundingLine, reach: Integers) -> type[np.integer[Any]] | None:
    """Return the integers that hold what the line gives within ``reach``, and some."""
    largest = max(-line(-reach).min(), line(reach).max()) + 512
    if largest < 2**15:
        return np.int16
    return np.int32 if largest < 2**31 else None


def _bind_line(line: RoundingLine, sums: Array, values: Array) -> Callable[[], None]:
    """Return what fills float64 ``values`` with the line at ``sums``, not truncated."""
    scale, offset = (np.resize(v, sums.shape[1]) for v in (line.scale, line.offset))

    def follow() -> None:
        np.copyto(values, sums)
        np.multiply(values, scale, out=values)
        np.add(values, offset, out=values)

    return follow


Rounding: TypeAlias = Callable[[Reals], RoundingRule]
"""Makes a rule of real multipliers, one for all channels or one for each."""

_EXACT_IN_FLOAT32 = 2**24

_COLUMNS = 16
"""Columns of float32 that make a line of most caches."""

_CONFLICTING_BYTES = 2**11
"""What lies a multiple of this apart competes for the same places in most caches."""


class Lowered(msgspec.Struct, frozen=True, eq=False):
    """Weights [..., channels] to multiply with, and what becomes of the sums.

    Data are cast to the dtype of the weights; ``zero`` is what stands for 0 in them.
    """

    weights: Array
    zero: int
    epilogue: Epilogue


def lower(
    operation: BoundOperation,
    weights: Array,
    activation: FusedActivationFunc,
    rounding: Rounding = FixedPointRounding,
    *,
    centered: bool = False,
) -> Lowered:
    """Lower an operation whose inputs are data, filter and bias.

    ``weights`` is a view of the filter's stored values, output channels last. With
    ``centered``, the kernel itself subtracts ``zero`` from the data.

    :raises ValueNeededError: if the bias is not known before execution.
    """
    bias = operation.value(2)
    if operation.input(0).type in QUANT8_TYPES:
        return _lower_quantized(
            operation, weights, bias, activation, rounding, centered
        )
    (packed,) = operation.pack("lowered", lambda: (_contiguous(weights, np.float32),))
    epilogue = FloatEpilogue(
        bias.astype(np.float32, copy=False),
        activation_bounds(activation),
        operation.outputs[0].dtype,
    )
    return Lowered(packed, 0, epilogue)


def _lower_quantized(
    operation: BoundOperation,
    weights: Array,
    bias: Array,
    activation: FusedActivationFunc,
    rounding: Rounding,
    centered: bool,
) -> Lowered:
    data, output = operation.input(0), operation.outputs[0]
    bounds = quantized_activation_range(
        activation, output.scale, output.zero_point, output.dtype
    )

    def make_rule() -> RoundingRule:
        return rounding(_real_multipliers(operation))

    def make() -> tuple[Array, ...]:
        packed, fold, reach = _packed_integers(operation, weights, bias, centered)
        line = fitted_line(make_rule(), fold, reach, output.zero_point, bounds)
        return packed, fold, *line

    packed, fold, *line = operation.pack("lowered", make)
    epilogue = QuantizedEpilogue(make_rule, fold, output.zero_point, bounds, line)
    return Lowered(packed, data.zero_point, epilogue)


def _packed_integers(
    operation: BoundOperation, weights: Array, bias: Array, centered: bool
) -> tuple[Array, Array, Array]:
    """Return the real weights as floats, and fold and reach for the epilogue."""
    data, filter_ = operation.input(0), operation.input(1)
    real_weights = _contiguous(weights, np.float32)
    if filter_.zero_point:
        real_weights -= np.float32(filter_.zero_point)
    taps = real_weights.reshape(-1, weights.shape[-1])
    farthest = len(taps) * largest_magnitude(filter_, filter_.zero_point)
    ones = np.ones(len(taps), exact_dtype(farthest))
    reach = np.dot(ones, np.abs(taps)).astype(np.int64)
    reach *= largest_magnitude(data, data.zero_point if centered else 0)
    fold = bias.astype(np.int64)
    if data.zero_point and not centered:
        fold -= data.zero_point * np.dot(ones, taps).astype(np.int64)
    dtype = exact_dtype(int(reach.max(initial=0)))
    return real_weights.astype(dtype, copy=False), fold, reach


def _contiguous(weights: Array, dtype: DTypeLike) -> Array:
    """Return a copy in C order.

    Where columns lie so far apart that a cache holds only a few of them at a time, so
    many are copied at a time: otherwise each line is fetched for each of its elements.
    """
    is_conflicting = (
        weights.ndim == 2
        and weights.T.flags.c_contiguous
        and weights.strides[1] % _CONFLICTING_BYTES == 0
    )
    if not is_conflicting:
        return weights.astype(dtype, order="C")
    copied = np.empty(weights.shape, dtype)
    for start in range(0, weights.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        np.copyto(copied[:, columns], weights[:, columns], casting="unsafe")
    return copied


def largest_magnitude(operand: BoundOperand, zero: int) -> int:
    """Return how far a code of ``operand`` can be from ``zero``."""
    return max(abs(code - zero) for code in code_limits(operand.dtype))


def exact_dtype(reach: int) -> type[np.float32 | np.float64]:
    """Return the floats in which integers up to ``reach`` and their sums are exact."""
    return np.float32 if reach < _EXACT_IN_FLOAT32 else np.float64


def _real_multipliers(operation: BoundOperation) -> Reals:
    """Return the scale of the sums in output steps, one or one for each channel."""
    data, filter_, output = operation.input(0), operation.input(1), operation.outputs[0]
    quant = filter_.channel_quant
    scales = (filter_.scale,) if quant is None else quant.scales
    reals = np.array(scales, np.float64)
    is_legal = output.scale > 0 and np.isfinite(reals).all() and isfinite(data.scale)
    if not is_legal:
        operation.require(
            False,
            f"scales {data.scale}, {scales} and {output.scale} "
            "are not for quantised values",
        )
    return float(data.scale) * reals / float(output.scale)
