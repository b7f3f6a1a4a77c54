"""Functions of elements, and of rows, that the HAL has no operation for: formulas.

Each is a composition of the HAL's arithmetic, in float unless it says otherwise.
Constants of approximations are stated with their error.
"""

import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.algebra import Algebra
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_F32, _I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
_BOOLEAN = OperandType.TENSOR_BOOL8


def _of_reals(formula: Callable[[Algebra, int], int]) -> Converter:
    """Return the converter of a function of input 0, dequantised if need be."""

    def convert(node: Node) -> None:
        operand = node.dequantize(node.read(0))
        node.store(formula(Algebra(node, _F32), operand))

    return convert


def _algebra(node: Node) -> Algebra:
    """Return the algebra of input 0, which is float32 or int32.

    :raises UnsupportedOperatorError: if it is neither.
    """
    if node.type not in (_F32, _I32):
        raise UnsupportedOperatorError(f"the HAL has no arithmetic on {node.type.name}")
    return Algebra(node, node.type)


def _round(algebra: Algebra, x: int) -> int:
    """Round to the nearest integer, and from the middle to the even one."""
    floor = algebra.floor(x)
    part = algebra.subtract(x, floor)
    halves = algebra.multiply(floor, 0.5)
    odd = algebra.subtract(halves, algebra.floor(halves))
    even = algebra.compare(OperationType.EQUAL, odd, 0.0)
    up = algebra.compare(OperationType.GREATER, part, 0.5)
    middle = algebra.compare(OperationType.EQUAL, part, 0.5)
    rounded = algebra.select(algebra.both(middle, even), floor, algebra.add(floor, 1.0))
    upwards = algebra.apply(OperationType.LOGICAL_OR, up, middle, to=_BOOLEAN)
    return algebra.select(upwards, rounded, floor)


def _gelu(node: Node) -> None:
    x = node.dequantize(node.read(0))
    is_rough = node.options("GeluOptions").Approximate()
    node.store((_gelu_by_tanh if is_rough else _gelu_by_erf)(Algebra(node, _F32), x))


def _gelu_by_tanh(algebra: Algebra, x: int) -> int:
    cube = algebra.multiply(algebra.multiply(x, x), x)
    inner = algebra.add(x, algebra.multiply(cube, 0.044715))
    bent = algebra.apply(
        OperationType.TANH, algebra.multiply(inner, math.sqrt(2 / math.pi))
    )
    return algebra.multiply(algebra.multiply(x, 0.5), algebra.add(bent, 1.0))


_ERFC = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)
_ERFC_POLE = 0.3275911
"""erfc(z) = polynomial(1 / (1 + pole z)) exp(-z**2) for z >= 0, off by 1.5e-7 at most.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
"""


def _gelu_by_erf(algebra: Algebra, x: int) -> int:
    """Return max(x, 0) - |x| / 2 erfc(|x| / sqrt(2))."""
    size = algebra.absolute(x)
    bent = algebra.add(algebra.multiply(size, _ERFC_POLE / math.sqrt(2)), 1.0)
    tail = algebra.polynomial(algebra.divide(1.0, bent), _ERFC)
    power = algebra.multiply(algebra.multiply(x, x), -0.5)
    tail = algebra.multiply(tail, algebra.apply(OperationType.EXP, power))
    missing = algebra.multiply(algebra.multiply(size, 0.5), tail)
    return algebra.subtract(algebra.apply(OperationType.RELU, x), missing)


def _sign(node: Node) -> None:
    algebra, x = _algebra(node), node.read(0)
    positive = algebra.compare(OperationType.GREATER, x, 0.0)
    negative = algebra.compare(OperationType.LESS, x, 0.0)
    below = algebra.select(negative, -1.0, 0.0)
    node.store(algebra.select(positive, 1.0, below))


def _relu_0_to_1(algebra: Algebra, x: int) -> int:
    return algebra.clamp(x, 0.0, 1.0)


_ARCTAN_POWERS = 11


def _arctan_coefficients() -> list[float]:
    """Return those of arctan(r) / r as a polynomial in r**2, for r from 0 to 1.

    It is interpolated at the nodes of Chebyshev, and off by less than 1e-8.
    """
    nodes = (np.cos((np.arange(_ARCTAN_POWERS) + 0.5) * np.pi / _ARCTAN_POWERS) + 1) / 2
    roots = np.sqrt(nodes)
    return np.polyfit(nodes, np.arctan(roots) / roots, _ARCTAN_POWERS - 1).tolist()  # type: ignore[no-any-return]


def _atan2(node: Node) -> None:
    """Reduce to arctan of the quotient of the smaller and the larger, by octants."""
    y, x = node.read(0), node.read(1)
    algebra = _algebra(node)
    high, wide = algebra.absolute(y), algebra.absolute(x)
    smaller = algebra.apply(OperationType.MINIMUM, high, wide)
    larger = algebra.apply(OperationType.MAXIMUM, high, wide)
    # Of two zeros the angle is 0, not 0 / 0.
    ratio = algebra.divide(smaller, algebra.apply(OperationType.MAXIMUM, larger, 1e-37))
    square = algebra.multiply(ratio, ratio)
    angle = algebra.multiply(ratio, algebra.polynomial(square, _arctan_coefficients()))
    is_steep = algebra.compare(OperationType.GREATER, high, wide)
    angle = algebra.select(is_steep, algebra.subtract(math.pi / 2, angle), angle)
    is_left = algebra.compare(OperationType.LESS, x, 0.0)
    angle = algebra.select(is_left, algebra.subtract(math.pi, angle), angle)
    is_below = algebra.compare(OperationType.LESS, y, 0.0)
    node.store(algebra.select(is_below, algebra.negate(angle), angle))


_MOST_BITS = 16


def _fake_quant(node: Node) -> None:
    options = node.options("FakeQuantOptions")
    low, high = float(options.Min()), float(options.Max())
    bits = options.NumBits()
    if not 2 <= bits <= _MOST_BITS:
        raise InvalidArgumentError(f"{bits} bits")
    if options.NarrowRange():
        raise UnsupportedOperatorError("a narrow range, which TFLite does not compute")
    last = 2**bits - 1
    if not low <= 0 <= high or not low < high or last < 1:
        raise InvalidArgumentError(f"a range from {low} to {high}")
    scale = (high - low) / last
    zero = min(max(round(-low / scale), 0), last)
    low, high = -zero * scale, (last - zero) * scale
    algebra, x = Algebra(node, _F32), node.read(0)
    above = algebra.subtract(algebra.clamp(x, low, high), low)
    steps = algebra.floor(algebra.add(algebra.multiply(above, 1 / scale), 0.5))
    node.store(algebra.add(algebra.multiply(steps, scale), low))


def _bucketize(node: Node) -> None:
    borders = node.options("BucketizeOptions").BoundariesAsNumpy()
    x, dimensions = node.read(0), node.target().dimensions
    if isinstance(borders, int) or not len(borders):
        node.emit(OperationType.FILL, [node.integers(dimensions), node.scalar(0)])
        return
    algebra = Algebra(node, _F32)
    column = node.reshape(node.dequantize(x), (math.prod(dimensions), 1))
    reached = algebra.compare(OperationType.GREATER_EQUAL, column, borders[None])
    ones = node.number(reached, Operand(_F32))
    total = node.compute(
        OperationType.REDUCE_SUM,
        [ones, node.integers([1]), node.scalar(False)],
        Operand(_F32, (math.prod(dimensions),)),
    )
    whole = node.compute(
        OperationType.CAST, [total], Operand(_I32, (math.prod(dimensions),))
    )
    node.store(whole)


def _integer_quotient(node: Node) -> int:
    """Add a quotient of int32 that is rounded towards zero; the HAL rounds down."""
    algebra, (first, second) = Algebra(node, _I32), node.read_all()
    sizes = [algebra.absolute(each) for each in (first, second)]
    signs = [algebra.compare(OperationType.LESS, each, 0.0) for each in (first, second)]
    quotient = algebra.divide(*sizes)
    differ = algebra.compare(OperationType.NOT_EQUAL, *signs)
    return algebra.select(differ, algebra.negate(quotient), quotient)


def _div(node: Node) -> None:
    act = node.options("DivOptions").FusedActivationFunction()
    if node.type != _I32:
        node.emit_float(
            OperationType.DIV, [node.read(0), node.read(1), node.fused(act)]
        )
    elif act:
        raise UnsupportedOperatorError("an activation of integers")
    else:
        node.store(_integer_quotient(node))


def _right_shift(node: Node) -> None:
    shifts = node.values(1)
    if node.type != _I32 or not ((shifts >= 0) & (shifts < 31)).all():
        raise UnsupportedOperatorError(
            "the HAL shifts int32 alone, by division, up to 30 places"
        )
    algebra = Algebra(node, _I32)
    node.store(algebra.divide(node.read(0), np.left_shift(1, shifts)))


def _cumsum(node: Node) -> None:
    """Add ever longer runs: after step K, an element has 2**K terms."""
    options = node.options("CumsumOptions")
    algebra, total = _algebra(node), node.read(0)
    rank, dimensions = node.rank(), algebra.shape(node.read(0))
    axis = node.axis(node.value(1), rank)
    sign = -1 if options.Reverse() else 1
    if options.Exclusive():
        total = shifted(node, total, axis, sign)
    step = 1
    while step < dimensions[axis]:
        total = algebra.add(total, shifted(node, total, axis, sign * step))
        step *= 2
    node.store(total)


def shifted(node: Node, operand: int, axis: int, steps: int) -> int:
    """Return ``operand`` moved along an axis; zeros come in, the other end is lost."""
    like = node.builder.operand(operand)
    length = like.dimensions[axis]
    node.allowance.take_elements(like.dimensions)
    places = np.arange(length) - steps
    inside = (places >= 0) & (places < length)
    taken = node.compute(
        OperationType.GATHER,
        [operand, node.scalar(axis), node.integers(places.clip(0, length - 1))],
        like,
    )
    shape = [1] * len(like.dimensions)
    shape[axis] = length
    mask = node.builder.constant(inside.reshape(shape))
    zeros = node.zeros(like)
    condition = node.broadcast(mask, like.dimensions)
    return node.compute(OperationType.SELECT, [condition, taken, zeros], like)


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
    low, x, high = node.read_all()
    node.store(_algebra(node).clamp(x, low, high))


def _identity(node: Node) -> None:
    # Sparse constants are dense when they have been read.
    node.store(node.read(0))


CONVERTERS: dict[str, Converter] = {
    "DENSIFY": _identity,
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
