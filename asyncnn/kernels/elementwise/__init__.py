"""Kernels that make each element of the output of one element of every input.

8-bit codes go through tables wherever they can; `quantized_arithmetic` makes those of
two codes. `ufuncs` are the kernels that are a NumPy function and nothing else.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.elementwise import (
    activation,
    arithmetic,
    comparison,
    quantization,
    unary,
)
from asyncnn.kernels.kernel import Prepare

KERNELS: dict[OperationType, Prepare] = {
    **activation.KERNELS,
    **arithmetic.KERNELS,
    **comparison.KERNELS,
    **quantization.KERNELS,
    **unary.KERNELS,
}
