"""Arrays in pools that travel: another process works on them where they are.

What ties an array to its pool is the array's ``base``, so that a view of the array has
a pool too, and the pool goes with the last of them.
"""

import math

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn.hal.types import Memory
from asyncnn.memory.pools import as_array
from asyncnn.memory.shared import allocate
from asyncnn.memory.slabs import allocate_in_slab

_Array = NDArray[np.generic]


class _Owner:
    """Holds a pool for the arrays over it."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: Memory, array: _Array) -> None:
        self.memory = memory
        self.__array_interface__ = array.__array_interface__


def shared_array(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.float32,
    *,
    isolated: bool = False,
) -> _Array:
    """Return a new array of zeros in memory that is shared with driver processes.

    As an input or output of a run, the array, or a contiguous view of it, is used where
    it is instead of being copied. In all else it is an ordinary array.

    Arrays of up to 64 KiB share slabs of memory. A driver of this user or of root that
    is given one of them could see, and change, others of the slab. A driver of another
    user gets copies of such arrays; it works on an ``isolated`` array where it is.

    :param isolated: lay the array in memory of its own, whatever its size.
    :raises InvalidArgumentError: if there is no such array, or it would hold objects.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    # An empty pool could not be written to, not even nothing.
    size = max(1, math.prod(dimensions) * np.dtype(dtype).itemsize)
    memory = allocate(size) if isolated else allocate_in_slab(size)
    return array_in(memory, dtype, dimensions)


def array_in(memory: Memory, dtype: DTypeLike, shape: tuple[int, ...]) -> _Array:
    """Return a shared array at the beginning of a pool that can travel.

    :raises InvalidArgumentError: if there is no such array, or it would hold objects.
    """
    return np.asarray(_Owner(memory, as_array(memory, dtype, shape)))


def isolated_array(shape: tuple[int, ...], dtype: DTypeLike) -> _Array:
    """Return a new `shared_array` in memory of its own.

    :raises AsyncnnError: as `shared_array`.
    """
    return shared_array(shape, dtype, isolated=True)


def place_of(array: _Array) -> tuple[Memory, int] | None:
    """Return the pool that an array of `shared_array` lies in, and its offset there.

    None for any other array.
    """
    base: object = array.base
    if isinstance(base, _Owner):
        return base.memory, 0
    owner: object = base.base if isinstance(base, np.ndarray) else None
    if not isinstance(owner, _Owner):
        return None
    start, _ = owner.__array_interface__["data"]
    return owner.memory, array.__array_interface__["data"][0] - start
