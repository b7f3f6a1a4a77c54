"""Layer normalisation of 16-bit gates in integers.

Source: NN common/QuantUtils.cpp (ApplyLayerNorm) for the roundings; TensorFlow Lite for
the limit of small variances.
"""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.numerics.requantize import (
    INT32_MAX,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from asyncnn.kernels.recurrent.integer.fixed_point import (
    INT16_MAX,
    INT16_MIN,
    Integers,
    high_product,
    rounded_shift,
    saturated_shift,
)

_EXTRA_BITS = 10
_FRACTION_BITS = 12
_ROOT_INTEGER_BITS = 3
_ROOT_STEPS = 5
_ONE = 1 << (31 - _ROOT_INTEGER_BITS)
_HALF_SQRT_2 = 1518500250


class IntegerLayerNorm:
    """Normalises raw gates by weights and bias [gates, units].

    ``scales`` are those of the weights, by gate; a bias has the scale of its weights
    times ``2**-10``. Results are raw gates with 12 fractional bits.
    """

    def __init__(
        self, weights: Integers, bias: Integers, scales: Sequence[float]
    ) -> None:
        self._weights, self._bias, self._scales = weights, bias, scales
        pairs = np.array([quantize_multiplier(scale) for scale in scales])
        self._multiplier, self._shift = pairs.T[..., np.newaxis]
        # Stands for a variance of zero, so that nothing overflows.
        least = [max(1, int(np.float32(10000) * np.float32(s))) for s in scales]
        self._least_variance = np.array(least)[:, np.newaxis]

    def part(self, start: int, stop: int) -> "IntegerLayerNorm":
        """Return the normalisation of gates ``[start, stop)`` alone."""
        chosen = slice(start, stop)
        return IntegerLayerNorm(
            self._weights[chosen], self._bias[chosen], self._scales[chosen]
        )

    def apply(self, gates: Array) -> None:
        """Normalise ``gates``, int64 [batches, gates, units], along the units."""
        units = gates.shape[-1]
        sums = gates.sum(axis=-1, keepdims=True) << _EXTRA_BITS
        mean = np.sign(sums) * (np.abs(sums) // units)
        squares = np.square(gates).sum(axis=-1, keepdims=True)
        share = (1 << 2 * _EXTRA_BITS) // units
        variance = (squares * share - np.square(mean)) >> 2 * _EXTRA_BITS
        variance = np.where(variance < 1, self._least_variance, variance)
        factor, right = _inverse_square_root(variance)
        normalised = multiply_by_quantized_multiplier(
            (gates << _EXTRA_BITS) - mean, factor, -right
        )
        weighted = rounded_shift(normalised * self._weights + self._bias, _EXTRA_BITS)
        raw = multiply_by_quantized_multiplier(
            weighted, self._multiplier, self._shift + _FRACTION_BITS
        )
        np.clip(raw, INT16_MIN, INT16_MAX, out=gates)


def _inverse_square_root(values: Integers) -> tuple[Integers, Integers]:
    """Return ``(M, shift)`` such that ``M * 2**(-31 - shift)`` is the inverse root.

    The value is brought into ``[2**27, 2**29)`` by powers of four, where Newton's
    iteration begins with 1. Source: gemmlowp's fixed-point types with 3 integer bits.
    """
    _, bits = np.frexp(values.astype(np.float64))
    pairs = (31 - bits.astype(np.int64)) // 2 - 1
    scaled = np.where(
        pairs >= 0,
        values << 2 * np.maximum(pairs, 0),
        values >> 2 * np.maximum(-pairs, 0),
    )
    right = 11 - pairs
    half = rounded_shift(scaled >> 1, 1)
    root = np.full_like(scaled, _ONE)
    for _ in range(_ROOT_STEPS):
        square = high_product(root, root, 32)
        cube = saturated_shift(
            high_product(square, root, 32), 2 * _ROOT_INTEGER_BITS, 32
        )
        step = high_product(root, _ONE + _ONE // 2, 32) - high_product(half, cube, 32)
        root = saturated_shift(step, _ROOT_INTEGER_BITS, 32)
    root = high_product(root, _HALF_SQRT_2, 32) << np.maximum(-right, 0)
    is_one = values <= 1
    return np.where(is_one, INT32_MAX, root), np.where(is_one, 0, np.maximum(right, 0))
