"""Moving blocks of elements between height and width, and the batch or channels.

Source: 1.3/types.hal (DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND,
SPACE_TO_BATCH_ND).
"""

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.shapes import image_shape, in_layout, integers
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)
from asyncnn.kernels.layout.reshaping import regrouped


def _prepare_depth_to_space(operation: BoundOperation) -> PreparedKernel:
    """Spread each pixel's channels over a block of pixels."""
    block, nchw = operation.integer(1), operation.boolean(2, False)
    batches, height, width, channels = image_shape(operation, nchw)
    depth = channels // (block * block)
    if nchw:
        axes = (batches, block, block, depth, height, width)
        return regrouped(axes, (0, 3, 4, 1, 5, 2))
    axes = (batches, height, width, block, block, depth)
    return regrouped(axes, (0, 1, 3, 2, 4, 5))


def _prepare_space_to_depth(operation: BoundOperation) -> PreparedKernel:
    """Collect the channels of each block of pixels in one pixel."""
    block, nchw = operation.integer(1), operation.boolean(2, False)
    batches, height, width, channels = image_shape(operation, nchw)
    rows, columns = height // block, width // block
    if nchw:
        axes = (batches, channels, rows, block, columns, block)
        return regrouped(axes, (0, 3, 5, 1, 2, 4))
    axes = (batches, rows, block, columns, block, channels)
    return regrouped(axes, (0, 1, 3, 2, 4, 5))


def _prepare_batch_to_space(operation: BoundOperation) -> PreparedKernel:
    """Interleave the pixels of ``block_height * block_width`` images in one."""
    nchw = operation.boolean(2, False)
    block = block_height, block_width = integers(operation, 1)
    batches, height, width, channels = image_shape(operation, nchw)
    images = batches // (block_height * block_width)
    if nchw:
        axes = (*block, images, channels, height, width)
        return regrouped(axes, (2, 3, 4, 0, 5, 1))
    axes = (*block, images, height, width, channels)
    return regrouped(axes, (2, 3, 0, 4, 1, 5))


def _prepare_space_to_batch(operation: BoundOperation) -> PreparedKernel:
    """Deal the pixels of each zero-padded image out to as many images as a block has.

    Quantised images are padded with the zero point.
    """
    nchw = operation.boolean(3, False)
    block_height, block_width = integers(operation, 1)
    top, bottom, left, right = integers(operation, 2)
    batches, height, width, channels = image_shape(operation, nchw)
    padded = (batches, top + height + bottom, left + width + right, channels)
    rows, columns = padded[1] // block_height, padded[2] // block_width
    if nchw:
        axes = (batches, channels, rows, block_height, columns, block_width)
        deal = regrouped(axes, (3, 5, 0, 1, 2, 4))
    else:
        axes = (batches, rows, block_height, columns, block_width, channels)
        deal = regrouped(axes, (2, 4, 0, 1, 3, 5))
    if padded[1:3] == (height, width):
        return deal
    operand = operation.input(0)
    interior = (slice(top, top + height), slice(left, left + width))
    place = (..., *interior) if nchw else (slice(None), *interior)

    def instantiate(scratch: Scratch) -> Run:
        canvas = scratch.persistent(
            in_layout(padded, nchw), operand.dtype, operand.zero_point
        )
        image, run_deal = canvas[place], deal(scratch)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.copyto(image, inputs[0])
            run_deal((canvas,), outputs)

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.DEPTH_TO_SPACE: _prepare_depth_to_space,
    OperationType.SPACE_TO_DEPTH: _prepare_space_to_depth,
    OperationType.BATCH_TO_SPACE_ND: _prepare_batch_to_space,
    OperationType.SPACE_TO_BATCH_ND: _prepare_space_to_batch,
}
