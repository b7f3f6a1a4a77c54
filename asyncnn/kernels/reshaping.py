"""The same elements in another shape or order, repeated, or a constant in their place.

Any dtype; nothing is computed. Images are [batch, height, width, channels], or [batch,
channels, height, width] if the operation says so. Block operations move elements
between height and width, and the batch or channels.

Source: 1.3/types.hal (RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE, CHANNEL_SHUFFLE, TILE,
FILL, RANK, DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND); AIDL
feature level 7 (REVERSE).
"""

import math
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import in_layout, merged_order, permuted
from asyncnn.hal.types import OperationType
from asyncnn.kernels.compiled import moving
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)

_ELEMENTS_WORTH_PARTS = 2**16
_ELEMENTS_IN_CACHE = 2**13
_CACHE_LINE = 16
"""Elements of four bytes in a cache line."""


def regrouped(axes: Shape, order: tuple[int, ...]) -> PreparedKernel:
    """Return the kernel that splits input 0 into ``axes`` and permutes them.

    Axis ``i`` of the split output is axis ``order[i]`` of the split input.
    """
    axes, order = merged_order(axes, order)
    result = permuted(axes, order)
    parts = _parts(axes, order)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        source = inputs[0].reshape(axes).transpose(order)
        target = outputs[0].reshape(result)
        for part in parts:
            np.copyto(target[part], source[part])

    return stateless(run)


def _parts(axes: Shape, order: tuple[int, ...]) -> list[Any]:
    """Return indexes that cut the output so that what each reads stays in cache."""
    last, size = len(axes) - 1, math.prod(axes)
    if not axes or order[-1] == last or size < _ELEMENTS_WORTH_PARTS:
        return [...]
    length = max(_CACHE_LINE, _ELEMENTS_IN_CACHE // axes[last])
    stops = range(length, axes[order[-1]] + length, length)
    return [(..., slice(stop - length, stop)) for stop in stops]


def _prepare_copy(operation: BoundOperation) -> PreparedKernel:
    """Copy all elements in their order into the output's shape."""
    shape = operation.outputs[0].require_shape()
    return moving(
        operation, [0], lambda inputs, outputs: [(outputs[0], inputs[0].reshape(shape))]
    )


def _prepare_transpose(operation: BoundOperation) -> PreparedKernel:
    """Let axis ``i`` be axis ``permutation[i]``; without one, reverse the axes."""
    shape = operation.shape(0)
    reverse = range(len(shape))[::-1]
    order = tuple(operation.integers(1) if operation.has(1) else reverse)
    return regrouped(shape, order)


def _prepare_channel_shuffle(operation: BoundOperation) -> PreparedKernel:
    """Let channel ``k * groups + g`` be channel ``g * group_size + k``."""
    shape = operation.shape(0)
    groups = operation.integer(1)
    axis = operation.axis(2, len(shape))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return regrouped((outer, groups, shape[axis] // groups, inner), (0, 2, 1, 3))


def _prepare_reverse(operation: BoundOperation) -> PreparedKernel:
    """Reverse the order of the elements along one axis."""
    (axis,) = operation.integers(1)
    backwards = (*(slice(None),) * axis, slice(None, None, -1))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[0][backwards])

    return stateless(run)


def _prepare_tile(operation: BoundOperation) -> PreparedKernel:
    """Repeat the whole tensor ``multiples[i]`` times along axis ``i``."""
    shape, multiples = operation.shape(0), operation.integers(1)
    once = tuple(length for axis in shape for length in (1, axis))
    pairs = zip(multiples, shape, strict=True)
    repeated = tuple(length for pair in pairs for length in pair)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0].reshape(repeated), inputs[0].reshape(once))

    return stateless(run)


def _prepare_fill(operation: BoundOperation) -> PreparedKernel:
    """Fill the output with the scalar in input 1."""
    return stateless(lambda inputs, outputs: np.copyto(outputs[0], inputs[1]))


def _prepare_rank(operation: BoundOperation) -> PreparedKernel:
    """Count the axes of the input."""
    rank = len(operation.shape(0))
    return stateless(lambda _, outputs: outputs[0].fill(rank))


def _prepare_depth_to_space(operation: BoundOperation) -> PreparedKernel:
    """Spread each pixel's channels over a block of pixels."""
    block, nchw = operation.integer(1), operation.boolean(2, False)
    batches, height, width, channels = operation.image_shape(nchw)
    depth = channels // (block * block)
    if nchw:
        axes = (batches, block, block, depth, height, width)
        return regrouped(axes, (0, 3, 4, 1, 5, 2))
    axes = (batches, height, width, block, block, depth)
    return regrouped(axes, (0, 1, 3, 2, 4, 5))


def _prepare_space_to_depth(operation: BoundOperation) -> PreparedKernel:
    """Collect the channels of each block of pixels in one pixel."""
    block, nchw = operation.integer(1), operation.boolean(2, False)
    batches, height, width, channels = operation.image_shape(nchw)
    rows, columns = height // block, width // block
    if nchw:
        axes = (batches, channels, rows, block, columns, block)
        return regrouped(axes, (0, 3, 5, 1, 2, 4))
    axes = (batches, rows, block, columns, block, channels)
    return regrouped(axes, (0, 1, 3, 2, 4, 5))


def _prepare_batch_to_space(operation: BoundOperation) -> PreparedKernel:
    """Interleave the pixels of ``block_height * block_width`` images in one."""
    nchw = operation.boolean(2, False)
    block = block_height, block_width = operation.integers(1)
    batches, height, width, channels = operation.image_shape(nchw)
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
    block_height, block_width = operation.integers(1)
    top, bottom, left, right = operation.integers(2)
    batches, height, width, channels = operation.image_shape(nchw)
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
    OperationType.RESHAPE: _prepare_copy,
    OperationType.SQUEEZE: _prepare_copy,
    OperationType.EXPAND_DIMS: _prepare_copy,
    OperationType.TRANSPOSE: _prepare_transpose,
    OperationType.CHANNEL_SHUFFLE: _prepare_channel_shuffle,
    OperationType.REVERSE: _prepare_reverse,
    OperationType.TILE: _prepare_tile,
    OperationType.FILL: _prepare_fill,
    OperationType.RANK: _prepare_rank,
    OperationType.DEPTH_TO_SPACE: _prepare_depth_to_space,
    OperationType.SPACE_TO_DEPTH: _prepare_space_to_depth,
    OperationType.BATCH_TO_SPACE_ND: _prepare_batch_to_space,
    OperationType.SPACE_TO_BATCH_ND: _prepare_space_to_batch,
}
