"""TRANSPOSE_CONV_2D: every input pixel adds its scaled filter to the output.

All products are one matrix product, [pixels, in] @ [in, taps * out]. Then each tap adds
its share to a strided view of the output.

Source: 1.3/types.hal (TRANSPOSE_CONV_2D).
"""

import numpy as np

from asyncnn.hal.operations.bound import NCHW_TO_NHWC, Array, BoundOperation, Shape
from asyncnn.hal.operations.windows import Window, Window2D, transpose_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel, Scratch
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.matrix import pixels_of_product
from asyncnn.kernels.linear.patches import (
    Accumulate,
    AccumulateInto,
    Block,
    Load,
    Source,
    image_kernel,
)


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Add ``data * filter`` [out, H, W, in] where it lands, then the bias.

    What lands in the padding is dropped.
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

    ``weights`` are [in, filter H, filter W, out], ``shape`` [N, H, W, in] is that of
    the data, from which ``zero`` is subtracted.
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


KERNELS: dict[OperationType, Prepare] = {OperationType.TRANSPOSE_CONV_2D: _prepare}
