"""CONV_2D as one matrix product per block of output pixels.

Source: 1.3/types.hal (CONV_2D).
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.shapes import image_shape
from asyncnn.hal.operations.windows import Window, Window2D, convolution_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.blocks import transposing_output
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.kernels.lowering import lower
from asyncnn.kernels.matrix import (
    matrix_kernel,
    patch_matrix,
    rows_kernel,
    sampled_matrix,
)


def _prepare(operation: BoundOperation) -> PreparedKernel:
    filter_ = operation.value(1)
    matrix = filter_.reshape(len(filter_), -1).T
    return convolve(operation, matrix, convolution_window(operation))


def convolve(
    operation: BoundOperation, matrix: Array, windows: Window2D
) -> PreparedKernel:
    """Return the kernel of a convolution with a filter [taps, output channels].

    The taps are in the order height, width, input channel.
    """
    lowered = lower(operation, np.ascontiguousarray(matrix), windows.activation)
    weights, nchw = lowered.weights, windows.nchw
    height, width = windows.height, windows.width
    shape = image_shape(operation, nchw)
    out_shape = (shape[0], height.output, width.output, weights.shape[1])
    if _samples(height) and _samples(width):
        if height.stride == width.stride == 1 and not nchw:
            rows = shape[0] * height.output * width.output
            return rows_kernel(lowered, rows, operation.input(0).dtype)
        stride = height.stride, width.stride
        source = sampled_matrix(weights, shape, stride, nchw)
    else:
        source = patch_matrix(weights, shape, windows, lowered.padding)
    kernel = matrix_kernel(source, lowered, out_shape)
    return (
        transposing_output(kernel, out_shape, operation.outputs[0].dtype)
        if nchw
        else kernel
    )


def _samples(window: Window) -> bool:
    """Tell whether the filter picks single elements of the input."""
    return window.filter == 1 and window.before == window.after == 0


KERNELS: dict[OperationType, Prepare] = {OperationType.CONV_2D: _prepare}
