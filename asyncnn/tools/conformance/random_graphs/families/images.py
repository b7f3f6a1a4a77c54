"""Draws images, and operations that resize them or move blocks of pixels."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.moving import divisors
from asyncnn.tools.conformance.random_graphs.families.pointwise import Builder, rows
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


def _blocks(artist: Artist, type_: OperationType, main: OperandType) -> None:
    """Draw an operation that moves blocks of pixels to another axis, or back."""
    height, columns = artist.number(1, 2), artist.number(1, 3)
    is_square = type_ is not OperationType.BATCH_TO_SPACE_ND
    width = height if is_square else columns
    count = height * width

    def suits(shape: Shape) -> bool:
        if type_ is OperationType.SPACE_TO_DEPTH:
            return shape[1] % height == shape[2] % width == 0
        return shape[3 if is_square else 0] % count == 0

    def drawn() -> Shape:
        n, h, w, c = (artist.number(1, 3) for _ in range(4))
        if type_ is OperationType.SPACE_TO_DEPTH:
            return n, h * height, w * width, c
        return (n, h, w, c * count) if is_square else (n * count, h, w, c)

    x = image(artist, main, suits, drawn)
    block = artist.scalar(height) if is_square else artist.integers((height, width))
    flag = layout_flag(artist, x.nchw)
    artist.apply(type_, [x.tensor, block, *flag], x.tensor.bound)


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


BUILDERS: dict[OperationType, Builder] = rows(
    {
        _resize: "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
        _blocks: "DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND",
        _space_to_batch: "SPACE_TO_BATCH_ND",
    }
)
