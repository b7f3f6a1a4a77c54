"""Kernels that draw random numbers, all from the streams of `philox`."""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.sampling import multinomial

KERNELS: dict[OperationType, Prepare] = {
    **multinomial.KERNELS,
}
