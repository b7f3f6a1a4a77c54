"""Convolutions: plain and grouped, depthwise, and transposed.

CONV_2D and GROUPED_CONV_2D are one matrix product per group and block of pixels,
[pixels, taps] @ [taps, channels], and so is FULLY_CONNECTED: `rows_kernel`. In
DEPTHWISE_CONV_2D taps go over whole rows, in TRANSPOSE_CONV_2D every input pixel adds
its scaled filter to the output.

Input [batch, height, width, in] (or channels first), filter [out, height, width, in],
of a group ``in`` its share; float16, float32 or 8-bit codes, filters per channel too.

Source: 1.3/types.hal (CONV_2D, GROUPED_CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV_2D).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operations.bound import NCHW_TO_NHWC, Array, BoundOperation, Shape
from asyncnn.hal.operations.sliding_windows import (
    Window,
    Window2D,
    convolution_window,
    transpose_window,
)
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.linear.lowering import Lowered, lower
from asyncnn.kernels.linear.patches import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    PaddedImage,
    Source,
    image_kernel,
    nhwc_kernel,
    tap_groups,
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

    ``shape`` [N, H, W, C] is the image's, ``zero`` the value around it.
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

    ``weights`` are [taps, out], ``shape`` [N, H, W, in] is the image's, ``zero``
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


def _prepare_depthwise(operation: BoundOperation) -> PreparedKernel:
    """Sum ``data * filter`` [1, H, W, out] over the window, add the bias.

    Output channel ``c`` reads input channel ``c // depth multiplier``. With channels
    last, what one tap meets in an output row is contiguous once the padded row is split
    into the phases of the stride. So a tap is one long multiply-add, its weights
    repeated along the row. An image of one channel is an ordinary convolution.
    """
    windows = convolution_window(operation, "depth_multiplier")
    width = windows.width
    padded = width.before + width.input + width.after
    if width.stride > padded:  # the phases beyond would take memory for nothing
        windows = replace(windows, width=replace(width, stride=padded))
    filter_ = operation.value(1)[0]
    channels = filter_.shape[2]
    shape = operation.image_shape(windows.nchw)
    if shape[3] == 1:
        return convolve(operation, filter_.reshape(-1, channels), windows)
    lowered = lower(operation, filter_, windows.activation)
    rows = operation.pack("rows", lambda: _along_rows(lowered.weights, windows))
    source = _row_sums(lowered.weights, rows, shape, windows, lowered.zero)
    pixels_at_most = _ELEMENTS_AT_MOST // channels
    output = operation.outputs[0]
    return image_kernel(source, lowered, output, windows.nchw, pixels_at_most)


def _along_rows(weights: Array, windows: Window2D) -> tuple[Array, ...]:
    width = windows.width
    return tuple(
        np.tile(weights[:, taps.columns], (1, 1, width.output))
        for taps in tap_groups(width)
    )


def _row_sums(
    weights: Array,
    row_weights: Sequence[Array],
    shape: Shape,
    windows: Window2D,
    zero: int,
) -> Source:
    """Return the source that adds up the products of each tap with whole rows.

    ``weights`` are [filter H, filter W, out], ``row_weights`` what `_along_rows` makes
    of them. ``shape`` [N, H, W, in] is the image's, ``zero`` the value around it.
    """
    width = windows.width
    repeats = weights.shape[2] // shape[3]
    groups = tap_groups(width)

    def source(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        image = PaddedImage(
            scratch, shape, windows, weights.dtype, zero, width.stride, repeats
        )
        terms = [
            (image.tap_rows(taps), tiled)
            for taps, tiled in zip(groups, row_weights, strict=True)
        ]
        buffer = scratch.transient((largest, weights.shape[2]), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            target = sums.reshape(*block.shape[:2], -1)
            addend = buffer[: block.pixels].reshape(target.shape)
            (rows, tiled), *others = (
                (view[:, :, block.images, block.rows], tiled) for view, tiled in terms
            )

            def accumulate(_: Array) -> None:
                np.einsum("yxnrc,yxc->nrc", rows, tiled, out=target)
                for other_rows, other_tiled in others:
                    np.einsum("yxnrc,yxc->nrc", other_rows, other_tiled, out=addend)
                    np.add(target, addend, out=target)

            return accumulate

        return image.loader(), accumulate_into

    return source


def _prepare_transpose(operation: BoundOperation) -> PreparedKernel:
    """Add ``data * filter`` [out, H, W, in] where it lands, then the bias.

    What lands in the padding is dropped. All products are one matrix product, [pixels,
    in] @ [in, taps * out]. Then each tap adds its share to a strided view of the
    output.
    """
    windows = transpose_window(operation)
    filter_ = operation.value(1).transpose(3, 1, 2, 0)
    lowered = lower(operation, filter_, windows.activation, centered=True)
    shape = operation.image_shape(windows.nchw)
    source = _scattered(lowered.weights, shape, windows, lowered.zero)
    pixels_at_most = pixels_of_product(1, filter_.shape[3])
    output = operation.outputs[0]
    return image_kernel(source, lowered, output, windows.nchw, pixels_at_most)


def _scattered(weights: Array, shape: Shape, windows: Window2D, zero: int) -> Source:
    """Return the source that scatters products and then cuts the padding off.

    ``weights`` are [in, filter H, filter W, out], ``shape`` [N, H, W, in] is the
    data's, from which ``zero`` is subtracted.
    """
    height, width, nchw = windows.height, windows.width, windows.nchw
    channels = weights.shape[3]
    matrix = weights.reshape(len(weights), -1)
    canvas_shape = (shape[0], _spread(height), _spread(width), channels)

    def source(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        pixels = scratch.transient(shape, weights.dtype)
        rows = pixels.reshape(-1, len(weights))
        products = scratch.transient((len(rows), matrix.shape[1]), weights.dtype)
        by_tap = products.reshape(*shape[:3], height.filter, width.filter, channels)
        canvas = scratch.transient(canvas_shape, weights.dtype)
        places = [
            (canvas[:, _landing(height, i), _landing(width, j)], by_tap[:, :, :, i, j])
            for i in range(height.filter)
            for j in range(width.filter)
        ]
        kept = canvas[:, height.before :, width.before : width.before + width.output]

        def load(data: Array) -> Array:
            np.copyto(pixels, data.transpose(NCHW_TO_NHWC) if nchw else data)
            if zero:
                np.subtract(pixels, zero, out=pixels)
            np.matmul(rows, matrix, out=products)
            canvas.fill(0)
            for place, product in places:
                np.add(place, product, out=place)
            return kept

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            cut = kept[block.images, block.rows]
            target = sums.reshape(cut.shape)
            return lambda _: np.copyto(target, cut)

        return load, accumulate_into

    return source


def _spread(window: Window) -> int:
    """Return the length of an axis on which everything lands and the output lies."""
    landed = (window.input - 1) * window.stride + window.filter
    return max(landed, window.before + window.output)


def _landing(window: Window, tap: int) -> slice:
    last = (window.input - 1) * window.stride + tap
    return slice(tap, last + 1, window.stride)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.CONV_2D: _prepare,
    OperationType.GROUPED_CONV_2D: _prepare_grouped_convolution,
    OperationType.DEPTHWISE_CONV_2D: _prepare_depthwise,
    OperationType.TRANSPOSE_CONV_2D: _prepare_transpose,
}
