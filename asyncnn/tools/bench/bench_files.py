"""What files of models take: ``asyncnn bench`` ``loading``, ``cache`` and ``sessions``.

``loading`` begins with a file and ends with a model that runs. ``cache`` loads models
from cache files beside preparing them anew. Another process, which has loaded a copy,
loads the model as well, to see by how much its resident memory grows; what is mapped
and not touched is not resident. ``sessions`` has steps of sessions beside plain runs,
and the private memory of many sessions beside that of as many interpreters.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import asyncnn
from asyncnn import hal
from asyncnn.callbacks import launched_preparation
from asyncnn.devices import OWN_PROCESS, ReferenceDevice
from asyncnn.hal.refusals import CacheArguments, LoadArguments, PrepareArguments
from asyncnn.tools.bench import processes, report
from asyncnn.tools.bench.benches import Place, measure_workload
from asyncnn.tools.bench.environment import ONE_CPU, PeerMissingError, placement
from asyncnn.tools.bench.measured_models import (
    LITERT,
    LITERT_REF,
    inputs_of,
    model_files,
    weights_bytes,
)
from asyncnn.tools.bench.rounds import Batches, Figures, Order, Started, timed
from asyncnn.tools.other_runtimes import LiteRt, litert_version

MATTERS_ABOVE_BYTES = 1_000_000
"""Files, or weights, as large as this have every goal."""

REFERENCE, ACCELERATED = "reference", "accelerated"

LOADING_GOALS = [
    report.Goal(name, LITERT, 1.5, 15.0) for name in (REFERENCE, ACCELERATED)
]
"""Of the time to load and prepare; a gate is for any machine, however many use it."""

LOADING = report.Subjects(
    {
        "loaded": "load",
        REFERENCE: "load and prepare, reference",
        ACCELERATED: "load and prepare, accelerated",
        LITERT: "LiteRT",
        LITERT_REF: "LiteRT, reference kernels",
    },
    {
        "MB": lambda model: f"{model.facts['size'] / 1e6:.2f}",
        "reference / LiteRT": lambda model: _to_litert(model, REFERENCE),
        "accelerated / LiteRT": lambda model: _to_litert(model, ACCELERATED),
    },
    named=True,
)

PACKAGES = ("basic_pitch", "pymicro_wakeword", "pyopen_wakeword")
"""Packages whose files are measured if they are installed; none is imported."""


def _to_litert(model: report.Measured, figure: str) -> report.Cell:
    return model.cell(figure, LITERT, always=not model.verdicts)


def loading(order: Order) -> report.BenchReport:
    """Measure files, see `model_files`, and packages' own, with one CPU.

    With a folder, packages are left out.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version()}
    with model_files(order) as paths, placement(ONE_CPU) as where:
        more = packaged(order.pattern) if order.folder is None else []
        found = [_loaded(path, order) for path in order.progress([*paths, *more])]
    return LOADING.report(order.rounds, where, found, peers)


def _loaded(path: Path, order: Order) -> report.Measured:
    measured = measure_workload(_loading, path, order.rounds)
    size = path.stat().st_size
    return judge_loading(name_of(path), size, *asyncio.run(measured), order.gates)


def judge_loading(
    name: str, size: int, figures: Figures, refusals: dict[str, str], gates: bool
) -> report.Measured:
    """Hold the figures of a file of so many bytes against the goals."""
    goals = LOADING_GOALS if size >= MATTERS_ABOVE_BYTES else []
    return report.Measured.judged(name, figures, goals, refusals, gates, size=size)


async def _loading(path: Path, place: Place) -> Started:
    calls: dict[str, Callable[[], Any]] = {
        "loaded": partial(asyncnn.load, path),
        LITERT: partial(LiteRt, path),
        LITERT_REF: partial(LiteRt, path, reference=True),
    }
    for name in (REFERENCE, ACCELERATED):
        with place.noted(name):
            device = await place.device(name=name)
            calls[name] = partial(lambda d: d.prepare(asyncnn.load(path)), device)
    started = Started()
    for name, call in calls.items():
        with place.noted(name):
            started[name] = Batches(await timed(call))
    return started


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


TIME_LIMIT = GROWTH_LIMIT = 0.2
"""Of the time to load a model beside preparing it, and of growth beside weights."""

MATTERS_ABOVE_US = 10_000.0
"""Models that take this long to prepare have a goal of the time."""

_MEASURED, _WARMING = "measured", "warming"


def _is_large(model: report.Measured) -> bool:
    facts = model.facts
    return bool(facts["is_largest"] or facts["weights_bytes"] >= MATTERS_ABOVE_BYTES)


def _time_saved(model: report.Measured) -> report.Cell:
    ratio = model.facts["ratio"]
    is_slow = _is_large(model) or model.us["anew"] >= MATTERS_ABOVE_US
    met = ratio <= TIME_LIMIT if is_slow else None
    return report.limited(f"{ratio:.3f}", f"<= {TIME_LIMIT:g}", met)


def _memory_saved(model: report.Measured) -> report.Cell:
    growth = model.facts["growth_bytes"] / model.facts["weights_bytes"]
    met = growth < GROWTH_LIMIT if _is_large(model) else None
    return report.limited(f"{growth:.1%}", f"< {GROWTH_LIMIT:.0%}", met)


CACHE = report.Subjects(
    {
        "anew": "prepared anew",
        "saved": "prepared anew and saved",
        "loaded": "loaded from the cache",
        "anew_run": "first outputs, anew",
        "loaded_run": "first outputs, loaded",
    },
    {"loaded / anew": _time_saved, "growth / weights": _memory_saved},
)
"""``growth_bytes`` is of the resident memory of another process. A model that
``is_largest``, as a file in its folder, has both goals.
"""


def cache(order: Order) -> report.BenchReport:
    """Measure models, see `model_files`, with one CPU."""
    with (
        model_files(order) as paths,
        processes.temporary_folder() as files,
        placement(ONE_CPU) as where,
    ):
        by_size = sorted(paths, key=lambda path: path.stat().st_size)
        largest = {path.parent: path for path in by_size}.values()

        def cached(path: Path) -> report.Measured:
            named = asyncnn.load(path, strict=True)
            start = partial(_caching_starts, files)
            figures, _ = asyncio.run(measure_workload(start, named, order.rounds))
            facts = {
                "ratio": figures["loaded"].ratio_to(figures["anew"]),
                "weights_bytes": weights_bytes(named.model),
                "growth_bytes": processes.reported(grow_by_loading, files) * 1024,
                "is_largest": path in largest,
            }
            return report.Measured.judged(path.stem, figures, **facts)

        found = [cached(path) for path in order.progress(paths)]
    return CACHE.report(order.rounds, where, found)


@asynccontextmanager
async def _caching(
    files: Path,
) -> AsyncIterator[tuple[hal.IDevice, CacheArguments, CacheArguments]]:
    """Have a device, and cache files of the model that is measured and of another."""
    # To copy the files would be most of what is measured.
    key = str(files / "key")
    settings = replace(OWN_PROCESS, cache_key_file=key, maps_cache_files=True)
    with _opened(files, _MEASURED) as caches, _opened(files, _WARMING) as others:
        async with ReferenceDevice(settings) as device:
            yield device, caches, others


@contextmanager
def _opened(files: Path, name: str) -> Iterator[CacheArguments]:
    """Open the files of that name for as long as the block lasts."""
    fds = [
        os.open(files / f"{name}.{kind}", os.O_RDWR | os.O_CREAT, 0o600)
        for kind in ("model", "data")
    ]
    try:
        yield CacheArguments([hal.Handle((fds[0],))], [hal.Handle((fds[1],))])
    finally:
        for fd in fds:
            os.close(fd)


async def _caching_starts(
    files: Path, named: asyncnn.NamedModel, place: Place
) -> Started:
    model, inputs = named.model, inputs_of(named)
    device, caches, others = await place.enter(_caching(files))

    async def and_run(prepare: Callable[[], Any]) -> None:
        prepared = asyncnn.PreparedModel(named, await prepare(), max_in_flight=1)
        await prepared.run(inputs)

    launch = partial(launched_preparation, device)
    anew = partial(launch, PrepareArguments(model))
    loaded = partial(launch, LoadArguments(None, caches))
    for each in (others, caches):
        await launch(PrepareArguments(model, cache=each))
    return {
        "anew": anew,
        "saved": partial(launch, PrepareArguments(model, cache=caches)),
        "loaded": loaded,
        "anew_run": partial(and_run, anew),
        "loaded_run": partial(and_run, loaded),
    }


async def grow_by_loading(pipe: processes.Pipe, files: Path) -> None:
    """Load a model, which nothing here has prepared; send by how many KiB this grew."""
    pipe.send_bytes(processes.READY)
    async with _caching(files) as (device, caches, others):
        # What its first load takes, such as the code of libraries, others share.
        first = await launched_preparation(device, LoadArguments(None, others))
        with processes.sending_growth(pipe, processes.resident_kib):
            second = await launched_preparation(device, LoadArguments(None, caches))
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


def _step_cell(ratio: str, model: report.Measured) -> report.Cell:
    value, limit = model.facts[ratio], model.facts["step_limit"]
    return report.limited(f"{value:.3f}", f"<= {limit:g}", value <= limit)


def _memory_share(model: report.Measured) -> report.Cell:
    kib = model.facts
    share = kib["sessions_kib"] / max(kib["interpreters_kib"], 1)
    met = share <= MEMORY_LIMIT
    return report.limited(f"{share:.1%}", f"<= {MEMORY_LIMIT:.0%}", met)


STEPS = report.Subjects(
    {
        "step": "step of a session",
        "plain": "plain run",
        "burst_step": "step by burst",
        "burst_plain": "plain run by burst",
        LITERT: "LiteRT, step",
    },
    {
        "step / plain": partial(_step_cell, "step_ratio"),
        "by burst": partial(_step_cell, "burst_ratio"),
        f"KiB of {SESSIONS} sessions": lambda model: str(model.facts["sessions_kib"]),
        f"KiB of {SESSIONS} interpreters": (
            lambda model: str(model.facts["interpreters_kib"])
        ),
        "share": _memory_share,
    },
)


def sessions(order: Order) -> report.BenchReport:
    """Measure the models of a folder or a package of wake words, with one CPU.

    :raises PeerMissingError: if LiteRT or, without a folder, the package is missing.
    """
    peers = {"ai-edge-litert": litert_version()}
    own = order._replace(folder=order.folder or package_models(), mobilenet=False)
    device = asyncio.run(_device_name())
    with model_files(own) as paths, placement(ONE_CPU) as where:

        def stepped(path: Path) -> report.Measured:
            measured = measure_workload(_stepping, path, order.rounds)
            figures, _ = asyncio.run(measured)
            # A model alone is its own predecessor: its weights count a little less.
            warming = next((other for other in paths if other != path), path)
            held = partial(processes.reported, processes.hold_interpreters)
            facts = {
                "step_limit": STEP_GATE if order.gates else STEP_LIMIT,
                "step_ratio": figures["step"].ratio_to(figures["plain"]),
                "burst_ratio": figures["burst_step"].ratio_to(figures["burst_plain"]),
                "sessions_kib": processes.reported(grow_by_sessions, warming, path),
                "interpreters_kib": held(path, warming, SESSIONS, _STEPS),
            }
            return report.Measured.judged(path.stem, figures, **facts)

        found = [stepped(path) for path in order.progress(paths)]
    return STEPS.report(order.rounds, where, found, peers, device=device)


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


async def _device_name() -> str:
    async with asyncnn.open_device() as device:
        return device.name


async def _stepping(path: Path, place: Place) -> Started:
    prepared = await (await place.enter(asyncnn.open_device())).prepare(
        asyncnn.load(path)
    )
    session = await place.enter(prepared.session())
    by_burst = await place.enter(prepared.session(path="burst"))
    burst = await place.enter(prepared.burst())
    runs: dict[str, Callable[..., Any]] = {
        "step": session.run,
        "plain": prepared.run,
        "burst_step": by_burst.run,
        "burst_plain": burst.run,
        LITERT: LiteRt(path).run,
    }
    inputs = inputs_of(prepared)
    return {name: partial(run, inputs) for name, run in runs.items()}


async def grow_by_sessions(pipe: processes.Pipe, warming: Path, path: Path) -> None:
    """Send by how many KiB `SESSIONS` sessions make this process grow."""
    pipe.send_bytes(processes.READY)
    async with asyncnn.open_device() as device, AsyncExitStack() as stack:

        async def opened(model: Path, count: int) -> None:
            prepared = await device.prepare(asyncnn.load(model))
            inputs = inputs_of(prepared)
            for _ in range(count):
                session = await stack.enter_async_context(prepared.session())
                for _ in range(_STEPS):
                    await session.run(inputs)

        await opened(warming, 1)
        with processes.sending_growth(pipe):
            await opened(path, SESSIONS)
