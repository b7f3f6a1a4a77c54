"""Draws operations that move elements, or join and cut tensors."""

import math

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.pointwise import (
    Builder,
    alike,
    nothing,
    operation,
    rows,
)
from asyncnn.tools.conformance.random_graphs.sketch import (
    F16,
    F32,
    I32,
    DrawnTensor,
    bound_of,
)


def any_axis(artist: Artist, rank: int) -> int:
    """Draw an axis, which may be counted from the end."""
    axis: int = artist.choose(*range(rank), *range(-rank, 0))
    return axis


def axis_of(artist: Artist, x: DrawnTensor, more: int = 0) -> DrawnTensor:
    """Draw an axis of a tensor that has so many ``more``."""
    return artist.scalar(any_axis(artist, len(x.shape) + more))


def divisors(number: int) -> list[int]:
    """Return the numbers that divide ``number``, the smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _target_shape(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    left, target = x.value.size, []
    for _ in range(artist.number(0, 3)):
        target.append(artist.choose(*divisors(left)))
        left //= target[-1]
    target.insert(artist.number(0, len(target)), left)
    if artist.choose(False, True):
        target[artist.number(0, len(target) - 1)] = -1
    return [artist.integers(target)]


def _squeezed_axes(artist: Artist, x: DrawnTensor) -> list[DrawnTensor | None]:
    ones = [axis for axis, length in enumerate(x.shape) if length == 1]
    if not ones or artist.choose(False, True):
        return [None]
    return [artist.integers({artist.choose(*ones) for _ in ones})]


def _permutation(artist: Artist, x: DrawnTensor) -> list[DrawnTensor | None]:
    if artist.choose(False, True):
        return [None]
    left = list(range(len(x.shape)))
    order = [left.pop(artist.number(0, len(left) - 1)) for _ in x.shape]
    return [artist.integers(order)]


def _shuffle(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    axis = any_axis(artist, len(x.shape))
    groups = artist.choose(*divisors(x.shape[axis]))
    return [artist.scalar(groups), artist.scalar(axis)]


def _box(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    begins = [artist.number(0, length - 1) for length in x.shape]
    sizes = [
        artist.choose(-1, artist.number(1, length - begin))
        for length, begin in zip(x.shape, begins, strict=True)
    ]
    return [artist.integers(begins), artist.integers(sizes)]


def _stride(artist: Artist, length: int) -> tuple[int, int, int]:
    """Draw (begin, end, stride) that take an element at least."""
    stride = artist.choose(1, 2, -1, -2)
    begin = artist.number(0, length - 1)
    if stride > 0:
        end = artist.number(begin + 1, length)
    else:
        end = artist.number(-1, begin - 1)
        end = end - length if end < 0 else end
    return (begin - length if artist.choose(False, True) else begin), end, stride


def _strided_box(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    strides = [_stride(artist, length) for length in x.shape]
    shrunk = 0
    for axis, length in enumerate(x.shape):
        if artist.choose(False, False, True):
            begin = artist.number(0, length - 1)
            strides[axis] = begin, begin + 1, 1
            shrunk |= 1 << axis
    masks = [artist.number(0, 2 ** len(x.shape) - 1) & ~shrunk for _ in range(2)]
    return [
        *(artist.integers(column) for column in zip(*strides, strict=True)),
        *(artist.scalar(mask) for mask in (*masks, shrunk)),
    ]


def _gathered(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    axis = any_axis(artist, len(x.shape))
    shape = artist.shape(*range(1, 6 - len(x.shape)))
    count = math.prod(shape)
    places = [artist.number(0, x.shape[axis] - 1) for _ in range(min(count, 4))]
    indices = np.resize(np.array(places, np.int32), shape)
    return [artist.scalar(axis), artist.known(bound_of(I32, indices))]


def _paddings(artist: Artist, shape: Shape, margin: int | None = None) -> DrawnTensor:
    """Draw paddings; ``margin`` is how much less than an axis they must be."""
    pairs = [
        [
            artist.number(0, 2 if margin is None else min(2, length - margin))
            for _ in range(2)
        ]
        for length in shape
    ]
    return artist.known(bound_of(I32, np.array(pairs, np.int32)))


def _pad_v2(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    if x.type in QUANT8_TYPES:
        limits = np.iinfo(x.value.dtype)
        value = artist.scalar(artist.number(int(limits.min), int(limits.max)))
    else:
        value = artist.real_scalar(artist.choose(0.0, 1.5, -2.0), x.type)
    return [_paddings(artist, x.shape), value]


def _mirrored(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    mode = artist.number(0, 1)
    return [_paddings(artist, x.shape, 1 - mode), artist.scalar(mode)]


def _others(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    """Draw what is joined with ``x``: of its shape, but for one axis, and that axis."""
    axis = artist.number(0, len(x.shape) - 1)
    before, after = x.shape[:axis], x.shape[axis + 1 :]

    def joins(tensor: DrawnTensor) -> bool:
        shape = tensor.shape
        is_long = len(shape) == len(x.shape)
        return is_long and (shape[:axis], shape[axis + 1 :]) == (before, after)

    def shape() -> Shape:
        return *before, artist.number(1, 4), *after

    others = [artist.pick(x.type, joins, shape) for _ in range(artist.number(0, 2))]
    return [*others, artist.scalar(axis)]


def _either(artist: Artist, x: DrawnTensor) -> BoundOperand | OperandType:
    options: tuple[BoundOperand | OperandType, ...] = x.bound, x.type
    return artist.choose(*options)


def is_like(tensor: DrawnTensor, bound: BoundOperand) -> bool:
    """Return whether a tensor is of the type and the quantisation of another."""
    one = tensor.bound
    return (one.type, one.scale, one.zero_point) == (
        bound.type,
        bound.scale,
        bound.zero_point,
    )


def _pack(artist: Artist, type_: OperationType, main: OperandType) -> None:
    first = artist.pick(
        main, lambda tensor: len(tensor.shape) < 4, lambda: artist.shape(1, 2, 3)
    )
    alike = [
        tensor
        for tensor in artist.sketch.tensors
        if is_like(tensor, first.bound) and tensor.shape == first.shape
    ]
    others = [artist.choose(*alike) for _ in range(artist.number(0, 2))]
    axis = artist.scalar(artist.number(0, len(first.shape)))
    artist.apply(type_, [axis, first, *others], first.bound)


def _split(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    axis = any_axis(artist, len(x.shape))
    count = artist.choose(*divisors(x.shape[axis]))
    inputs = [x, artist.scalar(axis), artist.scalar(count)]
    artist.apply(type_, inputs, *[x.bound] * count)


def _fill(artist: Artist, type_: OperationType, main: OperandType) -> None:
    value = artist.choose(0, 3, -2)
    shape = artist.integers(artist.shape())
    scalar = (
        artist.real_scalar(value, main) if main in (F32, F16) else artist.scalar(value)
    )
    artist.apply(type_, [shape, scalar], main)


BUILDERS: dict[OperationType, Builder] = rows(
    {
        operation(_target_shape, alike): "RESHAPE",
        operation(_squeezed_axes, alike): "SQUEEZE",
        operation(
            lambda artist, x: [axis_of(artist, x, more=1)], alike, ranks=(1, 2, 3)
        ): "EXPAND_DIMS",
        operation(_permutation, alike): "TRANSPOSE",
        operation(
            lambda artist, x: [artist.integers(artist.number(1, 3) for _ in x.shape)],
            alike,
        ): "TILE",
        operation(_shuffle, alike): "CHANNEL_SHUFFLE",
        operation(
            lambda artist, x: [artist.integers([artist.number(0, len(x.shape) - 1)])],
            alike,
        ): "REVERSE",
        operation(_box, alike): "SLICE",
        operation(_strided_box, alike): "STRIDED_SLICE",
        operation(_gathered, alike): "GATHER",
        operation(lambda artist, x: [_paddings(artist, x.shape)], alike): "PAD",
        operation(_pad_v2, alike): "PAD_V2",
        operation(_mirrored, alike): "MIRROR_PAD",
        operation(_others, _either): "CONCATENATION",
        _pack: "PACK",
        _split: "SPLIT",
        operation(
            lambda artist, x: [axis_of(artist, x)], lambda *_: I32
        ): "ARGMAX ARGMIN",
        operation(
            lambda artist, x: [artist.scalar(artist.number(1, x.shape[-1]))],
            lambda artist, x: [x.bound, I32],
        ): "TOPK_V2",
        _fill: "FILL",
        operation(nothing, lambda *_: OperandType.INT32): "RANK",
    }
)
