"""GROUPED_CONV_2D as one matrix product per group and block of output pixels.

Source: 1.3/types.hal (GROUPED_CONV_2D).
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.operations.shapes import image_shape
from asyncnn.hal.operations.windows import Window2D, grouped_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.linear.blocks import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    Source,
    image_kernel,
)
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.matrix import pixels_of_product
from asyncnn.kernels.linear.patches import PaddedImage


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Convolve each group of input channels with its group of filters, add the bias.

    The filter is [out, H, W, in / groups]; groups are consecutive channels.
    """
    windows = grouped_window(operation)
    filter_ = operation.value(1)
    matrix = filter_.reshape(len(filter_), -1).T
    lowered = lower(operation, matrix, windows.activation)
    shape = image_shape(operation, windows.nchw)
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


KERNELS: dict[OperationType, Prepare] = {OperationType.GROUPED_CONV_2D: _prepare}
