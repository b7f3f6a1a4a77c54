"""Draws operations that slide a window over an image."""

from collections.abc import Iterable

from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.images import (
    Image,
    image,
    in_layout,
    layout_flag,
)
from asyncnn.tools.conformance.random_graphs.families.moving import divisors
from asyncnn.tools.conformance.random_graphs.families.pointwise import (
    Builder,
    fused_activation,
    rows,
)
from asyncnn.tools.conformance.random_graphs.families.reducing import weights_and_bias
from asyncnn.tools.conformance.random_graphs.sketch import DrawnTensor

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
    }
)
