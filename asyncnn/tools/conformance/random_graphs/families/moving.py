"""Draws operations that move elements, or join and cut tensors."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.pointwise import Builder
from asyncnn.tools.conformance.random_graphs.sketch import (
    F16,
    F32,
    I32,
    DrawnTensor,
    bound_of,
)


def _keeping(
    arguments: Callable[[Artist, DrawnTensor], Sequence[DrawnTensor | None]],
    largest_rank: int = 4,
) -> Builder:
    """Draw an operation on one tensor whose quantisation it keeps."""

    def build(artist: Artist, type_: OperationType, main: OperandType) -> None:
        x = artist.pick(
            main,
            lambda tensor: len(tensor.shape) <= largest_rank,
            lambda: artist.shape(*range(1, largest_rank + 1)),
        )
        artist.apply(type_, [x, *arguments(artist, x)], x.bound)

    return build


def any_axis(artist: Artist, rank: int) -> int:
    """Draw an axis, which may be counted from the end."""
    axis: int = artist.choose(*range(rank), *range(-rank, 0))
    return axis


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


def _expanded_axis(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    return [artist.scalar(any_axis(artist, len(x.shape) + 1))]


def _permutation(artist: Artist, x: DrawnTensor) -> list[DrawnTensor | None]:
    if artist.choose(False, True):
        return [None]
    left = list(range(len(x.shape)))
    order = [left.pop(artist.number(0, len(left) - 1)) for _ in x.shape]
    return [artist.integers(order)]


def _multiples(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    return [artist.integers(artist.number(1, 3) for _ in x.shape)]


def _shuffle(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    axis = any_axis(artist, len(x.shape))
    groups = artist.choose(*divisors(x.shape[axis]))
    return [artist.scalar(groups), artist.scalar(axis)]


def _reversed_axis(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    return [artist.integers([artist.number(0, len(x.shape) - 1)])]


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


def _pad(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    return [_paddings(artist, x.shape)]


def _pad_v2(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    if x.type in QUANT8_TYPES:
        limits = np.iinfo(x.value.dtype)
        value = artist.scalar(artist.number(int(limits.min), int(limits.max)))
    else:
        value = artist.real_scalar(artist.choose(0.0, 1.5, -2.0), x.type)
    return [_paddings(artist, x.shape), value]


def _mirror_pad(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    mode = artist.number(0, 1)
    return [_paddings(artist, x.shape, 1 - mode), artist.scalar(mode)]


def _concatenation(artist: Artist, type_: OperationType, main: OperandType) -> None:
    first = artist.pick(main)
    axis = artist.number(0, len(first.shape) - 1)

    def rest(shape: Shape) -> Shape:
        return *shape[:axis], *shape[axis + 1 :]

    others = [
        artist.pick(
            main,
            lambda tensor: (
                len(tensor.shape) == len(first.shape)
                and rest(tensor.shape) == rest(first.shape)
            ),
            lambda: (
                *first.shape[:axis],
                artist.number(1, 4),
                *first.shape[axis + 1 :],
            ),
        )
        for _ in range(artist.number(0, 2))
    ]
    options: tuple[BoundOperand | OperandType, ...] = first.bound, main
    result = artist.choose(*options)
    artist.apply(type_, [first, *others, artist.scalar(axis)], result)


def _pack(artist: Artist, type_: OperationType, main: OperandType) -> None:
    first = artist.pick(
        main, lambda tensor: len(tensor.shape) < 4, lambda: artist.shape(1, 2, 3)
    )

    def is_alike(tensor: DrawnTensor) -> bool:
        one, other = tensor.bound, first.bound
        return (tensor.shape, one.scale, one.zero_point) == (
            first.shape,
            other.scale,
            other.zero_point,
        )

    alike = [t for t in artist.sketch.tensors if t.type == main and is_alike(t)]
    others = [artist.choose(*alike) for _ in range(artist.number(0, 2))]
    axis = artist.scalar(artist.number(0, len(first.shape)))
    artist.apply(type_, [axis, first, *others], first.bound)


def _split(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    axis = any_axis(artist, len(x.shape))
    count = artist.choose(*divisors(x.shape[axis]))
    inputs = [x, artist.scalar(axis), artist.scalar(count)]
    artist.apply(type_, inputs, *[x.bound] * count)


def _arg(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    axis = artist.scalar(any_axis(artist, len(x.shape)))
    artist.apply(type_, [x, axis], I32)


def _top_k(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    k = artist.scalar(artist.number(1, x.shape[-1]))
    artist.apply(type_, [x, k], x.bound, I32)


def _fill(artist: Artist, type_: OperationType, main: OperandType) -> None:
    value = artist.choose(0, 3, -2)
    shape = artist.integers(artist.shape())
    scalar = (
        artist.real_scalar(value, main) if main in (F32, F16) else artist.scalar(value)
    )
    artist.apply(type_, [shape, scalar], main)


def _rank(artist: Artist, type_: OperationType, main: OperandType) -> None:
    artist.apply(type_, [artist.pick(main)], OperandType.INT32)


_OP = OperationType
BUILDERS: dict[OperationType, Builder] = {
    _OP.RESHAPE: _keeping(_target_shape),
    _OP.SQUEEZE: _keeping(_squeezed_axes),
    _OP.EXPAND_DIMS: _keeping(_expanded_axis, largest_rank=3),
    _OP.TRANSPOSE: _keeping(_permutation),
    _OP.TILE: _keeping(_multiples),
    _OP.CHANNEL_SHUFFLE: _keeping(_shuffle),
    _OP.REVERSE: _keeping(_reversed_axis),
    _OP.SLICE: _keeping(_box),
    _OP.STRIDED_SLICE: _keeping(_strided_box),
    _OP.GATHER: _keeping(_gathered),
    _OP.PAD: _keeping(_pad),
    _OP.PAD_V2: _keeping(_pad_v2),
    _OP.MIRROR_PAD: _keeping(_mirror_pad),
    _OP.CONCATENATION: _concatenation,
    _OP.PACK: _pack,
    _OP.SPLIT: _split,
    **dict.fromkeys((_OP.ARGMAX, _OP.ARGMIN), _arg),
    _OP.TOPK_V2: _top_k,
    _OP.FILL: _fill,
    _OP.RANK: _rank,
}
