"""Images in padded buffers, the strided views that filters see, and blocks of rows.

A convolution-like kernel runs block by block, so that a block stays in the cache: a
range of output rows of one image, or several whole images. For each, a `Source`
computes the sums and the epilogue stores them.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from asyncnn.hal.operations.bound import NCHW_TO_NHWC, Array, BoundOperand, Shape
from asyncnn.hal.operations.shapes import NHWC_TO_NCHW, permuted
from asyncnn.hal.operations.sliding_windows import Window, Window2D
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    PreparedKernel,
    Run,
    Scratch,
    TiledRun,
    stateless,
    tiles_of,
)
from asyncnn.kernels.linear.lowering import Epilogue, Finish, Lowered, pixels_per_row

_SPLITS_KEPT = 256
"""Layers of a network often have the same shape."""


class Block(msgspec.Struct, frozen=True):
    """Some rows of some images; ``shape`` counts images, rows and columns."""

    images: slice
    rows: slice
    shape: tuple[int, int, int]
    start: int
    """Index of the first output pixel."""

    @property
    def pixels(self) -> int:
        """Number of output pixels."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Index of the first output pixel behind the block."""
        return self.start + self.pixels


Load: TypeAlias = Callable[[Array], Array]
"""Takes the input once per run; what it returns goes to each `Accumulate`."""

Accumulate: TypeAlias = Callable[[Array], None]
"""Computes the sums of one block."""

AccumulateInto: TypeAlias = Callable[[Block, Array], Accumulate]
"""Makes the `Accumulate` of a block that fills a buffer [pixels, channels]."""

Source: TypeAlias = Callable[[Scratch, int], tuple[Load, AccumulateInto]]
"""Allocates what the sums need; no block has more pixels than the second argument."""


@lru_cache(_SPLITS_KEPT)
def split(shape: Shape, pixels_at_most: int) -> tuple[Block, ...]:
    """Cut output images [N, H, W, C] into blocks of so many pixels, or one row."""
    return tuple(_blocks(shape, pixels_at_most))


def _blocks(shape: Shape, pixels_at_most: int) -> Iterator[Block]:
    images, rows, columns, _ = shape
    rows_at_most = max(1, pixels_at_most // columns)
    parts = -(-rows // rows_at_most)
    for some_images in _ranges(images, max(1, rows_at_most // rows)):
        for some_rows in _ranges(rows, -(-rows // parts)):
            yield Block(
                slice(some_images.start, some_images.stop),
                slice(some_rows.start, some_rows.stop),
                (len(some_images), len(some_rows), columns),
                (some_images.start * rows + some_rows.start) * columns,
            )


def _ranges(length: int, step: int) -> Iterator[range]:
    return (range(i, min(i + step, length)) for i in range(0, length, step))


def image_kernel(
    source: Source,
    lowered: Lowered,
    output: BoundOperand,
    nchw: bool,
    pixels_at_most: int,
) -> PreparedKernel:
    """Return the kernel that fills the images ``output``, in either layout."""
    if not nchw:
        return nhwc_kernel(source, lowered, output.require_shape(), pixels_at_most)
    shape = permuted(output.require_shape(), NCHW_TO_NHWC)
    kernel = nhwc_kernel(source, lowered, shape, pixels_at_most)

    def instantiate(scratch: Scratch) -> Run:
        run = kernel(scratch)
        image = scratch.transient(shape, output.dtype)
        transposed = image.transpose(NHWC_TO_NCHW)

        def run_transposed(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
            yield from tiles_of(run, inputs, (image,))
            np.copyto(outputs[0], transposed)

        return TiledRun(run_transposed)

    return instantiate


def nhwc_kernel(
    source: Source, lowered: Lowered, shape: Shape, pixels_at_most: int
) -> PreparedKernel:
    """Return the kernel that fills images ``shape`` [N, H, W, C]."""
    if 0 in shape:
        return stateless(lambda inputs, outputs: None)
    blocks = split(shape, pixels_at_most)
    largest = max(block.pixels for block in blocks)
    channels = shape[3]

    def instantiate(scratch: Scratch) -> Run:
        load, accumulate_into = source(scratch, largest)
        buffer = scratch.transient((largest, channels), lowered.weights.dtype)
        finishes = {
            pixels: _bind_epilogue(lowered.epilogue, scratch, buffer[:pixels])
            for pixels in {block.pixels for block in blocks}
        }
        steps = [
            (
                accumulate_into(block, buffer[: block.pixels]),
                slice(block.start * channels, block.stop * channels),
                *finishes[block.pixels],
            )
            for block in blocks
        ]

        if len(steps) == 1:
            return _in_one_go(load, *steps[0])

        def run(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
            loaded = load(inputs[0])
            flat = outputs[0].reshape(-1)
            for accumulate, place, finish, rows in steps:
                accumulate(loaded)
                finish(flat[place].reshape(rows))
                yield

        return TiledRun(run)

    return instantiate


def _in_one_go(
    load: Load, accumulate: Accumulate, place: slice, finish: Finish, rows: Shape
) -> Run:
    """Return the run of a single block."""

    def run(inputs: Inputs, outputs: Outputs) -> None:
        accumulate(load(inputs[0]))
        finish(outputs[0].reshape(-1)[place].reshape(rows))

    return run


def _bind_epilogue(
    epilogue: Epilogue, scratch: Scratch, sums: Array
) -> tuple[Finish, Shape]:
    """Return the pass over ``sums`` [pixels, channels] and the shape it works in."""
    pixels, channels = sums.shape
    rows = sums.reshape(-1, pixels_per_row(pixels, channels) * channels)
    return epilogue.bind(scratch, rows), rows.shape


class TapGroup(msgspec.Struct, frozen=True):
    """The columns of a filter that meet one phase of a padded row.

    They are evenly spaced, and so are the elements they meet: the first is element
    ``start`` of phase ``phase``, the next ones are ``step`` apart.
    """

    columns: slice
    count: int
    phase: int
    start: int
    step: int


def tap_groups(window: Window) -> list[TapGroup]:
    """Group the taps of a filter along a row by the phase of the stride they meet."""
    period = window.stride // math.gcd(window.stride, window.dilation)
    groups = []
    for first in range(min(period, window.filter)):
        start, phase = divmod(first * window.dilation, window.stride)
        count = len(range(first, window.filter, period))
        step = period * window.dilation // window.stride
        groups.append(TapGroup(slice(first, None, period), count, phase, start, step))
    return groups


class PaddedImage:
    """A buffer [N, rows, phases, columns, channels] with an image in its middle.

    Column ``x`` of a padded row is element ``x // phases`` of phase ``x % phases``.
    The channels are the image's, ``shape`` [N, H, W, C], each ``repeats`` times.
    """

    def __init__(
        self,
        scratch: Scratch,
        shape: Shape,
        windows: Window2D,
        dtype: DTypeLike,
        zero: int,
        phases: int = 1,
        repeats: int = 1,
    ) -> None:
        rows = _padded_length(windows.height)
        columns = -(-_padded_length(windows.width) // phases)
        images, *_, channels = shape
        cells = (images, rows, phases, columns, channels, repeats)
        self._cells = scratch.persistent(cells, dtype, zero)
        self._buffer = self._cells.reshape(images, rows, phases, columns, -1)
        self._windows = windows

    def loader(self) -> Load:
        """Return what copies an image [N, H, W, C] or [N, C, H, W] into the buffer."""
        nchw, buffer = self._windows.nchw, self._buffer
        moves = self._moves()

        def load(image: Array) -> Array:
            if nchw:
                image = image.transpose(NCHW_TO_NHWC)
            for target, rows, columns in moves:
                np.copyto(target, image[:, rows, columns, :, np.newaxis])
            return buffer

        return load

    def _moves(self) -> list[tuple[Array, slice, slice]]:
        height, width = self._windows.height, self._windows.width
        _, rows, phases, columns, _, _ = self._cells.shape
        last_row = min(height.before + height.input, rows)
        source_rows = slice(0, last_row - height.before)
        moves = []
        for start in range(min(phases, width.input)):
            first, phase = divmod(width.before + start, phases)
            count = min(len(range(start, width.input, phases)), columns - first)
            if count > 0:
                source_columns = slice(start, start + count * phases, phases)
                target = self._cells[
                    :, height.before : last_row, phase, first : first + count
                ]
                moves.append((target, source_rows, source_columns))
        return moves

    def patches(self) -> Array:
        """Return the view [N, out H, out W, filter H, filter W, C] of one phase."""
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self._buffer.strides
        sizes = (height.output, width.output, height.filter, width.filter)
        strides = (
            row * height.stride,
            column * width.stride,
            row * height.dilation,
            column * width.dilation,
        )
        images, *_, channels = self._buffer.shape
        return as_strided(
            self._buffer, (images, *sizes, channels), (image, *strides, channel)
        )

    def tap_rows(self, taps: TapGroup) -> Array:
        """Return the view [filter H, taps, N, out H, out W * C] of a group's phase.

        The phases are the phases of the width's stride.
        """
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self._buffer.strides
        images, *_, channels = self._buffer.shape
        return as_strided(
            self._buffer[:, :, taps.phase, taps.start :],
            (height.filter, taps.count, images, height.output, width.output * channels),
            (
                row * height.dilation,
                column * taps.step,
                image,
                row * height.stride,
                channel,
            ),
        )


def _padded_length(window: Window) -> int:
    return (window.output - 1) * window.stride + window.extent
