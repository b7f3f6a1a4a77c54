"""Decides where the constants of a model under construction lie."""

import mmap

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import DataLocation, Memory, OperandLifeTime
from asyncnn.memory.pools import from_buffer, view

MAX_COPIED_BYTES = 128
"""Largest constant that is copied into the model, as in the NNAPI."""

ALIGNMENT = 64
"""Alignment in bytes of constants in the model's own pool."""

_VALUE_ALIGNMENT = 4


class ConstantStore:
    """Places constants in the operand values or in pools.

    A small constant goes into the operand values. A large one that views a pool given
    to `add_pool` is referred to in place; others are gathered in one pool of the
    model's own, or become a pool each.
    """

    def __init__(self) -> None:
        self._values = bytearray()
        self._pools: list[Memory | None] = []
        self._known: list[tuple[int, Memory]] = []
        self._gathered: list[tuple[int, Array]] = []
        self._gathered_pool = -1
        self._gathered_bytes = 0

    def add_pool(self, memory: Memory) -> None:
        """Let constants refer to ``memory``; it joins the model once one does.

        :raises GeneralFailureError: if the pool cannot be mapped.
        """
        self._known.append((_address(np.frombuffer(view(memory), np.uint8)), memory))

    def place(
        self, array: Array, *, copy: bool
    ) -> tuple[OperandLifeTime, DataLocation]:
        """Return the lifetime and location of ``array``, which is contiguous."""
        if array.nbytes <= MAX_COPIED_BYTES:
            return OperandLifeTime.CONSTANT_COPY, self._copy(array)
        return OperandLifeTime.CONSTANT_REFERENCE, self._refer(array, copy=copy)

    def values(self) -> bytes:
        """Return the operand values."""
        return bytes(self._values)

    def pools(self) -> tuple[Memory, ...]:
        """Return the pools that locations refer to."""
        return tuple(
            self._gather() if memory is None else memory for memory in self._pools
        )

    def _copy(self, array: Array) -> DataLocation:
        self._values.extend(bytes(-len(self._values) % _VALUE_ALIGNMENT))
        location = DataLocation(0, len(self._values), array.nbytes)
        self._values.extend(array.tobytes())
        return location

    def _refer(self, array: Array, *, copy: bool) -> DataLocation:
        address = _address(array)
        for start, memory in self._known:
            if start <= address and address + array.nbytes <= start + memory.size:
                pool = self._index_of(memory)
                return DataLocation(pool, address - start, array.nbytes)
        if copy:
            return self._add_to_gathered(array)
        return DataLocation(self._index_of(from_buffer(array)), 0, array.nbytes)

    def _index_of(self, memory: Memory) -> int:
        if memory not in self._pools:
            self._pools.append(memory)
        return self._pools.index(memory)

    def _add_to_gathered(self, array: Array) -> DataLocation:
        if self._gathered_pool < 0:
            self._gathered_pool = len(self._pools)
            self._pools.append(None)
        offset = self._gathered_bytes + -self._gathered_bytes % ALIGNMENT
        self._gathered.append((offset, array.copy()))
        self._gathered_bytes = offset + array.nbytes
        return DataLocation(self._gathered_pool, offset, array.nbytes)

    def _gather(self) -> Memory:
        pages = mmap.mmap(-1, self._gathered_bytes)
        pool = np.frombuffer(pages, np.uint8)
        for offset, array in self._gathered:
            pool[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return from_buffer(memoryview(pages).toreadonly())


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
