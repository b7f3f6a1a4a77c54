"""Kernels that find rows by index or key, and that tell rows apart by their hashes."""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.embedding import (
    lookup,
    lsh_projection,
)
from asyncnn.kernels.kernel import Prepare

KERNELS: dict[OperationType, Prepare] = {
    **lookup.KERNELS,
    **lsh_projection.KERNELS,
}
