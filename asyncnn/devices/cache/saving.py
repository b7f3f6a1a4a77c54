"""Writes a prepared model to its cache files."""

import secrets

from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import CacheFiles, replace_together
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.placing import DataLayout, with_placed_constants
from asyncnn.devices.cache.records import (
    COMPILATION_BYTES,
    CacheRecord,
    PlanEntry,
    StepEntry,
    sealed,
)
from asyncnn.engine import PlanRecord
from asyncnn.hal.types import Subgraph


def save(compiled: Compiled, files: CacheFiles, key: CacheKey) -> None:
    """Write both files, or neither: what cannot be completed is emptied.

    The data are on the disk before the model cache, without which they are nothing.

    :raises AsyncnnError: if the model is not saved.
    """
    layout = DataLayout(secrets.token_bytes(COMPILATION_BYTES))
    content = sealed(_record(compiled, layout), files.token, key)
    replace_together(
        (files.model, files.data), ([(0, memoryview(content))], layout.chunks)
    )


def _record(compiled: Compiled, layout: DataLayout) -> CacheRecord:
    program = compiled.program
    model = with_placed_constants(program.source, layout)
    plans = tuple(
        _entry(number, program.subgraph(number), plan, layout)
        for number, plan in program.records().items()
    )
    compilation = bytes(layout.chunks[0][1])[-COMPILATION_BYTES:]
    return CacheRecord(
        compilation,
        layout.size_bytes,
        compiled.preference,
        compiled.priority,
        model,
        plans,
        program.extensions.versions(model),
    )


def _entry(
    number: int, subgraph: Subgraph, plan: PlanRecord, layout: DataLayout
) -> PlanEntry:
    return PlanEntry(
        number,
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
                    name: tuple(map(layout.store, arrays))
                    for name, arrays in step.packed.items()
                },
            )
            for step in plan.steps
        ),
        plan.arena,
    )
