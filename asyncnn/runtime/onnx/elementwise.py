"""Arithmetic, comparisons, logic, rounding and casts.

Bytes without quantisation are computed as int32 and wrap as they do in ONNX.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.approximation import arc_tangent, error_function, log_of_1_and
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import B8, F16, I32, Q8, Q8S, Value
from asyncnn.runtime.onnx.node import Converter, Node

BYTES = (Q8, Q8S)
_ROUNDING = float(1.5 * 2**23)
"""Adding and subtracting it rounds a float32 to the nearest even integer."""


def in_float32(draft: Composer, value: Value, move: Callable[[Value], Value]) -> Value:
    """Return ``move(value)``, computed in float32 if ``value`` is float16."""
    if value.type != F16:
        return move(value)
    return draft.cast(move(draft.cast(value, np.float32)), np.float16)


def _arithmetic(type_: Op) -> Converter:
    def convert(node: Node) -> Value:
        first, second, draft = node.input(0), node.input(1), node.draft
        if first.type in BYTES:
            wide = [draft.cast(value, np.int32) for value in (first, second)]
            compute = _divide if type_ == Op.DIV else partial(_binary, type_)
            return draft.cast(compute(draft, *wide), first.dtype)
        if type_ == Op.DIV:
            return _divide(draft, first, second)
        return draft.binary(type_, first, second)

    return convert


def _binary(type_: Op, draft: Composer, first: Value, second: Value) -> Value:
    return draft.binary(type_, first, second)


def _divide(draft: Composer, first: Value, second: Value) -> Value:
    if first.type != I32:
        return draft.div(first, second)
    # ONNX rounds quotients of integers to zero, the HAL down.
    signs = [
        draft.binary(Op.MAXIMUM, draft.binary(Op.MINIMUM, value, 1), -1)
        for value in (first, second)
    ]
    lengths = [draft.unary(Op.ABS, value) for value in (first, second)]
    return draft.mul(draft.mul(*signs), draft.div(*lengths))


def _mod(node: Node) -> Value:
    first, second, draft = node.input(0), node.input(1), node.draft
    if first.type not in (I32, *BYTES):
        raise node.refuse("a remainder of floats is not exact in the HAL")
    dtype = first.dtype
    first, second = (draft.cast(value, np.int32) for value in (first, second))
    if node.attribute("fmod", 0):
        quotient = _divide(draft, first, second)
    else:
        quotient = draft.div(first, second)
    rest = draft.sub(first, draft.mul(quotient, second))
    return draft.cast(rest, dtype)


def _folded(type_: Op) -> Converter:
    """Return what combines any number of inputs."""

    def convert(node: Node) -> Value:
        total, *terms = node.inputs()
        for term in terms:
            total = node.draft.binary(type_, total, term)
        return total

    return convert


def _mean(node: Node) -> Value:
    total = _folded(Op.ADD)(node)
    assert isinstance(total, Value)
    return node.draft.mul(total, 1 / len(node.inputs()))


def _unary(type_: Op) -> Converter:
    def convert(node: Node) -> Value:
        value, draft = node.input(0), node.draft
        if value.type in BYTES:
            wide = draft.cast(value, np.int32)
            return draft.cast(draft.unary(type_, wide), value.dtype)
        return draft.unary(type_, value)

    return convert


def _compare(type_: Op) -> Converter:
    return lambda node: node.draft.compare(type_, node.input(0), node.input(1))


def _logical(type_: Op) -> Converter:
    return lambda node: node.draft.binary(type_, node.input(0), node.input(1))


def _xor(node: Node) -> Value:
    return node.draft.compare(Op.NOT_EQUAL, node.input(0), node.input(1))


def ceil(draft: Composer, value: Value) -> Value:
    """Return the elements rounded up."""
    return draft.chain(value, Op.NEG, Op.FLOOR, Op.NEG)


def round_even(draft: Composer, value: Value) -> Value:
    """Return the elements rounded to integers, halves to even ones."""

    def move(wide: Value) -> Value:
        rounded = draft.sub(draft.add(wide, _ROUNDING), _ROUNDING)
        is_whole = draft.compare(Op.GREATER_EQUAL, draft.unary(Op.ABS, wide), 2.0**22)
        return draft.select(is_whole, wide, rounded)

    return in_float32(draft, value, move)


def sign(draft: Composer, value: Value) -> Value:
    """Return -1, 0 or 1 of each element."""
    zeros = draft.lift(0, value)
    above = draft.select(draft.compare(Op.GREATER, value, zeros), 1, 0, like=value)
    below = draft.select(draft.compare(Op.LESS, value, zeros), 1, 0, like=value)
    return draft.sub(above, below)


def _pow(node: Node) -> Value:
    base, draft = node.input(0), node.draft
    exponent = node.input(1)
    power = exponent.data if exponent.is_constant else None
    if power is not None and power.size == 1 and float(power.reshape(())) == 2.0:
        return draft.mul(base, base)
    if base.type == I32:
        if power is None or power.size != 1 or not 0 <= power.reshape(()).item() <= 8:
            raise node.refuse("powers of integers by what is not a small constant")
        count = power.reshape(()).item()
        if count != int(count):
            raise node.refuse("a root of integers")
        result = draft.full(base.shape, 1, base.dtype)
        for _ in range(int(count)):
            result = draft.mul(result, base)
        return result
    if exponent.is_constant and exponent.data is not None:
        typed = draft.constant(exponent.data.astype(base.dtype))
    else:
        typed = draft.cast(exponent, base.dtype)
    shape = np.broadcast_shapes(base.shape, typed.shape)
    return draft.binary(Op.POW, draft.expand(base, shape), draft.expand(typed, shape))


def cosine(draft: Composer, value: Value) -> Value:
    """Return the cosine, as 1 - 2 sin(x / 2)**2, which loses no digits of x."""
    sine = draft.unary(Op.SIN, draft.mul(value, 0.5))
    return draft.add(draft.mul(draft.mul(sine, sine), -2.0), 1.0)


def _tan(node: Node) -> Value:
    value = node.input(0)
    return node.draft.div(node.draft.unary(Op.SIN, value), cosine(node.draft, value))


def _sinh(node: Node) -> Value:
    # Near 0 the difference of the exponentials would lose all digits: tanh does not.
    value, draft = node.input(0), node.draft
    up = draft.unary(Op.EXP, value)
    down = draft.reciprocal(up)
    return draft.mul(draft.mul(draft.unary(Op.TANH, value), draft.add(up, down)), 0.5)


def _cosh(node: Node) -> Value:
    up = node.draft.unary(Op.EXP, node.input(0))
    return node.draft.mul(node.draft.add(up, node.draft.reciprocal(up)), 0.5)


def _atan(node: Node) -> Value:
    return in_float32(node.draft, node.input(0), partial(arc_tangent, node.draft))


def _asin(node: Node) -> Value:
    draft = node.draft

    def move(value: Value) -> Value:
        below, above = draft.sub(draft.lift(1.0, value), value), draft.add(value, 1.0)
        side = draft.unary(Op.SQRT, draft.mul(below, above))
        return arc_tangent(draft, draft.div(value, side))

    return in_float32(draft, node.input(0), move)


def _acos(node: Node) -> Value:
    draft = node.draft

    def move(value: Value) -> Value:
        below, above = draft.sub(draft.lift(1.0, value), value), draft.add(value, 1.0)
        ratio = draft.unary(Op.SQRT, draft.div(below, above))
        return draft.mul(arc_tangent(draft, ratio), 2.0)

    return in_float32(draft, node.input(0), move)


def _asinh(node: Node) -> Value:
    # sign(x) * log1p(a + a*a / (1 + sqrt(a*a + 1))) with a = |x|
    draft = node.draft

    def move(value: Value) -> Value:
        length = draft.unary(Op.ABS, value)
        square = draft.mul(length, length)
        root = draft.unary(Op.SQRT, draft.add(square, 1.0))
        inner = draft.add(length, draft.div(square, draft.add(root, 1.0)))
        return draft.mul(sign(draft, value), log_of_1_and(draft, inner))

    return in_float32(draft, node.input(0), move)


def _acosh(node: Node) -> Value:
    # log1p(t + sqrt(t * (t + 2))) with t = x - 1
    draft = node.draft

    def move(value: Value) -> Value:
        rest = draft.sub(value, 1.0)
        root = draft.unary(Op.SQRT, draft.mul(rest, draft.add(rest, 2.0)))
        return log_of_1_and(draft, draft.add(rest, root))

    return in_float32(draft, node.input(0), move)


def _atanh(node: Node) -> Value:
    # log1p(2x / (1 - x)) / 2
    draft = node.draft

    def move(value: Value) -> Value:
        rest = draft.sub(draft.lift(1.0, value), value)
        return draft.mul(
            log_of_1_and(draft, draft.div(draft.mul(value, 2.0), rest)), 0.5
        )

    return in_float32(draft, node.input(0), move)


def _is_inf(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    found = []
    if node.attribute("detect_positive", 1):
        found.append(draft.compare(Op.EQUAL, value, np.inf))
    if node.attribute("detect_negative", 1):
        found.append(draft.compare(Op.EQUAL, value, -np.inf))
    if not found:
        return draft.compare(Op.NOT_EQUAL, draft.full(value.shape, 0, np.int32), 0)
    if len(found) == 1:
        return found[0]
    return draft.binary(Op.LOGICAL_OR, *found)


def _is_nan(node: Node) -> Value:
    return node.draft.compare(Op.NOT_EQUAL, node.input(0), node.input(0))


def _clip(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    for index, (name, type_) in enumerate((("min", Op.MAXIMUM), ("max", Op.MINIMUM))):
        if node.has(index + 1):
            value = draft.binary(type_, value, node.input(index + 1))
        elif node.attribute(name) is not None:
            value = draft.binary(type_, value, node.attribute(name))
    return value


def _cast(node: Node) -> Value:
    value = node.input(0)
    if node.name == "CastLike":
        return node.draft.cast(value, node.input(1).dtype)
    return node.draft.cast(value, node.dtype("to"))


def _where(node: Node) -> Value:
    return node.draft.select(*(node.input(index) for index in range(3)))


def _erf(node: Node) -> Value:
    return in_float32(node.draft, node.input(0), partial(error_function, node.draft))


def _bitwise_not(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    if value.dtype == np.uint8:
        wide = draft.cast(value, np.int32)
        return draft.cast(draft.sub(draft.lift(255, wide), wide), np.uint8)
    wide = draft.cast(value, np.int32)
    flipped = draft.sub(draft.lift(-1, wide), wide)
    return flipped if value.type == I32 else draft.cast(flipped, value.dtype)


def _not(node: Node) -> Value:
    if node.input(0).type != B8:
        raise node.refuse("a logical operator on numbers")
    return node.draft.unary(Op.LOGICAL_NOT, node.input(0))


CONVERTERS: dict[str, Converter] = {
    "Add": _arithmetic(Op.ADD),
    "Sub": _arithmetic(Op.SUB),
    "Mul": _arithmetic(Op.MUL),
    "Div": _arithmetic(Op.DIV),
    "Mod": _mod,
    "Max": _folded(Op.MAXIMUM),
    "Min": _folded(Op.MINIMUM),
    "Sum": _folded(Op.ADD),
    "Mean": _mean,
    "Pow": _pow,
    "Clip": _clip,
    "Abs": _unary(Op.ABS),
    "Neg": _unary(Op.NEG),
    "Exp": _unary(Op.EXP),
    "Log": _unary(Op.LOG),
    "Sqrt": _unary(Op.SQRT),
    "Sin": _unary(Op.SIN),
    "Floor": _unary(Op.FLOOR),
    "Ceil": lambda n: ceil(n.draft, n.input(0)),
    "Round": lambda node: round_even(node.draft, node.input(0)),
    "Sign": lambda node: sign(node.draft, node.input(0)),
    "Reciprocal": lambda node: node.draft.reciprocal(node.input(0)),
    "Cos": lambda node: cosine(node.draft, node.input(0)),
    "Tan": _tan,
    "Sinh": _sinh,
    "Cosh": _cosh,
    "Atan": _atan,
    "Asin": _asin,
    "Acos": _acos,
    "Asinh": _asinh,
    "Acosh": _acosh,
    "Atanh": _atanh,
    "Erf": _erf,
    "Equal": _compare(Op.EQUAL),
    "Greater": _compare(Op.GREATER),
    "Less": _compare(Op.LESS),
    "GreaterOrEqual": _compare(Op.GREATER_EQUAL),
    "LessOrEqual": _compare(Op.LESS_EQUAL),
    "Xor": _xor,
    "Not": _not,
    "And": _logical(Op.LOGICAL_AND),
    "Or": _logical(Op.LOGICAL_OR),
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "BitwiseNot": _bitwise_not,
}
