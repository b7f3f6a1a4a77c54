"""Makes a prepared model of its cache files."""

from functools import cache, partial
from typing import Any

import numpy as np
from msgspec import Raw
from msgspec.structs import replace

from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import CacheFiles, read, read_or_map
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.records import (
    DATA_MAGIC,
    MOST_BYTES,
    StoredArray,
    decode_plan,
    unsealed,
)
from asyncnn.engine import PlanRecord, Program
from asyncnn.engine.records import StepRecord
from asyncnn.errors import GeneralFailureError
from asyncnn.extensions import Extensions
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory


def load(
    files: CacheFiles, key: CacheKey, extensions: Extensions, *, may_map: bool
) -> Compiled:
    """Return the model that was saved with this token; its weights may be mapped.

    ``may_map`` promises that nobody truncates files of this user. See `read_or_map`.

    :raises GeneralFailureError: if the files are not as this driver wrote them.
    """
    record = unsealed(read(files.model.fd, MOST_BYTES), files.token, key)
    header = DATA_MAGIC + record.compilation
    data = read_or_map(files.data.fd, record.data_bytes, header, may_map=may_map)
    pool = Memory("ashmem", len(data), buffer=data)
    model = replace(record.model, pools=(pool,))
    if extensions.versions(model) != record.extensions:
        raise GeneralFailureError("the model cache is for other extensions")
    plans = {
        number: partial(_restored, plan.copy(), data, memoryview(model.operand_values))
        for number, plan in record.plans.items()
    }
    program = Program(model, plans, extensions)
    return Compiled(program, record.preference, record.priority)


def _restored(plan: Raw, data: memoryview, values: memoryview) -> PlanRecord:
    """Decode a plan; make arrays over the bytes, which they keep alive."""

    def array(stored: StoredArray) -> Array:
        source = data if stored.is_data else values
        return np.ndarray(stored.shape, _dtype(stored.dtype), source, stored.offset)

    entry = decode_plan(plan)
    folded = {index: array(each) for index, each in entry.folded.items()}
    steps = tuple(
        StepRecord(
            step.position,
            step.is_prepared,
            {
                name: tuple([array(each) for each in arrays])
                for name, arrays in step.packed.items()
            },
        )
        for step in entry.steps
    )
    return PlanRecord(entry.shapes, folded, steps, entry.arena)


@cache
def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)
