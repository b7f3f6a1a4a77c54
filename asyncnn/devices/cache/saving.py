"""Writes a prepared model to its cache files."""

import secrets

from msgspec.structs import replace

from asyncnn.cooperative import Steps
from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import CacheFiles, replace_together
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.placing import Layout, with_placed_constants
from asyncnn.devices.cache.records import (
    COMPILATION_BYTES,
    FOLDED,
    OFFSETS,
    SHAPES,
    STEPS,
    CacheRecord,
    SlicedPlan,
    StepEntry,
    StoredArray,
    sealed,
)
from asyncnn.engine import PlanRecord
from asyncnn.engine.program import subgraph_of
from asyncnn.hal.slices import sliced
from asyncnn.hal.types import Subgraph


def saving(compiled: Compiled, files: CacheFiles, key: CacheKey) -> Steps[None]:
    """Write both files, or neither: what cannot be completed is emptied.

    The data are on the disk before the model cache, without which they are nothing.

    :raises AsyncnnError: if the model is not saved.
    """
    layout = Layout(secrets.token_bytes(COMPILATION_BYTES))
    slices: list[bytes] = []
    record = yield from _recording(compiled, layout, slices)
    content = sealed(record, slices, files.token, key)
    yield
    replace_together(
        (files.model, files.data), ([(0, memoryview(content))], layout.chunks)
    )


def _recording(
    compiled: Compiled, layout: Layout, slices: list[bytes]
) -> Steps[CacheRecord]:
    """Return the record; its slices are added to ``slices``."""
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
    )


def _cutting(
    subgraph: Subgraph, plan: PlanRecord, layout: Layout, slices: list[bytes]
) -> Steps[SlicedPlan]:
    folded: list[tuple[int, StoredArray]] = []
    for index, value in plan.folded.items():
        folded.append((index, layout.store_value(subgraph.operands[index], value)))
        yield
    steps: list[StepEntry] = []
    for step in plan.steps:
        packed = {
            name: tuple(layout.store(each, is_numbers=True) for each in arrays)
            for name, arrays in step.packed.items()
        }
        steps.append(StepEntry(step.position, step.is_prepared, packed))
        yield
    return SlicedPlan(
        SHAPES.cut(plan.shapes, slices),
        FOLDED.cut(folded, slices),
        STEPS.cut(steps, slices),
        OFFSETS.cut(tuple(plan.arena.offsets.items()), slices),
        plan.arena.size_bytes,
    )
