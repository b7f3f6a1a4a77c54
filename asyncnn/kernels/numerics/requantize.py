"""Fixed-point multipliers and activation ranges, which quantised kernels share.

A real multiplier is written as ``M * 2**(shift - 31)`` with a 31-bit integer ``M``. An
integer times it is rounded twice, as fixed-point hardware does: first ``floor(x +
1/2)`` of ``x = integer * 2**max(shift, 0) * M / 2**31``, then the division by
``2**-shift``, ties away from zero. Convolutions follow this rule bit for bit; of
FULLY_CONNECTED see `asyncnn.kernels.linear.fully_connected`.

Source: NN common/OperationsExecutionUtils.cpp (QuantizeMultiplier and the activation
ranges); the double rounding of TensorFlow Lite's reference kernels.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncnn.errors import GeneralFailureError
from asyncnn.hal.types import FusedActivationFunc

INT32_MAX = 2**31 - 1

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
    activation: FusedActivationFunc,
    scale: float,
    zero_point: int,
    dtype: np.dtype[Any],
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
