"""Makes a prepared model of its cache files."""

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.cache.compiled import Compiled
from asyncnn.devices.cache.files import CacheFiles, read, read_or_map
from asyncnn.devices.cache.key import CacheKey
from asyncnn.devices.cache.records import (
    DATA_MAGIC,
    MOST_BYTES,
    CacheRecord,
    PlanEntry,
    StoredArray,
    unsealed,
)
from asyncnn.engine import PlanRecord, Program
from asyncnn.engine.plan import StepRecord
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
    data = read_or_map(files.data.fd, record.data_bytes, may_map=may_map)
    header = DATA_MAGIC + record.compilation
    if data[: len(header)] != header:
        raise GeneralFailureError("the data cache is that of another compilation")
    pool = Memory("ashmem", len(data), buffer=data)
    model = replace(record.model, pools=(pool,))
    if extensions.versions(model) != record.extensions:
        raise GeneralFailureError("the model cache is for other extensions")
    with np.errstate(all="ignore"):  # nobody has checked the numbers
        program = Program(model, _records(record, data), extensions)
    return Compiled(program, record.preference, record.priority)


def _records(record: CacheRecord, data: memoryview) -> dict[int, PlanRecord]:
    arrays = _Arrays(data)
    return {entry.number: arrays.restored(entry) for entry in record.plans}


class _Arrays:
    """Turns what is stored into arrays over the data, which they keep alive."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def restored(self, entry: PlanEntry) -> PlanRecord:
        array = self._array
        return PlanRecord(
            entry.shapes,
            {index: array(stored) for index, stored in entry.folded.items()},
            tuple(
                StepRecord(
                    step.position,
                    step.is_prepared,
                    {
                        name: tuple(map(array, arrays))
                        for name, arrays in step.packed.items()
                    },
                )
                for step in entry.steps
            ),
            entry.arena,
        )

    def _array(self, stored: StoredArray) -> Array:
        place = stored.place
        if isinstance(place, bytes):
            return np.ndarray(stored.shape, stored.dtype, place)
        return np.ndarray(stored.shape, stored.dtype, self._data, place)
