"""Kernels that move elements and compute nothing: reshape, join, cut, pad, deal."""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.layout import (
    joining,
    padding,
    reshaping,
    slicing,
    spatial,
)

KERNELS: dict[OperationType, Prepare] = {
    **joining.KERNELS,
    **padding.KERNELS,
    **reshaping.KERNELS,
    **slicing.KERNELS,
    **spatial.KERNELS,
}
