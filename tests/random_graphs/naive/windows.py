"""Formulas of operations that resize an image or slide a window over it."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from tests.random_graphs.naive.elementwise import Formula, clamped
from tests.random_graphs.naive.expected import (
    ONCE,
    QUANTIZED,
    TWICE,
    Expected,
    exact,
    in_layout,
    nhwc,
    real,
    real_bias,
    rounded,
)
from tests.random_graphs.naive.moving import integers


def _resized_lengths(operation: BoundOperation, image: Array) -> tuple[int, int]:
    def length(index: int, old: int) -> int:
        if operation.input(index).type is OperandType.INT32:
            return operation.integer(index)
        return int(np.floor(np.float32(old) * np.float32(operation.real(index))))

    return length(2, image.shape[1]), length(1, image.shape[2])


def _source_positions(operation: BoundOperation, old: int, new: int) -> Array:
    """Return the place in the old image of each pixel of the new one."""
    aligned, centred = operation.boolean(4, False), operation.boolean(5, False)
    places = np.arange(new)
    if aligned and new > 1:
        return places * ((old - 1) / (new - 1))
    return (places + 0.5) * (old / new) - 0.5 if centred else places * (old / new)


def _resize_bilinear(operation: BoundOperation) -> Expected:
    nchw = operation.boolean(3, False)
    image = nhwc(real(operation.input(0)), nchw)
    magnitude = np.broadcast_to(np.abs(image).max(), image.shape)
    for axis, new in zip((1, 2), _resized_lengths(operation, image), strict=True):
        old = image.shape[axis]
        places = np.clip(_source_positions(operation, old, new), 0, old - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, old - 1)
        share = np.reshape(places - low, (-1, *[1] * (3 - axis)))
        image, magnitude = (
            np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
            for x in (image, magnitude)
        )
    return in_layout(rounded(image, 16, magnitude, TWICE), nchw)


def _resize_nearest(operation: BoundOperation) -> Expected:
    nchw = operation.boolean(3, False)
    image = nhwc(real(operation.input(0)), nchw)
    for axis, new in zip((1, 2), _resized_lengths(operation, image), strict=True):
        old = image.shape[axis]
        places = _source_positions(operation, old, new)
        if operation.boolean(4, False) or operation.boolean(5, False):
            places = places + 0.5
        # Positions are float32; what should be a whole number may be just below.
        chosen = np.clip(np.floor(places + 1e-6), 0, old - 1).astype(int)
        image = np.take(image, chosen, axis)
    return in_layout(exact(image), nchw)


SAME = 1


class Sliding(NamedTuple):
    """Scalars of an operation with a window, each pair as (height, width)."""

    before: tuple[int, int]
    after: tuple[int, int]
    stride: tuple[int, int]
    extras: tuple[int, ...]
    activation: int
    nchw: bool
    dilation: tuple[int, int]


def _sliding(
    operation: BoundOperation, first: int, extras: int, image: Array, filter_: Array
) -> Sliding:
    """Read the scalars from input ``first`` on; ``extras`` follow the strides.

    ``filter_`` is empty where the extras are its width and height.
    """
    after_implicit = first + 4 + extras
    flag = operation.input(after_implicit) if operation.has(after_implicit) else None
    is_explicit = flag is not None and flag.type != OperandType.BOOL
    at = first + (4 if is_explicit else 1)
    stride = operation.integer(at + 1), operation.integer(at)
    scalars = tuple(operation.integer(at + 2 + i) for i in range(extras))
    end = at + 2 + extras
    nchw = operation.boolean(end + 1, False)
    dilation = operation.integer(end + 3, 1), operation.integer(end + 2, 1)
    if is_explicit:
        left, right, top, bottom = (operation.integer(first + i) for i in range(4))
        before, after = (top, left), (bottom, right)
    else:
        sizes = filter_.shape[1:3] if filter_.size else scalars[::-1]
        lengths = image.shape[2:4] if nchw else image.shape[1:3]
        pads = [
            _scheme_padding(operation.integer(first), *each)
            for each in zip(lengths, sizes, stride, dilation, strict=True)
        ]
        before, after = zip(*pads, strict=True)
    activation = operation.integer(end)
    return Sliding(before, after, stride, scalars, activation, nchw, dilation)


def _scheme_padding(
    scheme: int, length: int, size: int, stride: int, dilation: int
) -> tuple[int, int]:
    if scheme != SAME:
        return 0, 0
    reach = (size - 1) * dilation + 1
    outputs = (length + stride - 1) // stride
    total = max(reach + (outputs - 1) * stride - length, 0)
    return total // 2, total - total // 2


def _lengths(image: Array, size: tuple[int, int], how: Sliding) -> list[int]:
    return [
        (n + before + after - (taps - 1) * dilation - 1) // stride + 1
        for n, before, after, taps, dilation, stride in zip(
            image.shape[1:3],
            how.before,
            how.after,
            size,
            how.dilation,
            how.stride,
            strict=True,
        )
    ]


def _windows(
    image: Array, size: tuple[int, int], how: Sliding
) -> Iterator[tuple[int, int, list[tuple[int, int, Array]]]]:
    """Yield each output pixel with what of the image lies under each filter tap."""
    height, width = image.shape[1:3]
    for y, x in itertools.product(*map(range, _lengths(image, size, how))):
        taps = []
        for i, j in itertools.product(*map(range, size)):
            row = y * how.stride[0] - how.before[0] + i * how.dilation[0]
            column = x * how.stride[1] - how.before[1] + j * how.dilation[1]
            if 0 <= row < height and 0 <= column < width:
                taps.append((i, j, image[:, row, column]))
        yield y, x, taps


def _pool(fold: Callable[[Array], Array], places: float) -> Formula:
    """``fold`` turns [taps, N, C] into [N, C]; padding takes no part."""

    def formula(operation: BoundOperation) -> Expected:
        image = real(operation.input(0))
        how = _sliding(operation, 1, 2, image, np.empty(0))
        image = nhwc(image, how.nchw)
        size = how.extras[1], how.extras[0]
        value = np.zeros((len(image), *_lengths(image, size, how), image.shape[3]))
        magnitude = np.zeros_like(value)
        for y, x, taps in _windows(image, size, how):
            pixels = np.array([pixel for _, _, pixel in taps])
            value[:, y, x] = fold(pixels)
            magnitude[:, y, x] = fold(np.abs(pixels))
        # The bounds of an activation are rounded to codes.
        quantized = operation.input(0).type in QUANTIZED
        expected = rounded(
            value, size[0] * size[1], magnitude, ONCE if quantized else places
        )
        return in_layout(clamped(expected, how.activation), how.nchw)

    return formula


def _convolution(first_scalar_count: int) -> Formula:
    """``first_scalar_count`` scalars (a multiplier or groups) follow the strides."""

    def formula(operation: BoundOperation) -> Expected:
        image, filter_ = real(operation.input(0)), real(operation.input(1))
        bias = real_bias(operation)
        how = _sliding(operation, 3, first_scalar_count, image, filter_)
        image = nhwc(image, how.nchw)
        weights = _dense(operation, filter_, how, image.shape[3])
        size = weights.shape[1], weights.shape[2]
        shape = len(image), *_lengths(image, size, how), len(weights)
        value, magnitude = np.zeros(shape), np.zeros(shape)
        for y, x, taps in _windows(image, size, how):
            for i, j, pixel in taps:
                value[:, y, x] += pixel @ weights[:, i, j].T
                magnitude[:, y, x] += np.abs(pixel) @ np.abs(weights[:, i, j]).T
        roundings = weights[0].size + 2
        expected = rounded(value + bias, roundings, magnitude + np.abs(bias), TWICE)
        return in_layout(clamped(expected, how.activation), how.nchw)

    return formula


def _dense(
    operation: BoundOperation, filter_: Array, how: Sliding, channels: int
) -> Array:
    """Return [out, H, W, in] weights, zero where channels are not connected."""
    if operation.type is OperationType.CONV_2D:
        return filter_
    if operation.type is OperationType.GROUPED_CONV_2D:
        outputs, inputs = len(filter_) // how.extras[0], filter_.shape[3]
        dense = np.zeros((*filter_.shape[:3], channels))
        for channel, weights in enumerate(filter_):
            start = channel // outputs * inputs
            dense[channel, ..., start : start + inputs] = weights
        return dense
    count = filter_.shape[3]
    dense = np.zeros((count, *filter_.shape[1:3], channels))
    for channel in range(count):
        dense[channel, ..., channel // how.extras[0]] = filter_[0, ..., channel]
    return dense


def _transpose_convolution(operation: BoundOperation) -> Expected:
    image, filter_ = real(operation.input(0)), real(operation.input(1))
    bias = real_bias(operation)
    is_explicit = len(operation.inputs) == 11
    at = 7 if is_explicit else 5
    stride = operation.integer(at + 1), operation.integer(at)
    nchw = operation.boolean(at + 3)
    image = nhwc(image, nchw)
    size = filter_.shape[1:3]
    full = [
        (length - 1) * step + taps
        for length, step, taps in zip(image.shape[1:3], stride, size, strict=True)
    ]
    if is_explicit:
        left, right, top, bottom = (operation.integer(3 + i) for i in range(4))
        before = top, left
        lengths = [full[0] - top - bottom, full[1] - left - right]
    else:
        wanted = integers(operation, 3)
        lengths = wanted[2:] if nchw else wanted[1:3]
        is_same = operation.integer(4) == SAME
        above, beside = (
            max(whole - kept, 0) // 2 if is_same else 0
            for whole, kept in zip(full, lengths, strict=True)
        )
        before = above, beside
    value = np.zeros((len(image), *lengths, len(filter_)))
    magnitude = np.zeros_like(value)
    for y, x, i, j in itertools.product(*map(range, (*image.shape[1:3], *size))):
        row, column = y * stride[0] + i - before[0], x * stride[1] + j - before[1]
        if 0 <= row < lengths[0] and 0 <= column < lengths[1]:
            weights = filter_[:, i, j]
            value[:, row, column] += image[:, y, x] @ weights.T
            magnitude[:, row, column] += np.abs(image[:, y, x]) @ np.abs(weights).T
    roundings = filter_[0].size + 2
    expected = rounded(value + bias, roundings, magnitude + np.abs(bias), TWICE)
    return in_layout(clamped(expected, operation.integer(at + 2)), nchw)


_OP = OperationType
FORMULAS: dict[OperationType, Formula] = {
    _OP.AVERAGE_POOL_2D: _pool(lambda taps: taps.mean(0), ONCE),
    _OP.L2_POOL_2D: _pool(lambda taps: np.sqrt((taps**2).mean(0)), ONCE),
    _OP.MAX_POOL_2D: _pool(lambda taps: taps.max(0), 0),
    _OP.CONV_2D: _convolution(0),
    _OP.DEPTHWISE_CONV_2D: _convolution(1),
    _OP.GROUPED_CONV_2D: _convolution(1),
    _OP.TRANSPOSE_CONV_2D: _transpose_convolution,
    _OP.RESIZE_BILINEAR: _resize_bilinear,
    _OP.RESIZE_NEAREST_NEIGHBOR: _resize_nearest,
}
