"""What files of models take: ``asyncnn bench`` ``loading``, ``cache`` and ``sessions``.

``loading`` begins with a file and ends with a model that runs. LiteRT's interpreter
reads the file and allocates its tensors, which packs weights for optimised kernels.

``cache`` loads models from cache files beside preparing them anew. Loading leaves some
work to the first execution, so that the time until its outputs is measured as well.
Another process, which has loaded a copy of the model, then loads the model, to see by
how much its resident memory grows; what is mapped and not touched is not resident.

``sessions`` has a step of a session beside a plain run of the same model, on the
asynchronous path and by burst. The memory of many sessions is what a process of their
own has private more than before, beside as many LiteRT interpreters. Either has
run another model before, so that the code of libraries does not count; what sessions
share, such as weights, does.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import anyio
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import OWN_PROCESS, ReferenceDevice
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionPreference, Handle, Model, Priority
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench import processes, report
from asyncnn.tools.bench.benches import Started
from asyncnn.tools.bench.environment import ONE_CPU, PeerMissingError
from asyncnn.tools.bench.measured_models import (
    LITERT,
    LITERT_REF,
    inputs_of,
    model_files,
    weights_bytes,
)
from asyncnn.tools.bench.rounds import Batches, Figures, Order, measure, timed
from asyncnn.tools.other_runtimes import LiteRt, litert_version

MATTERS_ABOVE_BYTES = 1_000_000
"""Files, or weights, as large as this have every goal."""

REFERENCE, ACCELERATED = "reference", "accelerated"

LOADING_GOALS = [
    report.Goal(name, LITERT, 1.5, 15.0) for name in (REFERENCE, ACCELERATED)
]
"""Of the time to load and prepare; a gate is for any machine, however many use it."""

PACKAGES = ("basic_pitch", "pymicro_wakeword", "pyopen_wakeword")
"""Packages whose files are measured if they are installed; none is imported."""


class LoadedModel(report.Subject, frozen=True, kw_only=True):
    """What was measured of one file of ``size`` bytes."""

    size: int

    def cells(self) -> report.Row:
        """Return the size, and the ratios of both devices, with their goals."""
        return (f"{self.size / 1e6:.2f}", *map(self._cell, (REFERENCE, ACCELERATED)))

    def _cell(self, figure: str) -> report.Cell:
        if self.verdicts or not {figure, LITERT} <= self.figures.keys():
            return report.verdict_cell(self.verdicts, figure, LITERT)
        return f"{self.figures[figure].ratio_to(self.figures[LITERT]):.3f}"


class LoadingReport(report.SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench loading --json``."""

    CONTENDERS: ClassVar[Mapping[str, str]] = {
        "loaded": "load",
        REFERENCE: "load and prepare, reference",
        ACCELERATED: "load and prepare, accelerated",
        LITERT: "LiteRT",
        LITERT_REF: "LiteRT, reference kernels",
    }
    OTHERS = ("MB", "reference / LiteRT", "accelerated / LiteRT")

    models: dict[str, LoadedModel]


def loading(order: Order) -> LoadingReport:
    """Measure files, see `model_files`, and packages' own, with one CPU.

    With a folder, packages are left out.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version()}
    with model_files(order) as paths:
        more = packaged(order.pattern) if order.folder is None else []

        def measured() -> dict[str, Any]:
            found = order.progress([*paths, *more])
            run, measure = anyio.run, _measure_loading
            return {"models": {name_of(p): run(measure, p, order) for p in found}}

        return LoadingReport.measured(ONE_CPU, order.rounds, measured, peers)


def packaged(pattern: str = "*") -> list[Path]:
    """Return the TFLite files of those `PACKAGES` that are installed."""
    folders = [
        Path(place)
        for package in PACKAGES
        if (spec := find_spec(package)) is not None
        for place in spec.submodule_search_locations or ()
    ]
    files = [path for folder in folders for path in sorted(folder.rglob("*.tflite"))]
    return [path for path in files if path.match(f"{pattern}.tflite")]


def name_of(path: Path) -> str:
    """Return the name of a file; packages may have files of one name."""
    package = next((part for part in path.parts if part in PACKAGES), None)
    return path.stem if package is None else f"{package}/{path.stem}"


async def _measure_loading(path: Path, order: Order) -> LoadedModel:
    refusals: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        calls: dict[str, Callable[[], Any]] = {
            "loaded": partial(load, path),
            LITERT: partial(LiteRt, path),
            LITERT_REF: partial(LiteRt, path, reference=True),
        }
        for name in (REFERENCE, ACCELERATED):
            with report.noted(refusals, name):
                opened = open_device(name, settings=OWN_PROCESS)
                device = await stack.enter_async_context(opened)
                calls[name] = partial(lambda d: d.prepare(load(path)), device)
        started: Started = {}
        for name, call in calls.items():
            with report.noted(refusals, name):
                started[name] = Batches(await timed(name, call))
        figures = await measure(started, rounds=order.rounds)
    size = path.stat().st_size  # noqa: ASYNC240 - nothing else runs
    goals = LOADING_GOALS if size >= MATTERS_ABOVE_BYTES else []
    verdicts = report.judge(goals, figures, gates=order.gates)
    return LoadedModel(figures=figures, size=size, verdicts=verdicts, refusals=refusals)


TIME_LIMIT = 0.2
"""Goal of the time to load a model divided by the time to prepare it anew."""

GROWTH_LIMIT = 0.2
"""Goal of the growth of a process that loads a model divided by its weights."""

MATTERS_ABOVE_US = 10_000.0
"""Models that take this long to prepare have a goal of the time."""

_TOKEN = bytes(32)
_MEASURED, _WARMING = "measured", "warming"

Caches: TypeAlias = tuple[Sequence[Handle], Sequence[Handle]]


class CachedModel(report.Subject, frozen=True, kw_only=True):
    """What was measured of one model; sizes are in bytes.

    ``growth_bytes`` is of the resident memory of another process. A model that
    ``is_largest``, as a file in its folder, has both goals.
    """

    model: str
    ratio: float
    weights_bytes: int
    growth_bytes: int
    is_largest: bool

    def cells(self) -> report.Row:
        """Return ratio and growth, as a share of the weights, with their goals."""
        growth = self.growth_bytes / self.weights_bytes
        is_large = self.is_largest or self.weights_bytes >= MATTERS_ABOVE_BYTES
        is_slow = is_large or self.us["anew"] >= MATTERS_ABOVE_US
        saves_time = self.ratio <= TIME_LIMIT if is_slow else None
        saves_memory = growth < GROWTH_LIMIT if is_large else None
        return (
            report.ratio_cell(f"{self.ratio:.3f}", f"<= {TIME_LIMIT:g}", saves_time),
            report.ratio_cell(f"{growth:.1%}", f"< {GROWTH_LIMIT:.0%}", saves_memory),
        )


class CacheReport(report.SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench cache --json``."""

    CONTENDERS: ClassVar[Mapping[str, str]] = {
        "anew": "prepared anew",
        "saved": "prepared anew and saved",
        "loaded": "loaded from the cache",
        "anew_run": "first outputs, anew",
        "loaded_run": "first outputs, loaded",
    }
    OTHERS = ("loaded / anew", "growth / weights")

    models: tuple[CachedModel, ...]


def cache(order: Order) -> CacheReport:
    """Measure models, see `model_files`, with one CPU."""
    with model_files(order) as paths, processes.temporary_folder() as files:
        by_size = sorted(paths, key=lambda path: path.stat().st_size)
        largest = {path.parent: path for path in by_size}.values()

        def cached(path: Path) -> CachedModel:
            named = load(path, strict=True)
            figures = anyio.run(_measure_cache, named, files, order.rounds)
            return CachedModel(
                model=path.stem,
                figures=figures,
                ratio=figures["loaded"].ratio_to(figures["anew"]),
                weights_bytes=weights_bytes(named.model),
                growth_bytes=processes.told(grow_by_loading, files) * 1024,
                is_largest=path in largest,
            )

        def measured() -> dict[str, Any]:
            return {"models": tuple(map(cached, order.progress(paths)))}

        return CacheReport.measured(ONE_CPU, order.rounds, measured)


@asynccontextmanager
async def _caching(files: Path) -> AsyncIterator[tuple[IDevice, Caches, Caches]]:
    """Have a device, and cache files of the model that is measured and of another."""
    # To copy the files would be most of what is measured.
    key = str(files / "key")
    settings = replace(OWN_PROCESS, cache_key_file=key, maps_cache_files=True)
    with _opened(files, _MEASURED) as caches, _opened(files, _WARMING) as others:
        async with ReferenceDevice(settings) as device:
            yield device, caches, others


@contextmanager
def _opened(files: Path, name: str) -> Iterator[Caches]:
    """Open the files of that name for as long as the block lasts."""
    fds = [
        os.open(files / f"{name}.{kind}", os.O_RDWR | os.O_CREAT, 0o600)
        for kind in ("model", "data")
    ]
    try:
        yield [Handle((fds[0],))], [Handle((fds[1],))]
    finally:
        for fd in fds:
            os.close(fd)


async def _measure_cache(named: NamedModel, files: Path, rounds: int) -> Figures:
    model, inputs = named.model, inputs_of(named)

    async def run(prepared: IPreparedModel) -> None:
        await PreparedModel(named, prepared, max_in_flight=1).run(inputs)

    async with _caching(files) as (device, caches, others):

        async def prepare_and_run() -> None:
            await run(await _prepare(device, model))

        async def load_and_run() -> None:
            await run(await _load(device, caches))

        await _prepare(device, model, others)
        await _prepare(device, model, caches)
        started: Started = {
            "anew": partial(_prepare, device, model),
            "saved": partial(_prepare, device, model, caches),
            "loaded": partial(_load, device, caches),
            "anew_run": prepare_and_run,
            "loaded_run": load_and_run,
        }
        return await measure(started, rounds=rounds)


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


async def grow_by_loading(pipe: processes.Pipe, files: Path) -> None:
    """Load a model, which nothing here has prepared; send by how many KiB this grew."""
    pipe.send_bytes(processes.READY)
    async with _caching(files) as (device, caches, others):
        # What its first load takes, such as the code of libraries, others share.
        first = await _load(device, others)
        with processes.telling_growth(pipe, processes.resident_kib):
            second = await _load(device, caches)
        del first, second


STEP_LIMIT, STEP_GATE = 1.15, 1.3
"""Of the time of a step divided by a plain run's on the same path.

The goal, and what any machine has to reach of it, whatever disturbs that.
"""

MEMORY_LIMIT = 0.1
"""Goal of the memory of sessions divided by as many LiteRT interpreters'."""

STATEFUL_PACKAGE = "pymicro_wakeword"
"""Its models are measured if no others are named; it is not imported."""

SESSIONS = 100
_STEPS = 3


class SessionModelFigures(report.Subject, frozen=True, kw_only=True):
    """What was measured of one model; memory is for `SESSIONS` of each, in KiB."""

    model: str
    step_limit: float
    step_ratio: float
    burst_ratio: float
    sessions_kib: int
    interpreters_kib: int

    def cells(self) -> report.Row:
        """Return the ratios with their goals, and the memory."""
        share = self.sessions_kib / max(self.interpreters_kib, 1)
        limit, is_small = f"<= {MEMORY_LIMIT:.0%}", share <= MEMORY_LIMIT
        return (
            *map(self._cell, (self.step_ratio, self.burst_ratio)),
            *map(str, (self.sessions_kib, self.interpreters_kib)),
            report.ratio_cell(f"{share:.1%}", limit, is_small),
        )

    def _cell(self, ratio: float) -> report.Cell:
        limit = self.step_limit
        return report.ratio_cell(f"{ratio:.3f}", f"<= {limit:g}", ratio <= limit)


class SessionsReport(report.SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench sessions --json``."""

    CONTENDERS: ClassVar[Mapping[str, str]] = {
        "step": "step of a session",
        "plain": "plain run",
        "burst_step": "step by burst",
        "burst_plain": "plain run by burst",
        LITERT: "LiteRT, step",
    }
    OTHERS = (
        "step / plain",
        "by burst",
        f"KiB of {SESSIONS} sessions",
        f"KiB of {SESSIONS} interpreters",
        "share",
    )

    device: str
    models: tuple[SessionModelFigures, ...]


def sessions(order: Order) -> SessionsReport:
    """Measure the models of a folder or a package of wake words, with one CPU.

    :raises PeerMissingError: if LiteRT or, without a folder, the package is missing.
    """
    peers = {"ai-edge-litert": litert_version()}
    devices: list[str] = []
    folder = order.folder or package_models()
    with model_files(order._replace(folder=folder, mobilenet=False)) as paths:

        def stepped(path: Path) -> SessionModelFigures:
            device, figures = anyio.run(_measure_sessions, path, order.rounds)
            devices.append(device)
            # A model alone is its own predecessor: its weights count a little less.
            warming = next((other for other in paths if other != path), path)
            held = partial(processes.told, processes.hold_interpreters)
            return SessionModelFigures(
                model=path.stem,
                step_limit=STEP_GATE if order.gates else STEP_LIMIT,
                figures=figures,
                step_ratio=figures["step"].ratio_to(figures["plain"]),
                burst_ratio=figures["burst_step"].ratio_to(figures["burst_plain"]),
                sessions_kib=processes.told(grow_by_sessions, warming, path),
                interpreters_kib=held(path, warming, SESSIONS, _STEPS),
            )

        def measured() -> dict[str, Any]:
            models = tuple(map(stepped, order.progress(paths)))
            return {"models": models, "device": devices[0]}

        return SessionsReport.measured(ONE_CPU, order.rounds, measured, peers)


def package_models() -> Path:
    """Return the folder of the package's models.

    :raises PeerMissingError: if it is not installed.
    """
    found = find_spec(STATEFUL_PACKAGE)
    if found is None or found.origin is None:
        raise PeerMissingError(
            f"{STATEFUL_PACKAGE}, whose models are measured, is not installed",
            hint="name a folder of models, or pip install --no-deps pymicro-wakeword",
        )
    return Path(found.origin).parent / "models"


async def _measure_sessions(path: Path, rounds: int) -> tuple[str, Figures]:
    """Return the name of the device as well."""
    litert = LiteRt(path)
    async with open_device() as device, AsyncExitStack() as stack:
        prepared = await device.prepare(load(path))
        inputs = inputs_of(prepared)
        session = await stack.enter_async_context(prepared.session())
        by_burst = await stack.enter_async_context(prepared.session(path="burst"))
        burst = await stack.enter_async_context(prepared.burst())
        runs: dict[str, Callable[..., Any]] = {
            "step": session.run,
            "plain": prepared.run,
            "burst_step": by_burst.run,
            "burst_plain": burst.run,
            LITERT: litert.run,
        }
        started = {name: partial(run, inputs) for name, run in runs.items()}
        return device.name, await measure(started, rounds=rounds)


async def grow_by_sessions(pipe: processes.Pipe, warming: Path, path: Path) -> None:
    """Send by how many KiB `SESSIONS` sessions make this process grow."""
    pipe.send_bytes(processes.READY)
    async with open_device() as device, AsyncExitStack() as stack:
        first = await device.prepare(load(warming))
        await _open_stepped(first, inputs_of(first), stack)
        with processes.telling_growth(pipe):
            prepared = await device.prepare(load(path))
            inputs = inputs_of(prepared)
            for _ in range(SESSIONS):
                await _open_stepped(prepared, inputs, stack)


async def _open_stepped(
    prepared: PreparedModel, inputs: list[Array], stack: AsyncExitStack
) -> None:
    session = await stack.enter_async_context(prepared.session())
    for _ in range(_STEPS):
        await session.run(inputs)
