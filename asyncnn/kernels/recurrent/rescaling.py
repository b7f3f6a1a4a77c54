"""Integers times real multipliers in fixed point, rounded twice, in place.

Bit for bit `asyncnn.kernels.requantize.multiply_by_quantized_multiplier`, but without
allocating anything.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.requantize import INT32_MAX, quantize_multiplier

_HALF = np.array(1 << 30)
_FRACTION_BITS = np.array(31)
_SIGN_BITS = np.array(63)


class Rescaling:
    """Multiplication by ``reals``, whose shape broadcasts against the values.

    :raises GeneralFailureError: if one of them is negative or not finite.
    """

    def __init__(self, reals: ArrayLike) -> None:
        reals = np.asarray(reals, np.float64)
        pairs = [quantize_multiplier(float(real)) for real in reals.flat]
        factor, shift = np.array(pairs, np.int64).reshape(-1, 2).T
        left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
        # A sum that a left shift takes out of 32 bits saturates there.
        self._limit = (INT32_MAX >> np.minimum(left, 31)).reshape(reals.shape)
        self._factor = (factor << np.minimum(left, 31)).reshape(reals.shape)
        self._right = right.reshape(reals.shape)
        self._half = (np.left_shift(1, right) >> 1).reshape(reals.shape)
        self._ties_down = np.where(right > 0, -1, 0).reshape(reals.shape)

    def bind(self, scratch: Scratch, values: Array) -> Callable[[], None]:
        """Return the pass over ``values``, an int64 array."""
        signs = scratch.transient(values.shape, np.int64)
        clamps = bool((self._limit < INT32_MAX).any())

        def rescale() -> None:
            if clamps:
                values.clip(-self._limit - 1, self._limit, values)
            np.multiply(values, self._factor, out=values)
            np.add(values, _HALF, out=values)
            np.right_shift(values, _FRACTION_BITS, out=values)
            np.right_shift(values, _SIGN_BITS, out=signs)
            np.bitwise_and(signs, self._ties_down, out=signs)
            np.add(values, self._half, out=values)
            np.add(values, signs, out=values)
            np.right_shift(values, self._right, out=values)

        return rescale
