"""Compilation caching: which calls save a model, and how a device loads one.

Each model has two files. The *model cache* holds everything that decides what runs:
graph, plans, small constants. It is sealed with a key of the driver, and a file that
was changed by a byte is not loaded. The *data cache* holds nothing but numbers that
operations compute with: large weights, and what kernels packed of them. It is copied or
mapped and not checked, as the HAL allows: if it is damaged, results are wrong and
nothing else.

Loading validates and plans nothing. Whoever loads what another client has loaded, and
still uses, shares its program: weights, and what an engine has compiled. So does who
prepares a region of equal bytes that nobody can change. Plans are decoded when they are
first needed, over bytes of the data cache, which are not even read before where they
are mapped.
`cache_files` opens, copies and locks the files, `cache_format` has their bytes,
`cache_saving` writes them. The folder that applications keep them in is
`asyncnn.runtime.model_cache`.

Source: HAL 1.2/IDevice.hal (getNumberOfCacheFilesNeeded, prepareModelFromCache).
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache as cached
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices.cache_files import (
    MOST_BYTES,
    CacheFiles,
    asking,
    check_digest,
    opened_empty,
    opened_for_loading,
    opened_for_saving,
    read,
    read_at_once,
    read_or_map,
)
from asyncnn.devices.cache_format import (
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
    unsealed,
)
from asyncnn.devices.cache_saving import new_identity, saving
from asyncnn.devices.support import fitting
from asyncnn.engine import PlanRecord, Program
from asyncnn.engine.arena import ArenaLayout
from asyncnn.engine.delegation import Delegate, version_of
from asyncnn.engine.program import is_large
from asyncnn.extensions import NO_EXTENSIONS, Extensions
from asyncnn.extensions.regions import region_extension_of
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import CacheArguments
from asyncnn.hal.slices import Slices, joined
from asyncnn.hal.types import ExecutionPreference, Model, Priority
from asyncnn.interpreter_hooks import building_large
from asyncnn.memory.pages import are_equal, is_final
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

_LARGE_BYTES = 2**17
"""Bytes of a model cache with many operations."""

R = TypeVar("R", bound=ModelRecord)

Prepare = Callable[[], Steps[Compiled]]
"""Prepares a model, in steps that raise an `AsyncnnError` if they cannot."""


class ModelCaches:
    """Makes steps of the calls that prepare, load and save models.

    ``key_file`` is where the key lies, see `CacheKey`. With ``may_map``, files of
    this user are mapped. Models that need more than ``most_bytes`` are refused,
    see `check_memory`. ``delegate`` computes what it claims of each model.
    """

    def __init__(
        self,
        key_file: str,
        *,
        may_map: bool,
        most_bytes: int | None = None,
        extensions: Extensions = NO_EXTENSIONS,
        delegate: Delegate | None = None,
    ) -> None:
        self.key = CacheKey(key_file)
        self._may_map = may_map
        self._most_bytes = most_bytes
        self._extensions = extensions
        self._delegate = delegate
        # By their compilation, and by the data file that they were loaded from, if any.
        self._shared: WeakValueDictionary[tuple[bytes, tuple[int, ...]], Program]
        self._shared = WeakValueDictionary()

    def preparation(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        cache: CacheArguments,
    ) -> Prepare:
        """Return what prepares a validated model, and saves it if that is possible."""
        try:
            files = opened_for_saving(cache)
        except AsyncnnError as error:
            logger.warning("a model is not cached: %s", error)
            files = None
        return partial(self._prepare, model, preference, priority, files)

    def loading(self, cache: CacheArguments) -> Prepare:
        """Return what prepares a model from its cache.

        :raises InvalidArgumentError: if the files are not what `asyncnn` needs.
        :raises GeneralFailureError: if one cannot be read, or the model cache is not as
            this driver wrote it.
        """
        files = opened_for_loading(cache)
        known = unsealed_at_once(CacheRecord, files, self.key)
        return partial(self._load, files, known)

    def saving(self, compiled: Compiled, cache: CacheArguments) -> Steps[None]:
        """Save a model that was prepared before, in steps.

        :raises InvalidArgumentError: if the files are not what `asyncnn` needs.
        :raises GeneralFailureError: if it is not saved.
        """
        yield from saving(compiled, opened_empty(cache), self.key)

    def _prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        files: CacheFiles | None,
    ) -> Steps[Compiled]:
        with building_large() if is_large(model) else nullcontext():
            yield from fitting(model, self._most_bytes)
            identity = b"" if files is None else new_identity()
            program = Program(
                *(model, None, self._extensions, self._delegate, identity),
                makes_way=priority is Priority.LOW,
                is_built=False,
            )
            if files is None and _is_final_region(program.source):
                program = yield from self._sharing(program)
            else:
                yield from program.building(self._most_bytes)
            compiled = Compiled(program, preference, priority)
            if files is not None:
                try:
                    yield from saving(compiled, files, self.key)
                except AsyncnnError as error:
                    logger.warning("a model is not cached: %s", error)
            return compiled

    def _sharing(self, program: Program) -> Steps[Program]:
        """Build a program of a region, or return an equal one that is in use."""
        for reference in self._shared.valuerefs():
            known = reference()
            if known is not None and (yield from _are_equal(known, program)):
                return known
        yield from program.building(self._most_bytes)
        self._shared[new_identity(), ()] = program
        return program

    def _load(
        self, files: CacheFiles, unsealed: tuple[CacheRecord, memoryview] | None
    ) -> Steps[Compiled]:
        """Load the model that was saved with the token of ``files``, in steps.

        Its weights are copied, or mapped if that is safe, see `read_or_map`. A program
        that was loaded from the same files, and is still used, is not loaded again.

        :raises GeneralFailureError: if the files are not as this driver wrote them.
        """
        if unsealed is None:
            unsealed = yield from unsealing(CacheRecord, files, self.key)
        record, slices = unsealed
        # The very file: with but the sealed half of a pair, nobody gets the weights.
        known = record.compilation, files.data_file
        shared = self._shared.get(known)
        if shared is not None:
            return Compiled(shared, record.preference, record.priority)
        model, slices = yield from reading(record, slices, files, may_map=self._may_map)
        data = view(model.pools[0])
        if self._extensions.versions(model) != record.extensions:
            raise GeneralFailureError("the model cache is for other extensions")
        if version_of(self._delegate, model) != record.engine:
            raise GeneralFailureError("the model cache is for another engine")
        values = memoryview(model.operand_values)
        plans: dict[int, Callable[[], PlanRecord]] = {}
        at = 0
        for number, plan in record.plans.items():
            end = at + plan.size_bytes
            part = bytes(slices[at:end])
            plans[number] = partial(_restored, plan, part, data, values)
            at = end
        yield
        program = yield from Program(
            *(model, plans, self._extensions, self._delegate, record.compilation),
            makes_way=record.priority is Priority.LOW,
            is_built=False,
        ).building(self._most_bytes)
        # Others may have loaded it meanwhile.
        program = self._shared.setdefault(known, program)
        return Compiled(program, record.preference, record.priority)


def unsealed_at_once(
    kind: type[R], files: CacheFiles, key: CacheKey
) -> tuple[R, memoryview] | None:
    """Return the same as `unsealing`, None if that may take long.

    Without the key, which is read then, changes are still seen but for forged ones.

    :raises GeneralFailureError: if the files are not as this driver wrote them.
    """
    content = read_at_once(files.model.fd)
    if content is None:
        return None
    if not key.is_known:
        check_digest(content, files.token)
        return None
    with _building(content):
        return unsealed(kind, content, files.token, key)


def unsealing(
    kind: type[R], files: CacheFiles, key: CacheKey
) -> Steps[tuple[R, memoryview]]:
    """Return the record of a model cache, and its slices.

    :raises GeneralFailureError: if the files are not as this driver wrote them.
    """
    content = yield from asking([files.model], read, files.model)
    yield from key.obtaining()
    yield
    with _building(content):
        return unsealed(kind, content, files.token, key)


def reading(
    record: ModelRecord, slices: memoryview, files: CacheFiles, *, may_map: bool
) -> Steps[tuple[Model, memoryview]]:
    """Return the model of a record, and the slices that are not its own.

    :raises GeneralFailureError: if the files are not as this driver wrote them.
    """
    yield
    own, rest = slices[: record.model_bytes], slices[record.model_bytes :]
    try:
        with _building(slices):
            model = joined(record.model, own, max_item_bytes=MOST_BYTES)
    except (msgspec.MsgspecError, InvalidArgumentError) as error:
        raise GeneralFailureError(f"the model cache: {error}") from error
    yield
    header = DATA_MAGIC + record.compilation
    mapping = partial(read_or_map, files.data, record.data_bytes, header)
    pool = yield from asking([files.data], mapping, may_map=may_map)
    return replace(model, pools=(pool,)), rest


def _is_final_region(model: Model) -> bool:
    """Return whether a model is a region that nobody can change any more."""
    return bool(region_extension_of(model)) and all(
        is_final(np.frombuffer(view(memory), np.uint8)) for memory in model.pools
    )


def _are_equal(one: Program, other: Program) -> Steps[bool]:
    """Return whether programs are of one model in all its bytes, and used alike."""
    models = one.source, other.source
    first, second = (replace(model, pools=()) for model in models)
    if one.makes_way is not other.makes_way or first != second:
        return False
    for pools in zip(*(model.pools for model in models), strict=True):
        yield
        if not are_equal(*(np.frombuffer(view(memory), np.uint8) for memory in pools)):
            return False
    return True


def _building(content: memoryview) -> AbstractContextManager[None]:
    return building_large() if len(content) > _LARGE_BYTES else nullcontext()


def _restored(
    plan: SlicedPlan, slices: bytes, data: memoryview, values: memoryview
) -> PlanRecord:
    """Decode a plan; make arrays over the bytes, which they keep alive."""

    def array(stored: StoredArray) -> Array:
        source = data if stored.is_data else values
        return np.ndarray(stored.shape, _dtype(stored.dtype), source, stored.offset)

    rest = Slices(memoryview(slices), max_item_bytes=MOST_BYTES)
    shapes = SHAPES.join(plan.shapes, rest)
    folded = {index: array(each) for index, each in FOLDED.join(plan.folded, rest)}
    steps = [s.repacked(array) for p in STEPS.parts(plan.steps, rest) for s in p]
    offsets = dict(OFFSETS.join(plan.offsets, rest))
    arena = ArenaLayout(offsets, plan.arena_bytes)
    return PlanRecord(shapes, folded, tuple(steps), arena)


@cached
def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)
