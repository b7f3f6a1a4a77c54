"""Fixed-point arithmetic on arrays in place: rescaling, shifting, looking up."""

from collections.abc import Callable

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

_HALF = np.array(1 << 30)
_FRACTION_BITS = np.array(31)


def saturate(values: Array) -> None:
    """Clamp integers to 16 bits."""
    values.clip(INT16_MIN, INT16_MAX, values)


def look_up(table: Table, places: Array, out: Array) -> None:
    """Write ``table[places]`` to ``out``; places are int64 and within the table."""
    # With mode "clip" NumPy writes to `out` directly, without checking the places.
    table.take(places, None, out, "clip")


class RoundedShift:
    """Divides an array by powers of two, rounding to the nearest, halves away from 0.

    ``shifts`` are positive and broadcast against the values.
    """

    def __init__(self, scratch: Scratch, values: Array, shifts: ArrayLike) -> None:
        dtype = values.dtype
        self._values = values
        self._shifts = np.asarray(shifts, dtype)
        self._halves = np.left_shift(1, self._shifts - 1, dtype=dtype)
        self._sign_bits = np.array(8 * dtype.itemsize - 1, dtype)
        self._signs = scratch.transient(values.shape, dtype)

    def __call__(self) -> None:
        """Replace the values by the quotients."""
        values = self._values
        np.right_shift(values, self._sign_bits, out=self._signs)
        np.add(values, self._halves, out=values)
        np.add(values, self._signs, out=values)
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
        self._factor = factor << left
        self._right: Integers = np.maximum(-shift, 0)
        self._half = np.left_shift(1, self._right) >> 1
        self._ties_down = np.where(self._right > 0, -1, 0)

    def bind(self, scratch: Scratch, values: Array) -> Callable[[], None]:
        """Return the pass over ``values``, an int64 array."""
        signs = scratch.transient(values.shape, np.int64)
        sign_bits = np.array(63)
        may_overflow = bool((self._limit < INT32_MAX).any())

        def rescale() -> None:
            if may_overflow:
                values.clip(-self._limit - 1, self._limit, values)
            np.multiply(values, self._factor, out=values)
            np.add(values, _HALF, out=values)
            np.right_shift(values, _FRACTION_BITS, out=values)
            np.right_shift(values, sign_bits, out=signs)
            np.bitwise_and(signs, self._ties_down, out=signs)
            np.add(values, self._half, out=values)
            np.add(values, signs, out=values)
            np.right_shift(values, self._right, out=values)

        return rescale
