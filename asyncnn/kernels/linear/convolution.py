"""CONV_2D as one matrix product per block of output pixels.

Source: 1.3/types.hal (CONV_2D).
"""

import math

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.shapes import image_shape
from asyncnn.hal.operations.windows import Window, Window2D, convolution_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.kernels.linear.blocks import image_kernel
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.matrix import (
    patch_matrix,
    pixels_of_product,
    rows_kernel,
    sampled_matrix,
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
    shape = image_shape(operation, nchw)
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


KERNELS: dict[OperationType, Prepare] = {OperationType.CONV_2D: _prepare}
