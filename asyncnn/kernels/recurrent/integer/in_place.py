"""Fixed-point arithmetic on arrays in place: rescaling, shifts, clamps, look-ups."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.numerics.requantize import INT32_MAX, quantize_multipliers
from asyncnn.kernels.recurrent.integer.fixed_point import (
    INT16_MAX,
    INT16_MIN,
    Integers,
    Table,
)

_NOTHING = np.array(0)
_HALF = np.array(1 << 30)
_FRACTION_BITS = np.array(31)


def clamping(
    values: Array, low: ArrayLike = INT16_MIN, high: ArrayLike = INT16_MAX
) -> Callable[[], object]:
    """Return the pass that clamps integers, to 16 bits unless bounds are given."""
    lowest, highest = (np.asarray(bound, values.dtype) for bound in (low, high))
    return partial(values.clip, lowest, highest, values)


def look_up(table: Table, places: Array, out: Array) -> None:
    """Write ``table[places]`` to ``out``; places are int64 and within the table."""
    # With mode "clip" NumPy writes to `out` directly, without checking the places.
    table.take(places, None, out, "clip")


class RoundedShift:
    """Divides an array by powers of two, rounding to the nearest, halves away from 0.

    ``shifts`` broadcast against the values; ``offset`` is added to the quotients.
    """

    def __init__(
        self, scratch: Scratch, values: Array, shifts: ArrayLike, offset: int = 0
    ) -> None:
        dtype = values.dtype
        self._values = values
        self._shifts = np.asarray(shifts, dtype)
        units = np.left_shift(1, self._shifts, dtype=dtype)
        self._terms = np.asarray(offset * units + (units >> 1))
        self._sign_bits = np.array(8 * dtype.itemsize - 1, dtype)
        self._signs = scratch.transient(values.shape, dtype)
        # Only a shift leaves halves, which a negative sign sends down.
        shifting = self._shifts > 0
        self._down = None if shifting.all() else -shifting.astype(dtype)

    def __call__(self) -> None:
        """Replace the values by the quotients."""
        values, signs = self._values, self._signs
        np.right_shift(values, self._sign_bits, out=signs)
        if self._down is not None:
            np.bitwise_and(signs, self._down, out=signs)
        np.add(values, self._terms, out=values)
        np.add(values, signs, out=values)
        np.right_shift(values, self._shifts, out=values)


class Rescaling:
    """Multiplication by ``reals``, whose shape broadcasts against the values.

    Bit for bit `asyncnn.kernels.numerics.requantize.multiply_by_quantized_multiplier`.

    :raises GeneralFailureError: if one of them is negative or not finite.
    """

    def __init__(self, reals: ArrayLike) -> None:
        reals = np.asarray(reals, np.float64)
        factor, shift = quantize_multipliers(reals)
        left = np.clip(shift, 0, 31)
        self._limit = INT32_MAX >> left
        self._factor = np.asarray(factor << left)
        self._right: Integers = np.maximum(-shift, 0)

    def bind(
        self,
        scratch: Scratch,
        values: Array,
        fold: Integers = _NOTHING,
        offset: int = 0,
    ) -> Callable[[], None]:
        """Return the pass over int64 ``values``: ``(values + fold) * real + offset``.

        ``fold`` broadcasts against the values.
        """
        factor = self._factor
        shift = RoundedShift(scratch, values, self._right, offset)
        clamp = clamping(values, -self._limit - 1, self._limit)
        may_overflow = bool((self._limit < INT32_MAX).any())
        term = _HALF if may_overflow else np.asarray(fold * factor + _HALF)

        def rescale() -> None:
            if may_overflow:
                np.add(values, fold, out=values)
                clamp()
            np.multiply(values, factor, out=values)
            np.add(values, term, out=values)
            np.right_shift(values, _FRACTION_BITS, out=values)
            shift()

        return rescale
