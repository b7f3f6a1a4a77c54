"""DEPTHWISE_CONV_2D row by row: a whole output row per tap of the filter.

With channels last, the inputs that one tap meets in an output row are contiguous once
the padded row is split into the phases of the stride. So a tap is one long
multiply-add, with the tap's weights repeated along the row.

Source: 1.3/types.hal (DEPTHWISE_CONV_2D).
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.operations.shapes import image_shape
from asyncnn.hal.operations.windows import Window2D, depthwise_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.blocks import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    Source,
    blockwise,
    transposing_output,
)
from asyncnn.kernels.convolution import convolve
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.lowering import lower
from asyncnn.kernels.patches import PaddedImage, taps_by_phase

_SUMS_AT_MOST = 2**16


def _prepare(operation: BoundOperation) -> PreparedKernel:
    windows = depthwise_window(operation)
    filter_ = operation.value(1)[0]
    shape = image_shape(operation, windows.nchw)
    if shape[3] == 1:
        return convolve(operation, filter_.reshape(-1, filter_.shape[2]), windows)
    lowered = lower(operation, filter_, windows.activation)
    channels = filter_.shape[2]
    columns = windows.width.output
    out_shape = (shape[0], windows.height.output, columns, channels)
    source = _tap_rows(lowered.weights, shape, windows, lowered.padding)
    kernel = blockwise(source, lowered, out_shape, _SUMS_AT_MOST // channels)
    return (
        transposing_output(kernel, out_shape, operation.outputs[0].dtype)
        if windows.nchw
        else kernel
    )


def _tap_rows(weights: Array, shape: Shape, windows: Window2D, padding: int) -> Source:
    """Return the source that sums the products of each tap with whole rows.

    ``weights`` are [filter H, filter W, channels * depth multiplier], ``shape``
    [N, H, W, channels] is that of the image.
    """
    groups = taps_by_phase(windows.width)
    row_weights = [
        np.tile(weights[:, taps.columns], (1, 1, windows.width.output))
        for taps in groups
    ]

    def bind(scratch: Scratch, largest: int) -> tuple[Load, AccumulateInto]:
        image = PaddedImage(
            scratch,
            shape,
            windows,
            weights.dtype,
            padding,
            phases=windows.width.stride,
            repeats=weights.shape[2] // shape[3],
        )
        rows = [
            image.rows(taps, part.shape[1])
            for taps, part in zip(groups, row_weights, strict=True)
        ]
        products = scratch.transient((largest, weights.shape[2]), weights.dtype)

        def accumulate_into(block: Block, sums: Array) -> Accumulate:
            target = sums.reshape(*block.shape[:2], -1)
            product = products[: block.pixels].reshape(target.shape)
            terms = [
                (view[:, :, block.images, block.rows], part)
                for view, part in zip(rows, row_weights, strict=True)
            ]

            def accumulate(_: Array) -> None:
                np.einsum("yxnrc,yxc->nrc", *terms[0], out=target)
                for term in terms[1:]:
                    np.einsum("yxnrc,yxc->nrc", *term, out=product)
                    np.add(target, product, out=target)

            return accumulate

        return image.loader(), accumulate_into

    return bind


KERNELS: dict[OperationType, Prepare] = {OperationType.DEPTHWISE_CONV_2D: _prepare}
