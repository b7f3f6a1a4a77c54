"""Functions that the HAL does not have, by rational approximations of our own.

Most are ``x * P(x * x) / Q(x * x)``, with coefficients fitted by reweighted least
squares to the least relative error, which is far below that of float32 arithmetic
itself: 2e-8 for the error function up to 3.95, beyond which it is 1 in float32, and
1e-9 for the arc tangent up to 1, beyond which the reciprocal is taken.
"""

import math
from collections.abc import Sequence

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import Value

_ERF = (
    (
        1.12837914,
        0.191547956,
        0.0528751304,
        0.00380806028,
        0.00028468541,
        2.02592482e-06,
    ),
    (1.0, 0.503087632, 0.114558646, 0.0150548857, 0.00117070121, 3.78318558e-05),
)
_ERF_LIMIT = 3.95
_ATAN = (
    (0.999999999, 1.12905948, 0.286155364, 0.00889619165),
    (1.0, 1.4623927, 0.573622299, 0.0504590375),
)


def _polynomial(draft: Composer, value: Value, terms: Sequence[float]) -> Value:
    """Return the polynomial with the coefficients ``terms``, the constant one first."""
    result = draft.mul(value, terms[-1])
    for term in terms[-2:0:-1]:
        result = draft.mul(draft.add(result, term), value)
    return draft.add(result, terms[0])


def _odd(
    draft: Composer, value: Value, terms: tuple[Sequence[float], Sequence[float]]
) -> Value:
    square = draft.mul(value, value)
    above, below = (_polynomial(draft, square, part) for part in terms)
    return draft.mul(value, draft.div(above, below))


def error_function(draft: Composer, value: Value) -> Value:
    """Return the error function of float32 elements."""
    low = draft.binary(Op.MAXIMUM, value, -_ERF_LIMIT)
    return _odd(draft, draft.binary(Op.MINIMUM, low, _ERF_LIMIT), _ERF)


def arc_tangent(draft: Composer, value: Value) -> Value:
    """Return the arc tangent of float32 elements, infinite ones as well."""
    length = draft.unary(Op.ABS, value)
    is_large = draft.compare(Op.GREATER, length, 1.0)
    safe = draft.binary(Op.MAXIMUM, length, 1.0)
    small = draft.select(is_large, draft.reciprocal(safe), length)
    angle = _odd(draft, small, _ATAN)
    turned = draft.sub(draft.lift(math.pi / 2, value), angle)
    found = draft.select(is_large, turned, angle)
    negative = draft.compare(Op.LESS, value, 0.0)
    return draft.select(negative, draft.unary(Op.NEG, found), found)


def log_of_1_and(draft: Composer, value: Value) -> Value:
    """Return log(1 + x): exact where x is small as well.

    By Kahan: log(u) * x / (u - 1), with u the rounded 1 + x.
    """
    whole = draft.add(value, 1.0)
    rest = draft.sub(whole, 1.0)
    is_zero = draft.compare(Op.EQUAL, rest, 0.0)
    safe = draft.select(is_zero, 1.0, rest, like=value)
    scaled = draft.div(draft.mul(draft.unary(Op.LOG, whole), value), safe)
    return draft.select(is_zero, value, scaled)
