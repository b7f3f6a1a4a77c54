"""The steps of an integer LSTM cell: exact sums, rescaling, layer normalisation.

Sums of products of 8-bit data and weights go by way of floats that hold them exactly;
everything else is fixed-point arithmetic on integers, rounded as the reference device
and TensorFlow Lite do: 16 bits in, 16 bits out, always the same.

A raw value with ``m`` integer bits stands for ``raw * 2**(m - 15)``. Gates have three
integer bits, what tanh and the logistic function return has none. Both functions are
evaluated once for all 65,536 values, in the integer steps of the gemmlowp library, so
that a cell computes what TensorFlow Lite does, bit for bit. They take and return int64
arrays that hold such raw values.

Source: NN common/QuantUtils.cpp (ApplyLayerNorm) for the roundings; TensorFlow Lite for
the limit of small variances.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.kernels.rounding import (
    INT32_MAX,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantize_multipliers,
)

Integers: TypeAlias = NDArray[np.int64]
Table: TypeAlias = NDArray[np.int32]
"""Results by raw value plus `TABLE_OFFSET`; read-only."""

INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
TABLE_OFFSET = -INT16_MIN
GATE_INTEGER_BITS = 3

_RECIPROCAL_BITS = 2
_RECIPROCAL_STEPS = 3
_LARGEST_EXPONENT = 4


def rounded_shift(values: Integers, shift: Integers | int) -> Integers:
    """Divide by ``2**shift`` and round to the nearest, halves away from zero."""
    half = np.left_shift(1, shift, dtype=values.dtype) >> 1
    ties_down = (values < 0) & (shift > 0)
    return np.asarray((values + half - ties_down) >> shift)


_BOUNDS = np.array(INT16_MIN), np.array(INT16_MAX)


def saturated(values: Integers) -> Integers:
    """Clamp to 16 bits."""
    return np.asarray(values.clip(*_BOUNDS))


def high_product(first: Integers, second: Integers | int, bits: int = 16) -> Integers:
    """Multiply fixed-point numbers of so many bits, rounding halves up.

    Integer bits add up. Only ``-1 * -1`` saturates.
    """
    product = (first * second + (1 << (bits - 2))) >> (bits - 1)
    return np.asarray(np.minimum(product, (1 << (bits - 1)) - 1))


def saturated_shift(values: Integers, shift: int, bits: int = 16) -> Integers:
    """Multiply by ``2**shift``, clamped to so many bits."""
    limit = 1 << (bits - 1)
    return np.asarray(np.clip(values << shift, -limit, limit - 1))


@cache
def tanh_table(integer_bits: int) -> Table:
    """Return tanh of every raw value with so many integer bits, 0 to 6."""
    exp = _exp_of_negative(_not_positive(), integer_bits + 1)
    negative = -saturated_shift(
        _reciprocal_of_mean(exp) - _raw(1, _RECIPROCAL_BITS), _RECIPROCAL_BITS
    )
    negative[-1] = 0
    return _frozen(negative, -negative[-2:0:-1])


@cache
def gate_table() -> Table:
    """Return the logistic function of every raw gate, and behind it their tanh."""
    exp = _exp_of_negative(_not_positive(), GATE_INTEGER_BITS)
    above = saturated_shift(_reciprocal_of_mean(exp), _RECIPROCAL_BITS - 1)
    negative = INT16_MAX - above
    negative[-1] = _raw(0.5, 0)
    return _frozen(negative, above[-2:0:-1], tanh_table(GATE_INTEGER_BITS))


def gate_places(gates: int, units: int) -> Integers:
    """Return what to add to raw gates [gates * units] to index the `gate_table`.

    All gates but the last take the logistic function, that one takes tanh.
    """
    by_gate = np.full(gates, TABLE_OFFSET)
    by_gate[-1] += INT16_MAX - INT16_MIN + 1
    return np.repeat(by_gate, units)


def _not_positive() -> Array:
    # All that follows fits in 32 bits, which takes a fraction of the time of 64.
    return np.arange(INT16_MIN, 1, dtype=np.int32)


def _frozen(negative: Array, *others: Array) -> Table:
    table = np.concatenate([negative, *others])
    table.flags.writeable = False
    return table


def _raw(real: float, integer_bits: int) -> int:
    return round(math.ldexp(real, 15 - integer_bits))


def _exp_of_negative(raw: Integers, integer_bits: int) -> Integers:
    """Return exp of values that are not positive; the result has no integer bits.

    The value is split into a part in ``[-1/4, 0)``, for which a polynomial serves, and
    a multiple of 1/4, each bit of which brings a constant factor.
    """
    quarter = _raw(0.25, integer_bits)
    part = (raw & (quarter - 1)) - quarter
    result = _exp_near_zero(part << integer_bits)
    multiple = part - raw
    for exponent in range(-2, min(integer_bits, _LARGEST_EXPONENT + 1)):
        factor = _raw(math.exp(-(2.0**exponent)), 0)
        is_set = multiple & _raw(2.0**exponent, integer_bits) != 0
        result = np.where(is_set, high_product(result, factor), result)
    result = np.where(raw < -(32 << (15 - integer_bits)), 0, result)
    return np.where(raw == 0, INT16_MAX, result)


def _exp_near_zero(raw: Integers) -> Integers:
    """Return exp of ``[-1/4, 0)`` by the Taylor series around -1/8."""
    x = raw + _raw(1 / 8, 0)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    third = high_product(rounded_shift(x4, 2) + x3, _raw(1 / 3, 0))
    series = x + rounded_shift(third + x2, 1)
    center = _raw(math.exp(-1 / 8), 0)
    return np.minimum(center + high_product(series, center), INT16_MAX)


def _reciprocal_of_mean(raw: Integers) -> Integers:
    """Return ``2 / (1 + x)`` with two integer bits, for ``x`` in [0, 1].

    Newton's division, begun with the line that is best for denominators in [1/2, 1].
    """
    mean = (raw + INT16_MAX + 1) >> 1
    result = _raw(48 / 17, _RECIPROCAL_BITS) + high_product(
        mean, _raw(-32 / 17, _RECIPROCAL_BITS)
    )
    for _ in range(_RECIPROCAL_STEPS):
        residual = _raw(1, _RECIPROCAL_BITS) - high_product(mean, result)
        change = high_product(result, residual)
        result = result + saturated_shift(change, _RECIPROCAL_BITS)
    return result


_EXACT_FLOAT32 = 2**24
_LARGEST_CODE = 255


class Product(msgspec.Struct, frozen=True, eq=False):
    """Integer ``weights`` [inputs, columns] as floats in which all sums are exact.

    ``fold`` [columns] is what the sums lack: the bias and the zero point of the data.
    """

    weights: Array
    fold: Integers

    @classmethod
    def of(
        cls,
        operation: BoundOperation,
        name: str,
        read: Callable[[], Array],
        data_zero_point: int,
        bias: Integers | None,
        *,
        as_codes: bool = False,
    ) -> "Product":
        """Pack weights [columns, inputs] for stored data of that zero point.

        ``read`` gives them; it is not called if a cache has what they are packed to.
        What was compiled takes them ``as_codes``, as they are.
        """

        def make() -> tuple[Array, ...]:
            weights = read()
            fold = weights.sum(axis=1, dtype=np.int64) * -data_zero_point
            if bias is not None:
                fold = fold + bias
            if as_codes:
                return weights, fold
            weights = weights.astype(np.int64)
            reach = int(np.abs(weights).sum(axis=1).max(initial=0)) * _LARGEST_CODE
            dtype = np.float32 if reach < _EXACT_FLOAT32 else np.float64
            return np.ascontiguousarray(weights.T, dtype), fold

        return cls(*(make() if as_codes else operation.pack(name, make)))

    def sums(self, data: Array) -> Integers:
        """Return the sums [batches, columns] of stored data [batches, inputs]."""
        exact = data.astype(self.weights.dtype).dot(self.weights)
        return np.asarray(exact.astype(np.int64) + self.fold)


_NOTHING = np.array(0)
_UNLIMITED = np.array(1 << 62)


class Rescaling:
    """Multiplication by ``reals``, whose shape broadcasts against the values.

    Each of them stands for ``times`` in a row on the last axis. Bit for bit
    `asyncnn.kernels.rounding.multiply_by_quantized_multiplier`.

    :raises GeneralFailureError: if one of them is negative or not finite.
    """

    def __init__(self, reals: ArrayLike, times: int = 1) -> None:
        factor, shift = quantize_multipliers(np.asarray(reals, np.float64))
        left = np.clip(shift, 0, 31)
        terms = [INT32_MAX >> left, np.asarray(factor << left), np.maximum(-shift, 0)]
        if times > 1:
            terms = [np.repeat(each, times, axis=-1) for each in terms]
        self._limit, self._factor, self._right = terms
        self._may_overflow = bool(left.any())

    def terms(self, fold: Integers = _NOTHING) -> Integers:
        """Return what a pass computes with: folds, factors, right shifts, limits."""
        limit = self._limit if self._may_overflow else _UNLIMITED
        parts = np.broadcast_arrays(fold, self._factor, self._right, limit)
        return np.stack(parts)

    def __call__(self, values: Integers) -> Integers:
        """Return the products, rounded."""
        if self._may_overflow:
            values = values.clip(-self._limit - 1, self._limit)
        return rounded_shift((values * self._factor + (1 << 30)) >> 31, self._right)


_EXTRA_BITS = 10
_NORMALIZED_FRACTION_BITS = 12
_ROOT_INTEGER_BITS = 3
_ROOT_STEPS = 5
_ONE = 1 << (31 - _ROOT_INTEGER_BITS)
_HALF_SQRT_2 = 1518500250


class IntegerLayerNorm:
    """Normalises raw gates by weights and bias [gates, units].

    ``scales`` are the weights', by gate; a bias has the scale of its weights
    times ``2**-10``. Results are raw gates with 12 fractional bits.
    """

    def __init__(
        self, weights: Integers, bias: Integers, scales: Sequence[float]
    ) -> None:
        self._weights, self._bias = weights, bias
        pairs = np.array([quantize_multiplier(scale) for scale in scales])
        self._multiplier, self._shift = pairs.T[..., np.newaxis]
        # Stands for a variance of zero, so that nothing overflows.
        least = [max(1, int(np.float32(10000) * np.float32(s))) for s in scales]
        self._least_variance = np.array(least)[:, np.newaxis]

    def terms(self) -> Integers:
        """Return multipliers, shifts and least variances [3, gates]."""
        return np.stack([self._multiplier, self._shift, self._least_variance])[..., 0]

    def parameters(self) -> Integers:
        """Return weights and biases [2, gates, units]."""
        return np.stack([self._weights, self._bias])

    def __call__(self, gates: Integers) -> Integers:
        """Return ``gates`` [batches, gates, units], normalised along the units."""
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
            weighted, self._multiplier, self._shift + _NORMALIZED_FRACTION_BITS
        )
        return saturated(raw)


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
