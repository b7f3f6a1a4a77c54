"""FULLY_CONNECTED as a matrix product.

Source: 1.3/types.hal (FULLY_CONNECTED).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.kernels.linear.lowering import lower
from asyncnn.kernels.linear.matrix import rows_kernel
from asyncnn.kernels.numerics.rounding import RealRounding


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute ``activation(data @ weights.T + bias)``, ``data`` as [batch, inputs].

    Quantised results are the float64 product of the exact sum and the real multiplier,
    rounded once, half away from zero.
    """
    matrix = operation.value(1).T
    lowered = lower(operation, matrix, operation.activation(3), RealRounding)
    batch = math.prod(operation.shape(0)) // len(matrix)
    return rows_kernel(lowered, batch, operation.input(0).dtype)


KERNELS: dict[OperationType, Prepare] = {OperationType.FULLY_CONNECTED: _prepare}
