"""Measures preparing and loading models, and how much memory a loaded one takes."""

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
from asyncnn.engine.plan import CONSTANT_LIFETIMES
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority
from asyncnn.runtime.container import load
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.arrays import random_inputs
from asyncnn.tools.bench.cache.report import (
    ANEW,
    ANEW_RUN,
    LOADED,
    LOADED_RUN,
    SAVED,
    CacheReport,
    CachesReport,
)
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.placement import ONE_CPU, placement
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Figure, measure, timed_await

_TOKEN = bytes(32)
_MEASURED, _WARMING = "measured", "warming"
_STATISTICS = "/proc/self/smaps_rollup"

Caches: TypeAlias = tuple[Sequence[Handle], Sequence[Handle]]
Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]


def bench_cache(
    paths: Sequence[Path],
    *,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = lambda paths: paths,
) -> CachesReport:
    """Measure every model file with one CPU."""
    with placement(ONE_CPU) as where, TemporaryDirectory("-asyncnn-bench") as folder:
        files = _CacheFolder(Path(folder))
        largest = _largest_of_each_folder(paths)
        reports = [
            _bench_model(path, files, rounds, path in largest)
            for path in progress(paths)
        ]
    return CachesReport(describe_environment(), where, rounds, tuple(reports))


def _largest_of_each_folder(paths: Sequence[Path]) -> set[Path]:
    by_size = sorted(paths, key=lambda path: path.stat().st_size)
    return set({path.parent: path for path in by_size}.values())


class _CacheFolder(msgspec.Struct, frozen=True):
    """Where the files of the model that is measured lie, and the driver's key."""

    path: Path

    @property
    def settings(self) -> DeviceSettings:
        return replace(OWN_PROCESS, cache_key_file=str(self.path / "key"))

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
) -> CacheReport:
    named = load(path)
    figures = anyio.run(_measure, named, folder, rounds)
    # A process that has prepared nothing itself, spawned so as to share nothing.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        growth = pool.submit(_growth_bytes, folder).result()
    return CacheReport(
        path.stem,
        figures,
        {name: figure.us for name, figure in figures.items()},
        figures[LOADED].ratio_to(figures[ANEW]),
        _weights_bytes(named.model),
        growth,
        is_largest,
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


def _growth_bytes(folder: _CacheFolder) -> int:
    """Load a model and return by how much that has made this process grow."""
    return anyio.run(_measure_growth, folder)


async def _measure_growth(folder: _CacheFolder) -> int:
    with folder.opened(_MEASURED) as caches, folder.opened(_WARMING) as others:
        async with ReferenceDevice(folder.settings) as device:
            # What its first load takes, such as the code of libraries, others share.
            first = await _load(device, others)
            before = _resident_bytes()
            second = await _load(device, caches)
            growth = _resident_bytes() - before
            del first, second
            return growth


def _resident_bytes() -> int:
    with open(_STATISTICS, encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


def _weights_bytes(model: Model) -> int:
    return sum(
        operand.location.length
        for graph in (model.main, *model.referenced)
        for operand in graph.operands
        if operand.lifetime in CONSTANT_LIFETIMES
    )
