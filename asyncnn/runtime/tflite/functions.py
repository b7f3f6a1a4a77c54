"""Functions of elements, and of rows, that the HAL has no operation for: formulas.

Each is a composition of the HAL's arithmetic, in float unless it says otherwise.
Constants of approximations are stated with their error.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import gather
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_F32, _I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
_BOOLEAN = OperandType.TENSOR_BOOL8


def _of_reals(formula: Callable[[Composer, Value], Value]) -> Converter:
    """Return the converter of a function of input 0, dequantised if need be."""

    def convert(node: Node) -> None:
        node.put(formula(node.draft, node.real(0)))

    return convert


def _number(node: Node, index: int = 0) -> Value:
    """Return input ``index``, which is float32 or int32.

    :raises UnsupportedOperatorError: if it is neither.
    """
    value = node.input(index)
    if value.type not in (_F32, _I32):
        raise UnsupportedOperatorError(
            f"the HAL has no arithmetic on {value.type.name}"
        )
    return value


def _cos(draft: Composer, x: Value) -> Value:
    """Return 1 - 2 sin(x / 2)**2, which loses no digits of x."""
    sine = draft.unary(Op.SIN, draft.mul(x, 0.5))
    return draft.add(draft.mul(draft.mul(sine, sine), -2.0), 1.0)


def _add_n(node: Node) -> None:
    terms = map(node.input, range(len(node.operator.inputs)))
    node.put(reduce(node.draft.add, terms))


def _floor_div(node: Node) -> None:
    quotient = node.draft.div(node.input(0), node.input(1))
    is_whole = node.type == _I32
    node.put(quotient if is_whole else node.draft.unary(Op.FLOOR, quotient))


def _floor_mod(node: Node) -> None:
    if node.type != _I32:
        raise UnsupportedOperatorError("a remainder of floats is not exact in the HAL")
    draft, dividend, divisor = node.draft, node.input(0), node.input(1)
    whole = draft.mul(draft.div(dividend, divisor), divisor)
    node.put(draft.sub(dividend, whole))


def _squared_difference(node: Node) -> None:
    difference = node.draft.sub(node.real(0), node.real(1))
    node.put(node.draft.mul(difference, difference))


def _round(draft: Composer, x: Value) -> Value:
    """Round to the nearest integer, and from the middle to the even one."""
    floor = draft.unary(Op.FLOOR, x)
    part = draft.sub(x, floor)
    halves = draft.mul(floor, 0.5)
    odd = draft.sub(halves, draft.unary(Op.FLOOR, halves))
    even = draft.compare(Op.EQUAL, odd, 0.0)
    up = draft.compare(Op.GREATER, part, 0.5)
    middle = draft.compare(Op.EQUAL, part, 0.5)
    stays = draft.binary(Op.LOGICAL_AND, middle, even)
    rounded = draft.select(stays, floor, draft.add(floor, 1.0))
    return draft.select(draft.binary(Op.LOGICAL_OR, up, middle), rounded, floor)


def _gelu(node: Node) -> None:
    is_rough = node.options("GeluOptions").Approximate()
    _of_reals(_gelu_by_tanh if is_rough else _gelu_by_erf)(node)


def _gelu_by_tanh(draft: Composer, x: Value) -> Value:
    cube = draft.mul(draft.mul(x, x), x)
    inner = draft.add(x, draft.mul(cube, 0.044715))
    bent = draft.unary(Op.TANH, draft.mul(inner, math.sqrt(2 / math.pi)))
    return draft.mul(draft.mul(x, 0.5), draft.add(bent, 1.0))


_ERFC = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)
_ERFC_POLE = 0.3275911
"""erfc(z) = polynomial(1 / (1 + pole z)) exp(-z**2) for z >= 0, off by 1.5e-7 at most.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
"""


def _gelu_by_erf(draft: Composer, x: Value) -> Value:
    """Return max(x, 0) - |x| / 2 erfc(|x| / sqrt(2))."""
    size = draft.unary(Op.ABS, x)
    bent = draft.add(draft.mul(size, _ERFC_POLE / math.sqrt(2)), 1.0)
    tail = _polynomial(draft, draft.reciprocal(bent), _ERFC)
    power = draft.unary(Op.EXP, draft.mul(draft.mul(x, x), -0.5))
    missing = draft.mul(draft.mul(size, 0.5), draft.mul(tail, power))
    return draft.sub(draft.unary(Op.RELU, x), missing)


def _polynomial(draft: Composer, x: Value, coefficients: Sequence[float]) -> Value:
    """Return a polynomial, given the coefficient of the highest power first."""
    highest, second, *rest = coefficients
    result = draft.add(draft.mul(x, highest), second)
    for coefficient in rest:
        result = draft.add(draft.mul(result, x), coefficient)
    return result


def _sign(node: Node) -> None:
    draft, x = node.draft, _number(node)
    positive = draft.compare(Op.GREATER, x, 0)
    negative = draft.compare(Op.LESS, x, 0)
    below = draft.select(negative, -1, 0, x)
    node.put(draft.select(positive, 1, below))


def _relu_0_to_1(draft: Composer, x: Value) -> Value:
    return draft.clamp(x, 0.0, 1.0)


_ARCTAN_POWERS = 11


def _arctan_coefficients() -> list[float]:
    """Return coefficients of arctan(r) / r as a polynomial in r**2, for r from 0 to 1.

    It is interpolated at the nodes of Chebyshev, and off by less than 1e-8.
    """
    nodes = (np.cos((np.arange(_ARCTAN_POWERS) + 0.5) * np.pi / _ARCTAN_POWERS) + 1) / 2
    roots = np.sqrt(nodes)
    return np.polyfit(nodes, np.arctan(roots) / roots, _ARCTAN_POWERS - 1).tolist()  # type: ignore[no-any-return]


def _atan2(node: Node) -> None:
    """Reduce to arctan of the quotient of the smaller and the larger, by octants."""
    draft, y, x = node.draft, _number(node), node.input(1)
    high, wide = draft.unary(Op.ABS, y), draft.unary(Op.ABS, x)
    smaller = draft.binary(Op.MINIMUM, high, wide)
    larger = draft.binary(Op.MAXIMUM, high, wide)
    # Of two zeros the angle is 0, not 0 / 0.
    ratio = draft.div(smaller, draft.binary(Op.MAXIMUM, larger, 1e-37))
    square = draft.mul(ratio, ratio)
    angle = draft.mul(ratio, _polynomial(draft, square, _arctan_coefficients()))
    is_steep = draft.compare(Op.GREATER, high, wide)
    angle = draft.select(is_steep, _less(draft, math.pi / 2, angle), angle)
    is_left = draft.compare(Op.LESS, x, 0)
    angle = draft.select(is_left, _less(draft, math.pi, angle), angle)
    is_below = draft.compare(Op.LESS, y, 0)
    node.put(draft.select(is_below, draft.unary(Op.NEG, angle), angle))


def _less(draft: Composer, whole: float, value: Value) -> Value:
    """Return ``whole - value``."""
    return draft.sub(draft.lift(whole, value), value)


_MOST_BITS = 16


def _fake_quant(node: Node) -> None:
    options = node.options("FakeQuantOptions")
    low, high = float(options.Min()), float(options.Max())
    bits = options.NumBits()
    if not 2 <= bits <= _MOST_BITS:
        raise InvalidArgumentError(f"{bits} bits")
    if node.type != _F32:
        raise UnsupportedOperatorError(f"{node.type.name}, not float32")
    if options.NarrowRange():
        raise UnsupportedOperatorError("a narrow range, which TFLite does not compute")
    last = 2**bits - 1
    if not low <= 0 <= high or not low < high or last < 1:
        raise InvalidArgumentError(f"a range from {low} to {high}")
    scale = (high - low) / last
    zero = min(max(round(-low / scale), 0), last)
    low, high = -zero * scale, (last - zero) * scale
    draft = node.draft
    above = draft.sub(draft.clamp(node.input(0), low, high), low)
    steps = draft.unary(Op.FLOOR, draft.add(draft.mul(above, 1 / scale), 0.5))
    node.put(draft.add(draft.mul(steps, scale), low))


def _bucketize(node: Node) -> None:
    borders = node.options("BucketizeOptions").BoundariesAsNumpy()
    draft, x = node.draft, node.real(0)
    if isinstance(borders, int) or not len(borders):
        node.put(draft.full(x.shape, 0, np.int32))
        return
    column = draft.reshape(x, (math.prod(x.shape), 1))
    limits = draft.constant(borders[None].astype(np.float32))
    reached = draft.compare(Op.GREATER_EQUAL, column, limits)
    total = draft.emit(Op.REDUCE_SUM, [draft.cast(reached, np.float32), [1], False])
    node.put(draft.cast(total, np.int32))


def _integer_quotient(draft: Composer, first: Value, second: Value) -> Value:
    """Return a quotient of int32 rounded towards zero; the HAL rounds down."""
    sizes = [draft.unary(Op.ABS, each) for each in (first, second)]
    signs = [draft.compare(Op.LESS, each, 0) for each in (first, second)]
    quotient = draft.div(*sizes)
    differ = draft.compare(Op.NOT_EQUAL, *signs)
    return draft.select(differ, draft.unary(Op.NEG, quotient), quotient)


def _div(node: Node) -> None:
    act = node.options("DivOptions").FusedActivationFunction()
    if node.type != _I32:
        node.emit_float(
            OperationType.DIV, [node.read(0), node.read(1), node.fused(act)]
        )
    elif act:
        raise UnsupportedOperatorError("an activation of integers")
    else:
        quotient = _integer_quotient(node.draft, node.input(0), node.input(1))
        node.put(quotient)


def _right_shift(node: Node) -> None:
    shifts = node.values(1)
    if node.type != _I32 or not ((shifts >= 0) & (shifts < 31)).all():
        raise UnsupportedOperatorError(
            "the HAL shifts int32 alone, by division, up to 30 places"
        )
    node.put(node.draft.div(node.input(0), np.left_shift(1, shifts)))


def _cumsum(node: Node) -> None:
    """Add ever longer runs: after step K, an element has 2**K terms."""
    options = node.options("CumsumOptions")
    draft, total = node.draft, _number(node)
    axis = node.axis(node.value(1), node.rank())
    sign = -1 if options.Reverse() else 1
    if options.Exclusive():
        total = shifted(draft, total, axis, sign)
    step = 1
    while step < total.dimensions[axis]:
        total = draft.add(total, shifted(draft, total, axis, sign * step))
        step *= 2
    node.put(total)


def shifted(draft: Composer, value: Value, axis: int, steps: int) -> Value:
    """Return ``value`` moved along an axis; zeros come in, the other end is lost."""
    length = value.dimensions[axis]
    draft.allowance.take_elements(value.shape)
    places = np.arange(length) - steps
    inside = (places >= 0) & (places < length)
    indices = draft.constant(places.clip(0, length - 1).astype(np.int32))
    shape = [1] * len(value.dimensions)
    shape[axis] = length
    mask = draft.constant(inside.reshape(shape))
    return draft.select(mask, gather(draft, value, indices, axis), 0)


def _cast(node: Node) -> None:
    source, target = node.read(0), node.target()
    like = node.builder.operand(source)
    if like.type == _BOOLEAN and target.type != _BOOLEAN:
        node.store(node.number(source, target))
    elif target.type == _BOOLEAN and like.type != _BOOLEAN:
        node.store(node.truth(source))
    elif OperandType.TENSOR_QUANT8_ASYMM_SIGNED in (like.type, target.type):
        _cast_signed(node, source, target)
    else:
        node.emit(OperationType.CAST, [source])


def _cast_signed(node: Node, source: int, target: Operand) -> None:
    """Convert from or to int8, by the value: the HAL casts no such tensors."""
    for each in (node.builder.operand(source), target):
        if each.scale and (each.scale, each.zero_point) != (1.0, 0):
            raise UnsupportedOperatorError("a cast of quantised int8")
    value = node.dequantize(source)
    like = node.builder.operand(value)
    is_whole = target.type == _F32 or like.type == _I32
    if not is_whole:
        # Reals are cut off, not rounded.
        like = replace(like, type=_I32, scale=0.0, zero_point=0)
        value = node.compute(OperationType.CAST, [value], like)
    if target.type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED:
        real = replace(like, type=_F32, scale=0.0, zero_point=0)
        node.emit(
            OperationType.QUANTIZE, [node.compute(OperationType.CAST, [value], real)]
        )
    elif target.type == like.type:
        node.store(value)
    else:
        node.emit(OperationType.CAST, [value])


def _multinomial(node: Node) -> None:
    options = node.options("RandomOptions")
    seeds = [int(seed) & 0x7FFFFFFF for seed in (options.Seed(), options.Seed2())]
    inputs = [node.read(0), node.scalar(node.value(1)), node.integers(seeds)]
    node.emit(OperationType.RANDOM_MULTINOMIAL, inputs)


def _clamp(node: Node) -> None:
    low, x, high = (_number(node, index) for index in range(3))
    node.put(node.draft.clamp(x, low, high))


def _identity(node: Node) -> None:
    # Sparse constants are dense when they have been read.
    node.store(node.read(0))


CONVERTERS: dict[str, Converter] = {
    "DENSIFY": _identity,
    "ADD_N": _add_n,
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _floor_mod,
    "SQUARED_DIFFERENCE": _squared_difference,
    "SQUARE": _of_reals(lambda draft, x: draft.mul(x, x)),
    "CEIL": _of_reals(lambda draft, x: draft.chain(x, Op.NEG, Op.FLOOR, Op.NEG)),
    "COS": _of_reals(_cos),
    "ROUND": _of_reals(_round),
    "GELU": _gelu,
    "SIGN": _sign,
    "RELU_0_TO_1": _of_reals(_relu_0_to_1),
    "ATAN2": _atan2,
    "FAKE_QUANT": _fake_quant,
    "BUCKETIZE": _bucketize,
    "DIV": _div,
    "RIGHT_SHIFT": _right_shift,
    "CUMSUM": _cumsum,
    "CAST": _cast,
    "MULTINOMIAL": _multinomial,
    "STABLEHLO_CLAMP": _clamp,
}
"""Converters by the operator's name."""

ALIASES = {
    f"STABLEHLO_{name}": alias or name
    for name, alias in {
        "ABS": "",
        "ADD": "",
        "AND": "LOGICAL_AND",
        "CONVERT": "CAST",
        "COSINE": "COS",
        "DIVIDE": "DIV",
        "EXPONENTIAL": "EXP",
        "FLOOR": "",
        "LOG": "",
        "LOGISTIC": "",
        "MAXIMUM": "",
        "MINIMUM": "",
        "MULTIPLY": "MUL",
        "NEGATE": "NEG",
        "OR": "LOGICAL_OR",
        "POWER": "POW",
        "RSQRT": "",
        "SELECT": "SELECT_V2",
        "SUBTRACT": "SUB",
        "TANH": "",
    }.items()
}
"""Operators of StableHLO that do the same, with no options, as older ones."""
