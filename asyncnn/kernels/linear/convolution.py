"""CONV_2D and GROUPED_CONV_2D as one matrix product per group and block of pixels.

Input [batch, height, width, in] (or channels first), filter [out, height, width, in],
of a group ``in`` its share; float16, float32 or 8-bit codes, filters per channel too.

Source: 1.3/types.hal (CONV_2D, GROUPED_CONV_2D).
"""

import math

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.operations.windows import Window, Window2D, convolution_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.matrix import (
    patch_matrix,
    pixels_of_product,
    rows_kernel,
    sampled_matrix,
)
from asyncnn.kernels.linear.patches import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    PaddedImage,
    Source,
    image_kernel,
)


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Sum ``data * filter`` [out, H, W, in] over window and channels, add the bias."""
    filter_ = operation.value(1)
    matrix = filter_.reshape(len(filter_), -1).T
    return convolve(operation, matrix, convolution_window(operation))


def convolve(
    operation: BoundOperation, matrix: Array, windows: Window2D
) -> PreparedKernel:
    """Return the kernel of a convolution whose filter is ``matrix`` [taps, channels].

    The taps are in the order height, width, input channel.
    """
    lowered = lower(operation, matrix, windows.activation)
    height, width, nchw = windows.height, windows.width, windows.nchw
    weights = lowered.weights
    shape = operation.image_shape(nchw)
    if not (_picks_pixels(height) and _picks_pixels(width)):
        source = patch_matrix(weights, shape, windows, lowered.zero)
    elif nchw or height.stride > 1 or width.stride > 1:
        stride = height.stride, width.stride
        source = sampled_matrix(weights, shape, stride, nchw)
    else:
        return rows_kernel(lowered, math.prod(shape[:3]), operation.input(0).dtype)
    pixels_at_most = pixels_of_product(*weights.shape)
    return image_kernel(source, lowered, operation.outputs[0], nchw, pixels_at_most)


def _picks_pixels(window: Window) -> bool:
    return window.filter == 1 and window.before == window.after == 0


def _prepare_grouped_convolution(operation: BoundOperation) -> PreparedKernel:
    """Convolve each group of input channels with its group of filters, add the bias.

    The filter is [out, H, W, in / groups]; groups are consecutive channels.
    """
    windows = convolution_window(operation, "groups")
    filter_ = operation.value(1)
    matrix = filter_.reshape(len(filter_), -1).T
    lowered = lower(operation, matrix, windows.activation)
    shape = operation.image_shape(windows.nchw)
    source = _products_by_group(lowered.weights, shape, windows, lowered.zero)
    taps, channels = matrix.shape
    pixels_at_most = pixels_of_product(taps * windows.groups, channels)
    output = operation.outputs[0]
    return image_kernel(source, lowered, output, windows.nchw, pixels_at_most)


def _products_by_group(
    weights: Array, shape: Shape, windows: Window2D, zero: int
) -> Source:
    """Return the source that gathers patches group by group.

    ``weights`` are [taps, out], ``shape`` [N, H, W, in] is that of the image, ``zero``
    the value around it.
    """
    taps, groups = len(weights), windows.groups
    by_group = weights.reshape(taps, groups, -1).transpose(1, 0, 2).copy()

    def source(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        image = PaddedImage(scratch, shape, windows, weights.dtype, zero)
        patches = image.patches()
        grouped = patches.reshape(*patches.shape[:5], groups, -1)
        grouped = grouped.transpose(5, 0, 1, 2, 3, 4, 6)
        buffer = scratch.transient((largest * taps * groups,), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            gathered = grouped[:, block.images, block.rows]
            target = buffer[: gathered.size].reshape(gathered.shape)
            matrices = target.reshape(groups, -1, taps)
            sums_by_group = sums.reshape(len(sums), groups, -1).transpose(1, 0, 2)

            def accumulate(_: Array) -> None:
                np.copyto(target, gathered)
                np.matmul(matrices, by_group, out=sums_by_group)

            return accumulate

        return image.loader(), accumulate_into

    return source


KERNELS: dict[OperationType, Prepare] = {
    OperationType.CONV_2D: _prepare,
    OperationType.GROUPED_CONV_2D: _prepare_grouped_convolution,
}
