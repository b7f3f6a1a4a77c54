"""Writes a prepared model to its cache files, and decides what lies in which.

The data cache is not checked when a model is loaded. So it gets nothing whose value
decides what runs, or where in memory: no scalars and no integers that kernels count or
index with, but tensors of numbers to compute with, and what kernels packed of such.
"""

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.devices.cache_files import CacheFiles, asking, replace_together
from asyncnn.devices.cache_format import (
    COMPILATION_BYTES,
    DATA_MAGIC,
    FOLDED,
    OFFSETS,
    SHAPES,
    STEPS,
    CacheKey,
    CacheRecord,
    Compiled,
    ModelRecord,
    SlicedPlan,
    StoredArray,
    sealed,
)
from asyncnn.engine import PlanRecord
from asyncnn.engine.arena import align
from asyncnn.engine.delegation import version_of
from asyncnn.engine.plan import CONSTANT_LIFETIMES
from asyncnn.engine.program import subgraph_of
from asyncnn.engine.records import StepRecord
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.slices import sliced
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps

_WORTH_MAPPING_BYTES = 2**8
"""Less is not worth a place of its own."""
_NUMBERS = QUANT8_TYPES | {
    hal.OperandType.TENSOR_FLOAT32,
    hal.OperandType.TENSOR_FLOAT16,
    hal.OperandType.TENSOR_QUANT8_SYMM,
    hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
}


def saving(compiled: Compiled, files: CacheFiles, key: CacheKey) -> Steps[None]:
    """Write both files, or neither: what cannot be completed is emptied.

    The data are on the disk before the model cache, without which they are nothing.

    :raises AsyncnnError: if the model is not saved.
    """
    layout = DataLayout(compiled.program.identity or new_identity())
    slices: list[bytes] = []
    record = yield from _recording(compiled, layout, slices)
    yield from writing(record, slices, layout, files, key)


def writing(
    record: ModelRecord,
    slices: Sequence[bytes],
    layout: "DataLayout",
    files: CacheFiles,
    key: CacheKey,
) -> Steps[None]:
    """Write a record with its slices, and what lies in the data cache; see `saving`.

    :raises AsyncnnError: if they are not written.
    """
    yield from key.obtaining()
    content = sealed(record, slices, files.token, key)
    yield
    both = files.model, files.data
    contents = [(0, memoryview(content))], layout.chunks
    yield from asking(both, replace_together, both, contents)


def new_identity() -> bytes:
    """Return what no other compilation has."""
    return os.urandom(COMPILATION_BYTES)


def _recording(
    compiled: Compiled, layout: "DataLayout", slices: list[bytes]
) -> Steps[CacheRecord]:
    program = compiled.program
    model = with_placed_constants(program.source, layout)
    yield
    plans: dict[int, SlicedPlan] = {}
    of_plans: list[bytes] = []
    for number, plan in program.records().items():
        subgraph = subgraph_of(model, number)
        plans[number] = yield from _cutting(subgraph, plan, layout, of_plans)
    # Last, as the plans add to the operand values.
    head, of_model = sliced(replace(model, operand_values=bytes(layout.values)))
    slices += [*of_model, *of_plans]
    return CacheRecord(
        bytes(layout.chunks[0][1])[-COMPILATION_BYTES:],
        layout.data_bytes,
        compiled.preference,
        compiled.priority,
        head,
        sum(map(len, of_model)),
        plans,
        program.extensions.versions(model),
        version_of(program.delegate, model),
    )


def _cutting(
    subgraph: hal.Subgraph, plan: PlanRecord, layout: "DataLayout", slices: list[bytes]
) -> Steps[SlicedPlan]:
    folded: list[tuple[int, StoredArray]] = []
    for index, value in plan.folded.items():
        is_numbers = subgraph.operands[index].type in _NUMBERS
        folded.append((index, layout.store(value, is_numbers=is_numbers)))
        yield
    steps: list[StepRecord[StoredArray]] = []
    for step in plan.steps:
        steps.append(step.repacked(partial(layout.store, is_numbers=True)))
        yield
    return SlicedPlan(
        SHAPES.cut(plan.shapes, slices),
        FOLDED.cut(folded, slices),
        STEPS.cut(steps, slices),
        OFFSETS.cut(tuple(plan.arena.offsets.items()), slices),
        plan.arena.size_bytes,
    )


class DataLayout:
    """Where the bytes of arrays lie: in the data cache or among the operand values.

    `chunks` are the data cache's, in order, by their offsets.
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
        """Add bytes; return whether they are in the data cache, and their offset there.

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


def with_placed_constants(model: hal.Model, layout: DataLayout) -> hal.Model:
    """Return a model without pools; constants lie where ``layout`` has placed them.

    The data cache stands for pool 0, its values for the operand values.
    """
    pools = [view(memory) for memory in model.pools]
    copied = hal.OperandLifeTime.CONSTANT_COPY
    referenced = hal.OperandLifeTime.CONSTANT_REFERENCE

    def place(operand: hal.Operand) -> hal.Operand:
        if operand.lifetime not in CONSTANT_LIFETIMES:
            return operand
        at = operand.location
        content = memoryview(model.operand_values)
        if operand.lifetime == referenced:
            content = pools[at.pool_index]
        content = content[at.offset : at.offset + at.length]
        is_data, offset = layout.place(content, is_numbers=operand.type in _NUMBERS)
        return replace(
            operand,
            lifetime=referenced if is_data else copied,
            location=hal.DataLocation(offset=offset, length=at.length),
        )

    def place_all(subgraph: hal.Subgraph) -> hal.Subgraph:
        return replace(subgraph, operands=tuple(map(place, subgraph.operands)))

    return replace(
        model,
        main=place_all(model.main),
        referenced=tuple(map(place_all, model.referenced)),
        pools=(),
    )
