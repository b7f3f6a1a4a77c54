"""Kernels that sum products with weights: convolutions, fully connected, matrices.

``lowering`` turns stored values into floats that multiply exactly, ``patches`` lays
images out and keeps each step in the cache, ``matrix`` multiplies, and ``epilogue``
turns sums into stored values.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.linear import convolution, depthwise, matmul, transpose_convolution

KERNELS: dict[OperationType, Prepare] = {
    **convolution.KERNELS,
    **depthwise.KERNELS,
    **matmul.KERNELS,
    **transpose_convolution.KERNELS,
}
