"""Runs a convolution-like kernel block by block, so that a block stays in the cache.

A block is a range of output rows of one image, or several whole images. For each, a
`Source` computes the sums and the epilogue stores them.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.shapes import NHWC_TO_NCHW
from asyncnn.kernels.epilogue import Finish, pixels_per_row
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, Run, Scratch
from asyncnn.kernels.lowering import Lowered


class Block(msgspec.Struct, frozen=True):
    """Some rows of some images: pixels ``[start, stop)`` of the output."""

    images: slice
    rows: slice
    shape: tuple[int, int, int]
    start: int

    @property
    def pixels(self) -> int:
        """Number of output pixels, ``shape`` being images, rows and columns."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Index of the first pixel behind the block."""
        return self.start + self.pixels


Load: TypeAlias = Callable[[Array], Array]
"""Takes the input once per run; what it returns goes to each `Accumulate`."""

Accumulate: TypeAlias = Callable[[Array], None]
"""Computes the sums of one block."""

AccumulateInto: TypeAlias = Callable[[Block, Array], Accumulate]
"""Returns the `Accumulate` of a block that fills a buffer [pixels, channels]."""

Source: TypeAlias = Callable[[Scratch, int], tuple[Load, AccumulateInto]]
"""Allocates what the sums need; no block has more than so many pixels."""


def split(shape: Shape, pixels_at_most: int) -> Iterator[Block]:
    """Cut output images [N, H, W, C] into blocks of so many pixels, or one row."""
    images, rows, columns, _ = shape
    rows_at_most = max(1, pixels_at_most // columns)
    images_at_a_time = max(1, rows_at_most // rows)
    parts = -(-rows // rows_at_most)
    for some_images in _ranges(images, images_at_a_time):
        for some_rows in _ranges(rows, -(-rows // parts)):
            yield Block(
                slice(some_images.start, some_images.stop),
                slice(some_rows.start, some_rows.stop),
                (len(some_images), len(some_rows), columns),
                (some_images.start * rows + some_rows.start) * columns,
            )


def _ranges(length: int, step: int) -> Iterator[range]:
    for start in range(0, length, step):
        yield range(start, min(start + step, length))


def blockwise(
    source: Source,
    lowered: Lowered,
    shape: Shape,
    pixels_at_most: int,
) -> PreparedKernel:
    """Return the kernel that computes output images ``shape`` [N, H, W, C]."""
    blocks = tuple(split(shape, pixels_at_most)) if math.prod(shape) else ()
    return lambda scratch: _run_blocks(scratch, source, lowered, blocks, shape[3])


def _run_blocks(
    scratch: Scratch,
    source: Source,
    lowered: Lowered,
    blocks: tuple[Block, ...],
    channels: int,
) -> Run:
    largest = max((block.pixels for block in blocks), default=0)
    load, accumulate_into = source(scratch, largest)
    sums = scratch.transient((largest, channels), lowered.weights.dtype)
    finishes: dict[int, tuple[Finish, Shape]] = {}
    steps = []
    for block in blocks:
        part = sums[: block.pixels]
        if block.pixels not in finishes:
            per_row = pixels_per_row(block.pixels, channels)
            rows = part.reshape(-1, per_row * channels)
            finishes[block.pixels] = lowered.epilogue.bind(scratch, rows), rows.shape
        place = slice(block.start * channels, block.stop * channels)
        steps.append((accumulate_into(block, part), place, *finishes[block.pixels]))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        loaded = load(inputs[0])
        flat = outputs[0].reshape(-1)
        for accumulate, place, finish, in_rows in steps:
            accumulate(loaded)
            finish(flat[place].reshape(in_rows))

    return run


def transposing_output(
    kernel: PreparedKernel, shape: Shape, dtype: np.dtype[Any]
) -> PreparedKernel:
    """Return ``kernel`` of output ``shape`` [N, H, W, C] such that it stores NCHW."""

    def instantiate(scratch: Scratch) -> Run:
        run = kernel(scratch)
        image = scratch.transient(shape, dtype)
        transposed = image.transpose(NHWC_TO_NCHW)

        def run_transposed(inputs: Inputs, outputs: Outputs) -> None:
            run(inputs, (image,))
            np.copyto(outputs[0], transposed)

        return run_transposed

    return instantiate
