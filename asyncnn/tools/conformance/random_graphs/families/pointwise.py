"""Draws operations on each element alone, or on pairs of elements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

Arguments = Callable[[Artist, DrawnTensor], Sequence[DrawnTensor | None]]
"""Draws what an operation on a tensor reads besides."""


def rows(names: Mapping[Builder, str]) -> dict[OperationType, Builder]:
    """Return the builder of each operation that is named beside it."""
    return {
        OperationType[name]: builder
        for builder, listed in names.items()
        for name in listed.split()
    }


def operation(
    arguments: Arguments,
    result: Callable[[Artist, DrawnTensor], Any] = lambda artist, x: x.type,
    ranks: Sequence[int] = (1, 2, 3, 4),
) -> Builder:
    """Draw an operation on a tensor of one of ``ranks``, and its other arguments.

    The result is of a type or quantised like an operand; several are in a list.
    """

    def build(artist: Artist, type_: OperationType, main: OperandType) -> None:
        x = artist.pick(
            main,
            lambda tensor: len(tensor.shape) in ranks,
            lambda: artist.shape(*ranks),
        )
        inputs, outputs = [x, *arguments(artist, x)], result(artist, x)
        artist.apply(
            type_, inputs, *(outputs if isinstance(outputs, list) else [outputs])
        )

    return build


def alike(artist: Artist, x: DrawnTensor) -> BoundOperand:
    """Have a result quantised as what it is of."""
    return x.bound


def nothing(artist: Artist, x: DrawnTensor) -> Sequence[DrawnTensor]:
    """Have no other arguments."""
    return ()


def fused_activation(artist: Artist, main: OperandType) -> DrawnTensor:
    """Draw a fused activation, which int32 has none of."""
    return artist.scalar(0 if main == I32 else artist.number(0, 3))


def _domain(low: float, high: float, least: float = 0.25, most: float = 4) -> Builder:
    """Draw a unary operation on floats in a range; leaves are in a narrower one."""

    def build(artist: Artist, type_: OperationType, main: OperandType) -> None:
        def suits(tensor: DrawnTensor) -> bool:
            is_float = main in (F32, F16)
            return not is_float or _lies(tensor, low, high)

        x = artist.pick(main, suits, low=least, high=most)
        artist.apply(type_, [x], main)

    return build


def _lies(tensor: DrawnTensor, low: float, high: float) -> bool:
    return bool(((tensor.value >= low) & (tensor.value <= high)).all())


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
    where: Callable[[DrawnTensor], bool] = lambda tensor: True,
    low: float = -4,
) -> DrawnTensor:
    """Draw a tensor of the type of ``x`` that broadcasts with it."""

    def suits(tensor: DrawnTensor) -> bool:
        pairs = zip(tensor.shape[::-1], x.shape[::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs) and where(tensor)

    return artist.pick(x.type, suits, lambda: _partner_shape(artist, x.shape), low)


def _arithmetic(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    if type_ is OperationType.DIV and main != I32:
        y = partner(artist, x, lambda t: bool(np.abs(t.value).min() >= 0.1), low=0.25)
    else:
        y = partner(artist, x)
    is_product = type_ is OperationType.MUL
    least_scale = 1.01 * x.bound.scale * y.bound.scale if is_product else 0.0
    activation = fused_activation(artist, main)
    artist.apply(type_, [x, y, activation], main, least_scale=least_scale)


def _pow(artist: Artist, type_: OperationType, main: OperandType) -> None:
    base = artist.pick(main, lambda tensor: _lies(tensor, 0.1, 50), low=0.25)
    exponent = partner(artist, base, lambda tensor: _lies(tensor, -4, 4))
    artist.apply(type_, [base, exponent], main)


def _select(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    condition, y = (
        artist.pick(kind, lambda tensor: tensor.shape == x.shape, lambda: x.shape)
        for kind in (B8, main)
    )
    artist.apply(type_, [condition, x, y], main)


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
        operation(lambda artist, x: [partner(artist, x)]): (
            "MAXIMUM MINIMUM PRELU LOGICAL_AND LOGICAL_OR"
        ),
        operation(nothing): "ABS NEG FLOOR SIN LOGISTIC TANH HARD_SWISH LOGICAL_NOT",
        operation(nothing, alike): "RELU RELU1 RELU6",
        operation(lambda artist, x: [partner(artist, x)], lambda *_: B8): (
            "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL"
        ),
        _domain(-50, 8, least=-4): "EXP",
        _domain(0.01, np.inf): "LOG RSQRT",
        _domain(0, np.inf): "SQRT",
        _pow: "POW",
        operation(
            lambda artist, x: [artist.real_scalar(artist.choose(1.0, 0.5, 2.0), x.type)]
        ): "ELU",
        _select: "SELECT",
        operation(nothing, lambda artist, _: artist.choose(Q8, Q8S)): "QUANTIZE",
        operation(nothing, lambda artist, _: artist.choose(F32, F16)): "DEQUANTIZE",
        _cast: "CAST",
    }
)
