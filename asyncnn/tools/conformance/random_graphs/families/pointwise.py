"""Draws operations on each element alone, or on pairs of elements."""

from collections.abc import Callable, Mapping

import numpy as np

from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.operations.table import SIGNATURES
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.sketch import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Q8SYM,
    DrawnTensor,
)

Builder = Callable[[Artist, OperationType, OperandType], object]
"""Adds an operation of this type on tensors of this main type."""


def rows(names: Mapping[Builder, str]) -> dict[OperationType, Builder]:
    """Return the builder of each operation that is named beside it."""
    return {
        OperationType[name]: builder
        for builder, listed in names.items()
        for name in listed.split()
    }


def fused_activation(artist: Artist, main: OperandType) -> DrawnTensor:
    """Draw a fused activation, which int32 has none of."""
    return artist.scalar(0 if main == I32 else artist.number(0, 3))


def _domain(low: float, high: float, least: float = 0.25, most: float = 4) -> Builder:
    """Draw a unary operation on floats in a range; leaves are in a narrower one."""

    def build(artist: Artist, type_: OperationType, main: OperandType) -> None:
        def suits(tensor: DrawnTensor) -> bool:
            return bool(((tensor.value >= low) & (tensor.value <= high)).all())

        is_float = main in (F32, F16)
        x = artist.pick(main, suits if is_float else _anything, low=least, high=most)
        artist.apply(type_, [x], main)

    return build


def _anything(tensor: DrawnTensor) -> bool:
    return True


def _unary(artist: Artist, type_: OperationType, main: OperandType) -> None:
    artist.apply(type_, [artist.pick(main)], main)


def _rectified(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    artist.apply(type_, [x], x.bound)


def _elu(artist: Artist, type_: OperationType, main: OperandType) -> None:
    alpha = artist.real_scalar(artist.choose(1.0, 0.5, 2.0), main)
    artist.apply(type_, [artist.pick(main), alpha], main)


def _broadcasts(first: Shape, second: Shape) -> bool:
    pairs = zip(first[::-1], second[::-1], strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _partner_shape(artist: Artist, shape: Shape) -> Shape:
    """Draw a shape that broadcasts with ``shape``."""
    match artist.choose("same", "ones", "shorter", "longer"):
        case "ones":
            return tuple(artist.choose(1, length) for length in shape)
        case "shorter":
            return shape[artist.number(0, len(shape) - 1) :]
        case "longer" if len(shape) < 4:
            return (artist.number(1, 3), *shape)
    return shape


def partner(
    artist: Artist,
    x: DrawnTensor,
    where: Callable[[DrawnTensor], bool] = _anything,
    low: float = -4,
    high: float = 4,
) -> DrawnTensor:
    """Draw a tensor of the type of ``x`` that broadcasts with it."""
    return artist.pick(
        x.type,
        lambda tensor: _broadcasts(tensor.shape, x.shape) and where(tensor),
        lambda: _partner_shape(artist, x.shape),
        low,
        high,
    )


def _is_divisor(tensor: DrawnTensor) -> bool:
    return bool(np.abs(tensor.value).min() >= 0.1)


def _is_base(tensor: DrawnTensor) -> bool:
    return bool(((tensor.value >= 0.1) & (tensor.value <= 50)).all())


def _is_exponent(tensor: DrawnTensor) -> bool:
    return bool(np.abs(tensor.value).max() <= 4)


def _arithmetic(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    if type_ is OperationType.DIV and main != I32:
        y = partner(artist, x, _is_divisor, low=0.25)
    else:
        y = partner(artist, x)
    is_product = type_ is OperationType.MUL
    least_scale = 1.01 * x.bound.scale * y.bound.scale if is_product else 0.0
    activation = fused_activation(artist, main)
    artist.apply(type_, [x, y, activation], main, least_scale=least_scale)


def _pow(artist: Artist, type_: OperationType, main: OperandType) -> None:
    base = artist.pick(main, _is_base, low=0.25)
    artist.apply(type_, [base, partner(artist, base, _is_exponent)], main)


def _binary(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    artist.apply(type_, [x, partner(artist, x)], main)


def _comparison(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    artist.apply(type_, [x, partner(artist, x)], B8)


def _select(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    condition, y = (
        artist.pick(kind, lambda tensor: tensor.shape == x.shape, lambda: x.shape)
        for kind in (B8, main)
    )
    artist.apply(type_, [condition, x, y], main)


def _quantize(artist: Artist, type_: OperationType, main: OperandType) -> None:
    artist.apply(type_, [artist.pick(main)], artist.choose(Q8, Q8S))


def _dequantize(artist: Artist, type_: OperationType, main: OperandType) -> None:
    artist.apply(type_, [artist.pick(main)], artist.choose(F32, F16))


def _cast(artist: Artist, type_: OperationType, main: OperandType) -> None:
    targets = [
        OperandType(row.types["U"])
        for row in SIGNATURES[type_].rows
        if row.types["T"] == main
    ]
    x, target = artist.pick(main), artist.choose(*targets)
    is_quantized = target in (Q8, Q8S, Q8SYM)
    output: OperandType | BoundOperand = target
    if is_quantized:
        output = artist.bound(target, (1,))
    # Known dimensions beside open ones of the input count as different ones.
    artist.apply(type_, [x], output, declare=lambda shape: x.dimensions)


BUILDERS: dict[OperationType, Builder] = rows(
    {
        _arithmetic: "ADD SUB MUL DIV",
        _binary: "MAXIMUM MINIMUM PRELU LOGICAL_AND LOGICAL_OR",
        _unary: "ABS NEG FLOOR SIN LOGISTIC TANH HARD_SWISH LOGICAL_NOT",
        _rectified: "RELU RELU1 RELU6",
        _comparison: "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL",
        _domain(-50, 8, least=-4): "EXP",
        _domain(0.01, np.inf): "LOG RSQRT",
        _domain(0, np.inf): "SQRT",
        _pow: "POW",
        _elu: "ELU",
        _select: "SELECT",
        _quantize: "QUANTIZE",
        _dequantize: "DEQUANTIZE",
        _cast: "CAST",
    }
)
