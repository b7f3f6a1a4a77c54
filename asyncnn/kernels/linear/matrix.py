"""Sums that are one matrix product per block: [pixels, taps] @ [taps, channels]."""

import math
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import NCHW_TO_NHWC, Array, Shape
from asyncnn.hal.operations.windows import Window2D
from asyncnn.kernels.kernel import PreparedKernel, Scratch
from asyncnn.kernels.linear.lowering import Lowered
from asyncnn.kernels.linear.patches import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    PaddedImage,
    Source,
    nhwc_kernel,
)

_ELEMENTS_AT_MOST = 2**16
_PIXELS_WORTH_A_PRODUCT = 256

_SHORT_RUN = 16
"""Contiguous runs of patches up to this length are copied tap by tap instead."""


def pixels_of_product(taps: int, channels: int) -> int:
    """Return how many pixels a block may have: few enough for the cache."""
    return max(_ELEMENTS_AT_MOST // max(taps, channels), _PIXELS_WORTH_A_PRODUCT)


def rows_kernel(lowered: Lowered, rows: int, dtype: np.dtype[Any]) -> PreparedKernel:
    """Return the kernel that multiplies data [rows, taps] of ``dtype``."""
    taps, channels = lowered.weights.shape
    source = (
        _data_matrix(lowered.weights)
        if dtype == lowered.weights.dtype
        else sampled_matrix(lowered.weights, (1, rows, 1, taps))
    )
    pixels_at_most = pixels_of_product(taps, channels)
    return nhwc_kernel(source, lowered, (1, rows, 1, channels), pixels_at_most)


def _data_matrix(weights: Array) -> Source:
    """Return the source whose matrix is the data themselves."""
    taps = len(weights)

    def load(data: Array) -> Array:
        return data.reshape(-1, taps)

    def accumulate_into(block: Block, sums: Array) -> Accumulate:
        rows = slice(block.start, block.stop)

        def accumulate(data: Array) -> None:
            data[rows].dot(weights, sums)

        return accumulate

    return lambda scratch, largest: (load, accumulate_into)


def sampled_matrix(
    weights: Array, shape: Shape, stride: tuple[int, int] = (1, 1), nchw: bool = False
) -> Source:
    """Return the source that casts every ``stride``-th pixel of ``shape`` [N, H, W, C].

    The stride is (down, across).
    """
    down, across = stride
    taps = len(weights)

    def load(data: Array) -> Array:
        image = data.transpose(NCHW_TO_NHWC) if nchw else data.reshape(shape)
        return image[:, ::down, ::across]

    def source(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        buffer = scratch.transient((largest, taps), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            matrix = buffer[: block.pixels]
            pixels = matrix.reshape(*block.shape, taps)

            def accumulate(image: Array) -> None:
                np.copyto(pixels, image[block.images, block.rows])
                matrix.dot(weights, sums)

            return accumulate

        return load, accumulate_into

    return source


def patch_matrix(weights: Array, shape: Shape, windows: Window2D, zero: int) -> Source:
    """Return the source that gathers what lies under the filter for each pixel.

    ``shape`` [N, H, W, C] is that of the image, ``zero`` the value around it.
    """
    run = shape[3] * (windows.width.filter if windows.width.dilation == 1 else 1)
    by_tap = run <= _SHORT_RUN

    def source(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        image = PaddedImage(scratch, shape, windows, weights.dtype, zero)
        patches = image.patches()
        buffer = scratch.transient((largest * len(weights),), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            gathered = patches[block.images, block.rows]
            matrix, target = _matrix_of_patches(buffer, gathered.shape, by_tap)

            def accumulate(_: Array) -> None:
                np.copyto(target, gathered)
                matrix.dot(weights, sums)

            return accumulate

        return image.loader(), accumulate_into

    return source


def _matrix_of_patches(
    buffer: Array, shape: Shape, by_tap: bool
) -> tuple[Array, Array]:
    """Return a matrix [pixels, taps] in ``buffer``, and it in the shape of patches."""
    pixels, taps = shape[:3], shape[3:]
    flat = buffer[: math.prod(shape)]
    if not by_tap:
        return flat.reshape(-1, math.prod(taps)), flat.reshape(shape)
    transposed = flat.reshape(taps + pixels)
    return flat.reshape(math.prod(taps), -1).T, transposed.transpose(3, 4, 5, 0, 1, 2)
