"""Writes a prepared model to its cache files."""

import secrets

from msgspec import Raw
from msgspec.structs import replace

from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import CacheFiles, replace_together
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.placing import Layout, with_placed_constants
from asyncnn.devices.cache.records import (
    COMPILATION_BYTES,
    CacheRecord,
    PlanEntry,
    StepEntry,
    encode,
    sealed,
)
from asyncnn.engine import PlanRecord
from asyncnn.engine.program import subgraph_of
from asyncnn.hal.types import Subgraph


def save(compiled: Compiled, files: CacheFiles, key: CacheKey) -> None:
    """Write both files, or neither: what cannot be completed is emptied.

    The data are on the disk before the model cache, without which they are nothing.

    :raises AsyncnnError: if the model is not saved.
    """
    layout = Layout(secrets.token_bytes(COMPILATION_BYTES))
    content = sealed(_record(compiled, layout), files.token, key)
    replace_together(
        (files.model, files.data), ([(0, memoryview(content))], layout.chunks)
    )


def _record(compiled: Compiled, layout: Layout) -> CacheRecord:
    program = compiled.program
    model = with_placed_constants(program.source, layout)
    plans = {
        number: Raw(encode(_entry(subgraph_of(model, number), plan, layout)))
        for number, plan in program.records().items()
    }
    compilation = bytes(layout.chunks[0][1])[-COMPILATION_BYTES:]
    return CacheRecord(
        compilation,
        layout.data_bytes,
        compiled.preference,
        compiled.priority,
        replace(model, operand_values=bytes(layout.values)),
        plans,
        program.extensions.versions(model),
    )


def _entry(subgraph: Subgraph, plan: PlanRecord, layout: Layout) -> PlanEntry:
    return PlanEntry(
        plan.shapes,
        {
            index: layout.store_value(subgraph.operands[index], value)
            for index, value in plan.folded.items()
        },
        tuple(
            StepEntry(
                step.position,
                step.is_prepared,
                {
                    name: tuple(layout.store(each, is_numbers=True) for each in arrays)
                    for name, arrays in step.packed.items()
                },
            )
            for step in plan.steps
        ),
        plan.arena,
    )
