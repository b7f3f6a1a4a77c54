"""Kernels that work along axes: reduce, rank, normalise, softmax."""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.axiswise import (
    normalization,
    ranking,
    reduction,
    softmax,
)
from asyncnn.kernels.kernel import Prepare

KERNELS: dict[OperationType, Prepare] = {
    **normalization.KERNELS,
    **ranking.KERNELS,
    **reduction.KERNELS,
    **softmax.KERNELS,
}
