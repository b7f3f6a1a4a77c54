"""Fixed-point arithmetic of integer LSTMs: 16 bits in, 16 bits out, always the same.

A raw value with ``m`` integer bits stands for ``raw * 2**(m - 15)``. Gates have three
integer bits, what tanh and the logistic function return has none. Both functions are
evaluated once for all 65,536 values, in the integer steps of the gemmlowp library, so
that a cell computes what TensorFlow Lite does, bit for bit.

Functions take and return int64 arrays that hold such raw values.
"""

import math
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Table: TypeAlias = NDArray[np.int32]
"""Results by raw value plus `TABLE_OFFSET`; read-only."""

INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
TABLE_OFFSET = -INT16_MIN
GATE_INTEGER_BITS = 3

_RECIPROCAL_BITS = 2
_RECIPROCAL_STEPS = 3
_LARGEST_EXPONENT = 4


def rounded_shift(values: Integers, shift: int) -> Integers:
    """Divide by ``2**shift`` and round to the nearest, halves away from zero."""
    if shift == 0:
        return values
    return np.asarray((values + (1 << (shift - 1)) - (values < 0)) >> shift)


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
    raw = _all_values()
    positive = saturated_shift(
        _reciprocal_of_mean(_exp_of_negative(-np.abs(raw), integer_bits + 1))
        - _raw(1, _RECIPROCAL_BITS),
        _RECIPROCAL_BITS,
    )
    return _frozen(np.sign(raw) * positive)


@cache
def gate_table() -> Table:
    """Return the logistic function of every raw gate, and behind it their tanh."""
    raw = _all_values()
    reciprocal = _reciprocal_of_mean(_exp_of_negative(-np.abs(raw), GATE_INTEGER_BITS))
    above = saturated_shift(reciprocal, _RECIPROCAL_BITS - 1)
    logistic = np.where(raw > 0, above, INT16_MAX - above)
    logistic[TABLE_OFFSET] = _raw(0.5, 0)
    return _frozen(np.concatenate([logistic, tanh_table(GATE_INTEGER_BITS)]))


def gate_places(gates: int, units: int) -> Integers:
    """Return what to add to raw gates [gates * units] to index the `gate_table`.

    All gates but the last take the logistic function, that one takes tanh.
    """
    by_gate = np.full(gates, TABLE_OFFSET)
    by_gate[-1] += INT16_MAX - INT16_MIN + 1
    return np.repeat(by_gate, units)


def _all_values() -> Integers:
    return np.arange(INT16_MIN, INT16_MAX + 1)


def _frozen(values: Integers) -> Table:
    table = values.astype(np.int32)
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
