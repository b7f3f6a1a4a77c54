"""Decides what may lie in the data cache, and lays it out there.

Nobody checks the data cache. So nothing goes there whose value decides what runs, or
where in memory: no scalars, no integers that kernels count or index with, but tensors
of numbers to compute with, and what kernels packed of such.
"""

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.cache.records import DATA_MAGIC, StoredArray
from asyncnn.engine.arena import align
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

_WORTH_MAPPING_BYTES = 2**8
"""Less is not worth a place of its own."""
_NUMBERS = QUANT8_TYPES | {
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
}


class Layout:
    """Where the bytes of arrays lie: in the data cache or among the operand values.

    `chunks` are those of the data cache, in order, by their offsets.
    """

    def __init__(self, compilation: bytes) -> None:
        self.chunks = [(0, memoryview(DATA_MAGIC + compilation))]
        self.values = bytearray()

    @property
    def data_bytes(self) -> int:
        """Length of the data cache so far."""
        offset, chunk = self.chunks[-1]
        return offset + len(chunk)

    def place(self, content: memoryview, *, is_numbers: bool) -> tuple[bool, int]:
        """Add bytes; tell whether they are in the data cache, and their offset there.

        That is where ``is_numbers`` lets them be, if they are many enough.
        """
        if is_numbers and len(content) >= _WORTH_MAPPING_BYTES:
            offset = align(self.data_bytes)
            self.chunks.append((offset, content))
            return True, offset
        self.values.extend(bytes(align(len(self.values)) - len(self.values)))
        offset = len(self.values)
        self.values.extend(content)
        return False, offset

    def store(self, array: Array, *, is_numbers: bool) -> StoredArray:
        """Add an array."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        place = self.place(content, is_numbers=is_numbers)
        return StoredArray(array.dtype.str, array.shape, *place)

    def store_value(self, operand: Operand, value: Array) -> StoredArray:
        """Add the value of an operand."""
        return self.store(value, is_numbers=operand.type in _NUMBERS)


def with_placed_constants(model: Model, layout: Layout) -> Model:
    """Return a model without pools; constants lie where ``layout`` has placed them.

    Its data cache takes the place of pool 0, its values that of the operand values.

    :raises AsyncnnError: if a pool cannot be mapped.
    """
    pools = [view(memory) for memory in model.pools]

    def place(operand: Operand) -> Operand:
        if operand.lifetime not in CONSTANT_LIFETIMES:
            return operand
        at = operand.location
        content = memoryview(model.operand_values)
        if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            content = pools[at.pool_index]
        content = content[at.offset : at.offset + at.length]
        is_data, offset = layout.place(content, is_numbers=operand.type in _NUMBERS)
        return replace(
            operand,
            lifetime=(
                OperandLifeTime.CONSTANT_REFERENCE
                if is_data
                else OperandLifeTime.CONSTANT_COPY
            ),
            location=DataLocation(offset=offset, length=at.length),
        )

    def place_all(subgraph: Subgraph) -> Subgraph:
        return replace(subgraph, operands=tuple(map(place, subgraph.operands)))

    return replace(
        model,
        main=place_all(model.main),
        referenced=tuple(map(place_all, model.referenced)),
        pools=(),
    )
