"""Kernels that make images of another size: pooling and resizing, axis by axis."""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.image import (
    pooling,
    resize,
)
from asyncnn.kernels.kernel import Prepare

KERNELS: dict[OperationType, Prepare] = {
    **pooling.KERNELS,
    **resize.KERNELS,
}
