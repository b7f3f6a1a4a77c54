"""Sums that are one matrix product per block: [pixels, taps] @ [taps, channels]."""

import math
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC
from asyncnn.hal.operations.windows import Window2D
from asyncnn.kernels.blocks import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    Source,
    blockwise,
)
from asyncnn.kernels.kernel import PreparedKernel, Scratch
from asyncnn.kernels.lowering import Lowered
from asyncnn.kernels.patches import PaddedImage

_SUMS_AT_MOST = 2**16
_TAPS_AT_MOST = 2**16
_PIXELS_WORTH_A_PRODUCT = 256

_SHORT_RUN = 16
"""Patches whose contiguous runs are this short are copied tap by tap instead."""


def matrix_kernel(source: Source, lowered: Lowered, shape: Shape) -> PreparedKernel:
    """Return the kernel that fills ``shape`` [N, H, W, C] with products by block."""
    taps, channels = lowered.weights.shape
    fitting = min(_SUMS_AT_MOST // channels, _TAPS_AT_MOST // taps)
    return blockwise(source, lowered, shape, max(fitting, _PIXELS_WORTH_A_PRODUCT))


def rows_kernel(lowered: Lowered, rows: int, dtype: np.dtype[Any]) -> PreparedKernel:
    """Return the kernel that multiplies [rows, taps] of ``dtype`` by the weights."""
    weights = lowered.weights
    taps, channels = weights.shape
    if dtype == weights.dtype:
        source = _input_matrix(weights)
    else:
        source = sampled_matrix(weights, (1, rows, 1, taps))
    return matrix_kernel(source, lowered, (1, rows, 1, channels))


def _input_matrix(weights: Array) -> Source:
    taps = len(weights)

    def load(data: Array) -> Array:
        return data.reshape(-1, taps)

    def accumulate_into(block: Block, sums: Array) -> Accumulate:
        rows = slice(block.start, block.stop)

        def accumulate(matrix: Array) -> None:
            np.matmul(matrix[rows], weights, out=sums)

        return accumulate

    return lambda scratch, largest: (load, accumulate_into)


def sampled_matrix(
    weights: Array, shape: Shape, stride: tuple[int, int] = (1, 1), nchw: bool = False
) -> Source:
    """Return the source that takes every ``stride``-th pixel of ``shape`` [N, H, W, C].

    Pixels are cast to the dtype of the weights.
    """
    down, across = stride

    def load(data: Array) -> Array:
        image = data.transpose(NCHW_TO_NHWC) if nchw else data.reshape(shape)
        return image[:, ::down, ::across]

    def bind(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        buffer = scratch.transient((largest, len(weights)), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            matrix = buffer[: block.pixels]
            pixels = matrix.reshape(*block.shape, len(weights))

            def accumulate(image: Array) -> None:
                np.copyto(pixels, image[block.images, block.rows])
                np.matmul(matrix, weights, out=sums)

            return accumulate

        return load, accumulate_into

    return bind


def patch_matrix(
    weights: Array, shape: Shape, windows: Window2D, padding: int
) -> Source:
    """Return the source that gathers the patch under the filter for each pixel.

    ``shape`` [N, H, W, C] is that of the image, ``padding`` the value around it.
    """
    run = shape[3] * (windows.width.filter if windows.width.dilation == 1 else 1)

    def bind(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        image = PaddedImage(scratch, shape, windows, weights.dtype, padding)
        patches = image.patches()
        buffer = scratch.transient((largest * len(weights),), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            source = patches[block.images, block.rows]
            matrix, target = _patch_buffer(buffer, source.shape, run <= _SHORT_RUN)

            def accumulate(_: Array) -> None:
                np.copyto(target, source)
                np.matmul(matrix, weights, out=sums)

            return accumulate

        return image.loader(), accumulate_into

    return bind


def _patch_buffer(buffer: Array, shape: Shape, by_tap: bool) -> tuple[Array, Array]:
    """Return a matrix [pixels, taps] in the buffer, and it in the shape of patches."""
    pixels, taps = shape[:3], shape[3:]
    flat = buffer[: math.prod(shape)]
    if by_tap:
        in_order = flat.reshape(taps + pixels)
        return flat.reshape(math.prod(taps), -1).T, in_order.transpose(3, 4, 5, 0, 1, 2)
    return flat.reshape(-1, math.prod(taps)), flat.reshape(shape)
