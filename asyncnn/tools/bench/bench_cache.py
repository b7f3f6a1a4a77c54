"""``asyncnn bench cache``: loading models from cache files beside preparing them anew.

Loading leaves some work to the first execution, so that the time until its outputs is
measured as well, for both. Another process, which has loaded a copy of the model, then
loads the model, to see by how much its resident memory grows beside the weights; what
is mapped and not touched is not resident.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import OWN_PROCESS, DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.environment import ONE_CPU, describe_environment, placement
from asyncnn.tools.bench.measured_models import (
    model_files,
    random_inputs,
    weights_bytes,
)
from asyncnn.tools.bench.processes import resident_kib
from asyncnn.tools.bench.report import Row, Subject, SubjectsReport, ratio_cell
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Figure, measure, timed_await

ANEW, SAVED, LOADED = "anew", "saved", "loaded"
ANEW_RUN, LOADED_RUN = "anew_run", "loaded_run"

CONTENDERS = {
    ANEW: "prepared anew",
    SAVED: "prepared anew and saved",
    LOADED: "loaded from the cache",
    ANEW_RUN: "first outputs, anew",
    LOADED_RUN: "first outputs, loaded",
}

TIME_LIMIT = 0.2
"""Goal of the time to load a model divided by the time to prepare it anew."""

MEMORY_LIMIT = 0.2
"""Goal of the growth of a process that loads a model divided by its weights."""

MATTERS_ABOVE_US = 10_000.0
"""Models that take this long to prepare have a goal of the time."""

MATTERS_ABOVE_BYTES = 1_000_000
"""Models with weights as large as this have both goals."""

_TOKEN = bytes(32)
_MEASURED, _WARMING = "measured", "warming"

Caches: TypeAlias = tuple[Sequence[Handle], Sequence[Handle]]
Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]


class CachedModel(Subject, frozen=True, kw_only=True):
    """What was measured of one model; sizes are in bytes.

    ``growth_bytes`` is that of the resident memory of another process. A model that
    ``is_largest``, as a file among those of its folder, has both goals.
    """

    model: str
    ratio: float
    weights_bytes: int
    growth_bytes: int
    is_largest: bool

    @property
    def growth(self) -> float:
        """Growth as a share of the weights."""
        return self.growth_bytes / self.weights_bytes

    @property
    def saves_time(self) -> bool | None:
        """Whether the goal of the time was met; None if there is none."""
        matters = self._is_large or self.us[ANEW] >= MATTERS_ABOVE_US
        return self.ratio <= TIME_LIMIT if matters else None

    @property
    def saves_memory(self) -> bool | None:
        """Whether the goal of the memory was met; None if there is none."""
        return self.growth < MEMORY_LIMIT if self._is_large else None

    @property
    def _is_large(self) -> bool:
        return self.is_largest or self.weights_bytes >= MATTERS_ABOVE_BYTES

    def outcomes(self) -> Iterator[bool]:
        """Yield those of the goals that it has."""
        return (met for met in (self.saves_time, self.saves_memory) if met is not None)

    def cells(self) -> Row:
        """Return ratio and growth, with their goals."""
        time_limit, memory_limit = f"<= {TIME_LIMIT:g}", f"< {MEMORY_LIMIT:.0%}"
        return (
            ratio_cell(f"{self.ratio:.3f}", time_limit, self.saves_time),
            ratio_cell(f"{self.growth:.1%}", memory_limit, self.saves_memory),
        )


class CacheReport(SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench cache --json``."""

    CONTENDERS = CONTENDERS
    OTHERS = ("loaded / anew", "growth / weights")

    models: tuple[CachedModel, ...]

    def subjects(self) -> dict[str, Subject]:
        """Return the models by name."""
        return {model.model: model for model in self.models}


def bench(
    folder: Path | None = None,
    *,
    pattern: str = "*",
    mobilenet: bool | None = None,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> CacheReport:
    """Measure the models of a folder, see `model_files`, with one CPU.

    ``progress`` iterates over their paths.
    """
    with (
        model_files(folder, pattern, mobilenet=mobilenet) as paths,
        placement(ONE_CPU) as where,
        TemporaryDirectory("-asyncnn-bench") as temporary,
    ):
        files = _CacheFolder(Path(temporary))
        largest = _largest_of_each_folder(paths)
        models = [
            _bench_model(path, files, rounds, path in largest)
            for path in progress(paths)
        ]
    return CacheReport(
        environment=describe_environment(),
        rounds=rounds,
        placement=where,
        models=tuple(models),
    )


def _largest_of_each_folder(paths: Sequence[Path]) -> set[Path]:
    by_size = sorted(paths, key=lambda path: path.stat().st_size)
    return set({path.parent: path for path in by_size}.values())


class _CacheFolder(msgspec.Struct, frozen=True):
    """Where the files of the model that is measured lie, and the driver's key."""

    path: Path

    @property
    def settings(self) -> DeviceSettings:
        # To copy the files would be most of what is measured.
        key = str(self.path / "key")
        return replace(OWN_PROCESS, cache_key_file=key, maps_cache_files=True)

    @contextmanager
    def opened(self, name: str) -> Iterator[Caches]:
        """Open the files of that name for as long as the block lasts."""
        fds = [
            os.open(self.path / f"{name}.{kind}", os.O_RDWR | os.O_CREAT, 0o600)
            for kind in ("model", "data")
        ]
        try:
            yield [Handle((fds[0],))], [Handle((fds[1],))]
        finally:
            for fd in fds:
                os.close(fd)


def _bench_model(
    path: Path, folder: _CacheFolder, rounds: int, is_largest: bool
) -> CachedModel:
    named = load(path, strict=True)
    figures = anyio.run(_measure, named, folder, rounds)
    # A process that has prepared nothing itself, spawned so as to share nothing.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        growth = pool.submit(anyio.run, _measure_growth, folder).result()
    return CachedModel(
        model=path.stem,
        figures=figures,
        ratio=figures[LOADED].ratio_to(figures[ANEW]),
        weights_bytes=weights_bytes(named.model),
        growth_bytes=growth,
        is_largest=is_largest,
    )


async def _measure(
    named: NamedModel, folder: _CacheFolder, rounds: int
) -> dict[str, Figure]:
    model = named.model
    inputs = random_inputs([(info.dimensions, info.dtype) for info in named.inputs])

    async def run(prepared: IPreparedModel) -> None:
        await PreparedModel(named, prepared, max_in_flight=1).run(inputs)

    with folder.opened(_MEASURED) as caches, folder.opened(_WARMING) as others:
        async with ReferenceDevice(folder.settings) as device:

            async def prepare_and_run() -> None:
                await run(await _prepare(device, model))

            async def load_and_run() -> None:
                await run(await _load(device, caches))

            await _prepare(device, model, others)
            await _prepare(device, model, caches)
            batches = (
                timed_await(ANEW, lambda: _prepare(device, model)),
                timed_await(SAVED, lambda: _prepare(device, model, caches)),
                timed_await(LOADED, lambda: _load(device, caches)),
                timed_await(ANEW_RUN, prepare_and_run),
                timed_await(LOADED_RUN, load_and_run),
            )
            return await measure(batches, rounds=rounds)


async def _prepare(
    device: IDevice, model: Model, caches: Caches = ((), ())
) -> IPreparedModel:
    callback = PreparedModelFuture()
    preference, priority = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
    device.prepare_model_1_3(
        model, preference, priority, None, *caches, _TOKEN, callback
    )
    return await callback


async def _load(device: IDevice, caches: Caches) -> IPreparedModel:
    callback = PreparedModelFuture()
    device.prepare_model_from_cache_1_3(None, *caches, _TOKEN, callback)
    return await callback


async def _measure_growth(folder: _CacheFolder) -> int:
    """Load a model and return by how many bytes that has made this process grow."""
    with folder.opened(_MEASURED) as caches, folder.opened(_WARMING) as others:
        async with ReferenceDevice(folder.settings) as device:
            # What its first load takes, such as the code of libraries, others share.
            first = await _load(device, others)
            before = resident_kib()
            second = await _load(device, caches)
            growth_kib = resident_kib() - before
            del first, second
            return growth_kib * 1024
