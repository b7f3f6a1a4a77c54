"""Draws images, and operations that resize them, slide windows or move blocks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.moving import divisors
from asyncnn.tools.conformance.random_graphs.families.pointwise import (
    Builder,
    fused_activation,
    rows,
)
from asyncnn.tools.conformance.random_graphs.families.reducing import weights_and_bias
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


SAME, VALID = 1, 2


def _padding(artist: Artist, extents: tuple[int, int]) -> list[DrawnTensor]:
    """Draw a scheme or four numbers, each less than the extent of the window."""
    if artist.choose(True, False):
        return [artist.scalar(artist.choose(SAME, VALID))]
    height, width = extents
    limits = width, width, height, height
    return [artist.scalar(artist.number(0, extent - 1)) for extent in limits]


def _strides(artist: Artist) -> list[DrawnTensor]:
    return [artist.scalar(artist.number(1, 3)) for _ in range(2)]


def _taps(artist: Artist, shape: Shape) -> tuple[int, int]:
    """Draw (height, width) of a window that fits in [N, H, W, C]."""
    return artist.number(1, min(3, shape[1])), artist.number(1, min(3, shape[2]))


def _pool(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = image(artist, main)
    size = _taps(artist, x.shape)
    inputs = [
        x.tensor,
        *_padding(artist, size),
        *_strides(artist),
        *map(artist.scalar, size[::-1]),
        fused_activation(artist, main),
        *layout_flag(artist, x.nchw),
    ]
    artist.apply(type_, inputs, x.tensor.bound)


def _dilations(
    artist: Artist, shape: Shape, size: tuple[int, int], nchw: bool
) -> tuple[list[DrawnTensor], tuple[int, int]]:
    """Draw layout and dilation, and return them with the window's extents."""
    if artist.choose(True, False):
        return layout_flag(artist, nchw), size
    factors = [
        artist.choose(1, 2) if (taps - 1) * 2 < length else 1
        for taps, length in zip(size, shape[1:3], strict=True)
    ]
    tail = [artist.scalar(nchw), *map(artist.scalar, factors[::-1])]
    height, width = (
        (taps - 1) * factor + 1 for taps, factor in zip(size, factors, strict=True)
    )
    return tail, (height, width)


def _convolution(artist: Artist, type_: OperationType, main: OperandType) -> None:
    """Draw a convolution: of all channels, of each of them, or of groups."""
    x = image(artist, main)
    size, channels = _taps(artist, x.shape), x.shape[3]
    tail, extents = [artist.scalar(x.nchw)], size
    if type_ is not OperationType.GROUPED_CONV_2D:
        tail, extents = _dilations(artist, x.shape, size, x.nchw)
    axis, extra = 0, []
    if type_ is OperationType.CONV_2D:
        units = artist.number(1, 4)
        shape = (units, *size, channels)
    elif type_ is OperationType.DEPTHWISE_CONV_2D:
        multiplier = artist.number(1, 3)
        axis, units, extra = 3, channels * multiplier, [artist.scalar(multiplier)]
        shape = (1, *size, units)
    else:
        groups = artist.choose(*divisors(channels))
        units, extra = groups * artist.number(1, 2), [artist.scalar(groups)]
        shape = (units, *size, channels // groups)
    inputs = [
        x.tensor,
        *weights_and_bias(artist, x.tensor, shape, units, channel_axis=axis),
        *_padding(artist, extents),
        *_strides(artist),
        *extra,
        fused_activation(artist, main),
        *tail,
    ]
    artist.apply(type_, inputs, main)


def _transposed(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = image(artist, main)
    size, units = (artist.number(1, 3), artist.number(1, 3)), artist.number(1, 4)
    stride = artist.number(1, 3), artist.number(1, 3)
    shape = (units, *size, x.shape[3])
    inputs = [
        x.tensor,
        *weights_and_bias(artist, x.tensor, shape, units, channel_axis=0),
        *_transposed_padding(artist, x, size, stride, units),
        *map(artist.scalar, stride[::-1]),
        fused_activation(artist, main),
        artist.scalar(x.nchw),
    ]
    artist.apply(type_, inputs, main)


def _transposed_padding(
    artist: Artist, x: Image, size: Iterable[int], stride: Iterable[int], units: int
) -> list[DrawnTensor]:
    """Draw an output shape with a scheme, or four numbers that leave something."""
    axes = list(zip(x.shape[1:3], size, stride, strict=True))
    scheme = artist.choose(SAME, VALID, None)
    if scheme is None:
        pads = []
        for length, taps, step in axes:
            room = (length - 1) * step + taps - 1
            before = artist.number(0, min(room, taps - 1))
            pads.append((before, artist.number(0, min(room - before, taps - 1))))
        (top, bottom), (left, right) = pads
        return [artist.scalar(pad) for pad in (left, right, top, bottom)]
    lengths = [
        artist.number((length - 1) * step + 1, length * step)
        if scheme == SAME
        else (length - 1) * step + taps
        for length, taps, step in axes
    ]
    target = in_layout((x.shape[0], *lengths, units), x.nchw)
    return [artist.integers(target), artist.scalar(scheme)]


BUILDERS: dict[OperationType, Builder] = rows(
    {
        _pool: "AVERAGE_POOL_2D L2_POOL_2D MAX_POOL_2D",
        _convolution: "CONV_2D DEPTHWISE_CONV_2D GROUPED_CONV_2D",
        _transposed: "TRANSPOSE_CONV_2D",
        _resize: "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
        _blocks: "DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND",
        _space_to_batch: "SPACE_TO_BATCH_ND",
    }
)
