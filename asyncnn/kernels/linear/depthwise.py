"""DEPTHWISE_CONV_2D tap by tap over whole rows.

With channels last, what one tap meets in an output row is contiguous once the padded
row is split into the phases of the stride. So a tap is one long multiply-add, its
weights repeated along the row. An image of one channel is an ordinary convolution.

Source: 1.3/types.hal (DEPTHWISE_CONV_2D).
"""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.operations.windows import Window2D, convolution_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.linear.convolution import convolve
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.patches import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    PaddedImage,
    Source,
    image_kernel,
    tap_groups,
)

_ELEMENTS_AT_MOST = 2**16


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Sum ``data * filter`` [1, H, W, out] over the window, add the bias.

    Output channel ``c`` reads input channel ``c // depth multiplier``.
    """
    windows = convolution_window(operation, "depth_multiplier")
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
    """Return the weights of each group of taps, repeated along an output row."""
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
    of them. ``shape`` [N, H, W, in] is that of the image, ``zero`` the value around it.
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


KERNELS: dict[OperationType, Prepare] = {OperationType.DEPTHWISE_CONV_2D: _prepare}
