"""Decides what may lie in the data cache, and lays it out there.

Nobody checks the data cache. So nothing goes there whose value decides what runs, or
where in memory: no scalars, no integers that kernels count or index with, but large
tensors of numbers to compute with, and what kernels packed of such.
"""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.cache.records import DATA_MAGIC, StoredArray
from asyncnn.engine.constants import CONSTANT_LIFETIMES
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Subgraph,
)
from asyncnn.memory.pools import view

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector load."""

_WORTH_MAPPING_BYTES = 2**14
"""Less is read at once: the system would map what lies around it, too."""
_NUMBERS = QUANT8_TYPES | {
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
}


class DataLayout:
    """What a data cache consists of, in order: `chunks` by their offsets."""

    def __init__(self, compilation: bytes) -> None:
        header = memoryview(DATA_MAGIC + compilation)
        self.chunks: list[tuple[int, memoryview]] = [(0, header)]

    @property
    def size_bytes(self) -> int:
        """Length of the file so far."""
        offset, chunk = self.chunks[-1]
        return offset + len(chunk)

    def place(self, data: memoryview) -> int:
        """Add bytes that are not empty; return their offset."""
        offset = -(-self.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.chunks.append((offset, data))
        return offset

    def store(self, array: Array) -> StoredArray:
        """Add an array of numbers, if it is large."""
        if array.nbytes < _WORTH_MAPPING_BYTES:
            return _inline(array)
        return StoredArray(array.dtype.str, array.shape, self.place(_bytes_of(array)))

    def store_value(self, operand: Operand, array: Array) -> StoredArray:
        """Add the value of an operand, unless it has to be believed."""
        is_number = operand.type in _NUMBERS
        return self.store(array) if is_number else _inline(array)


def with_placed_constants(model: Model, layout: DataLayout) -> Model:
    """Return a model without pools; those constants that may lie in pool 0, the layout.

    :raises AsyncnnError: if a pool cannot be mapped.
    """
    return _ConstantPlacer(model, layout).placed()


class _ConstantPlacer:
    def __init__(self, model: Model, layout: DataLayout) -> None:
        self._model = model
        self._layout = layout
        self._pools = [view(memory) for memory in model.pools]
        self._values = bytearray()

    def placed(self) -> Model:
        model = self._model
        main = self._placed_in(model.main)
        referenced = tuple(self._placed_in(graph) for graph in model.referenced)
        return replace(
            model,
            main=main,
            referenced=referenced,
            operand_values=bytes(self._values),
            pools=(),
        )

    def _placed_in(self, subgraph: Subgraph) -> Subgraph:
        return replace(subgraph, operands=tuple(self._each(subgraph.operands)))

    def _each(self, operands: Iterable[Operand]) -> Iterable[Operand]:
        for operand in operands:
            if operand.lifetime in CONSTANT_LIFETIMES:
                yield self._place(operand)
            else:
                yield operand

    def _place(self, operand: Operand) -> Operand:
        at = operand.location
        if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
            data = memoryview(self._model.operand_values)
        else:
            data = self._pools[at.pool_index]
        data = data[at.offset : at.offset + at.length]
        if operand.type in _NUMBERS and len(data) >= _WORTH_MAPPING_BYTES:
            offset = self._layout.place(data)
            lifetime = OperandLifeTime.CONSTANT_REFERENCE
        else:
            self._values.extend(bytes(-len(self._values) % ALIGNMENT_BYTES))
            offset = len(self._values)
            self._values.extend(data)
            lifetime = OperandLifeTime.CONSTANT_COPY
        location = DataLocation(offset=offset, length=len(data))
        return replace(operand, lifetime=lifetime, location=location)


def _inline(array: Array) -> StoredArray:
    return StoredArray(array.dtype.str, array.shape, array.tobytes())


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
