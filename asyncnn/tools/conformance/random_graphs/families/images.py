"""Draws images, and operations that resize them or move blocks of pixels."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.elementwise import Builder
from asyncnn.tools.conformance.random_graphs.families.moving import divisors
from asyncnn.tools.conformance.random_graphs.sketch import I32, DrawnTensor, bound_of


class Image(NamedTuple):
    """A tensor of four axes and its layout."""

    tensor: DrawnTensor
    nchw: bool

    @property
    def shape(self) -> Shape:
        """Its shape as [N, H, W, C]."""
        return _nhwc(self.tensor.shape, self.nchw)


def _nhwc(shape: Shape, nchw: bool) -> Shape:
    n, a, b, c = shape
    return (n, b, c, a) if nchw else shape


def in_layout(shape: Iterable[int], nchw: bool) -> Shape:
    """Return [N, H, W, C] in a layout."""
    n, h, w, c = shape
    return (n, c, h, w) if nchw else (n, h, w, c)


def image(
    artist: Artist,
    main: OperandType,
    where: Callable[[Shape], bool] = lambda shape: True,
    shape: Callable[[], Shape] | None = None,
) -> Image:
    """Draw an image; ``where`` and ``shape`` are about [N, H, W, C]."""
    nchw = artist.choose(False, True)

    def suits(tensor: DrawnTensor) -> bool:
        return len(tensor.shape) == 4 and where(_nhwc(tensor.shape, nchw))

    if artist.choose(False, True):
        reshaped = _reshaped(artist, main)
        if suits(reshaped):
            return Image(reshaped, nchw)
    drawn = shape or (lambda: artist.shape(4))
    tensor = artist.pick(main, suits, lambda: in_layout(drawn(), nchw))
    return Image(tensor, nchw)


def _reshaped(artist: Artist, main: OperandType) -> DrawnTensor:
    """Draw a tensor and give it four axes."""
    x = artist.pick(main)
    left, shape = x.value.size, []
    for _ in range(3):
        shape.append(artist.choose(*divisors(left)))
        left //= shape[-1]
    inputs = [x, artist.integers([left, *shape])]
    return artist.apply(OperationType.RESHAPE, inputs, x.bound)[0]


def layout_flag(artist: Artist, nchw: bool) -> list[DrawnTensor]:
    """Draw the flag of the layout, or leave it out where it may be."""
    return [artist.scalar(nchw)] if nchw or artist.choose(False, True) else []


def _resize(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = image(artist, main)
    _, height, width, _ = x.shape
    if artist.choose(True, False):
        scalars = [artist.scalar(artist.number(1, 6)) for _ in range(2)]
    else:
        scalars = [
            artist.real_scalar(
                artist.choose(1.0, 2.0, 1.5, *([0.5] if length > 1 else [])), main
            )
            for length in (width, height)
        ]
    needs_flag = type_ is OperationType.RESIZE_NEAREST_NEIGHBOR or x.nchw
    tail: list[DrawnTensor] = []
    if needs_flag or artist.choose(False, True):
        tail.append(artist.scalar(x.nchw))
        flags = artist.choose((), (True,), (False, True), (True, False))
        tail += map(artist.scalar, flags)
    artist.apply(type_, [x.tensor, *scalars, *tail], x.tensor.bound)


def _depth_to_space(artist: Artist, type_: OperationType, main: OperandType) -> None:
    block = artist.number(1, 2)
    x = image(
        artist,
        main,
        lambda shape: shape[3] % block**2 == 0,
        lambda: (*artist.shape(3), artist.number(1, 2) * block**2),
    )
    flag = layout_flag(artist, x.nchw)
    artist.apply(type_, [x.tensor, artist.scalar(block), *flag], x.tensor.bound)


def _space_to_depth(artist: Artist, type_: OperationType, main: OperandType) -> None:
    block = artist.number(1, 2)
    x = image(
        artist,
        main,
        lambda shape: shape[1] % block == shape[2] % block == 0,
        lambda: _with_multiples(artist, block, block),
    )
    flag = layout_flag(artist, x.nchw)
    artist.apply(type_, [x.tensor, artist.scalar(block), *flag], x.tensor.bound)


def _with_multiples(artist: Artist, rows: int, columns: int) -> Shape:
    n, h, w, c = (artist.number(1, 3) for _ in range(4))
    return n, h * rows, w * columns, c


def _batch_to_space(artist: Artist, type_: OperationType, main: OperandType) -> None:
    rows, columns = block = artist.number(1, 2), artist.number(1, 3)
    x = image(
        artist,
        main,
        lambda shape: shape[0] % (rows * columns) == 0,
        lambda: (artist.number(1, 2) * rows * columns, *artist.shape(3)),
    )
    flag = layout_flag(artist, x.nchw)
    artist.apply(type_, [x.tensor, artist.integers(block), *flag], x.tensor.bound)


def _space_to_batch(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = image(artist, main)
    block = artist.number(1, 2), artist.number(1, 3)
    pads = []
    for length, size in zip(x.shape[1:3], block, strict=True):
        before = artist.number(0, 2)
        pads.append((before, -(length + before) % size + artist.choose(0, size)))
    paddings = artist.known(bound_of(I32, np.array(pads, np.int32)))
    flag = layout_flag(artist, x.nchw)
    inputs = [x.tensor, artist.integers(block), paddings, *flag]
    artist.apply(type_, inputs, x.tensor.bound)


_OP = OperationType
BUILDERS: dict[OperationType, Builder] = {
    _OP.RESIZE_BILINEAR: _resize,
    _OP.RESIZE_NEAREST_NEIGHBOR: _resize,
    _OP.DEPTH_TO_SPACE: _depth_to_space,
    _OP.SPACE_TO_DEPTH: _space_to_depth,
    _OP.BATCH_TO_SPACE_ND: _batch_to_space,
    _OP.SPACE_TO_BATCH_ND: _space_to_batch,
}
