"""``asyncnn bench threads``: the accelerated device beside `asyncio.to_thread`.

What an application notices: how long it waits, alone and among others, what stopping a
run gives back, what a crash and several processes cost. The peers are what one writes
without a device: a thread of the event loop's default executor around an interpreter of
LiteRT, one for each thread, or around a session of ONNX Runtime, with one thread each.
"""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import Priority
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.tools.bench import processes, qos_load, report
from asyncnn.tools.bench.benches import Place, Started, measure_workload
from asyncnn.tools.bench.environment import ALL_CPUS, installed_versions
from asyncnn.tools.bench.measured_models import inputs_of, small_model
from asyncnn.tools.bench.noop import tiny_addition
from asyncnn.tools.bench.onnx_models import PACKAGES, OnnxRuntime
from asyncnn.tools.bench.rounds import Once, Order, Runs, percentile
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.other_runtimes import LiteRt, litert_version

ASYNCNN, LITERT_THREAD, ONNX_THREAD = "asyncnn", "litert_thread", "onnx_thread"

TITLES = {
    ASYNCNN: "asyncnn",
    LITERT_THREAD: "to_thread, LiteRT",
    ONNX_THREAD: "to_thread, ONNX Runtime",
}

GOALS = tuple(report.Goal(ASYNCNN, peer, 1.0) for peer in (LITERT_THREAD, ONNX_THREAD))
"""They hold for every row: a device that is slower than a thread helps nobody."""

_CONCURRENCY = 64
_LONG_RUNS = 16
"""More than the loop's default executor has threads on a machine of a few CPUs."""

_URGENT_RUNS = 30
_PAUSE_S = 0.005
_STOPPED_RUNS = 20
_NEVER_BEGINS_S = 1.0
_ANOTHER_DRIVER_S = 60.0
_PROCESSES = 4
_ALONE_US = 400.0
"""About what a run of the small model takes."""


class Files(NamedTuple):
    """MobileNets: one of some hundred microseconds, and one of some milliseconds."""

    small: Path
    large: Path


Start: TypeAlias = Callable[[Files, Place], Awaitable[Started]]


class _ModelRuns(NamedTuple):
    """One run of each; ``compute`` is the large one's, on the calling thread."""

    small: qos_load.Run
    large: qos_load.Run
    compute: Callable[[], object] | None = None


@contextlib.contextmanager
def model_pair() -> Iterator[Files]:
    """Have the files of both models; see `small_model`."""
    with processes.temporary_folder() as folder, small_model() as small:
        files = Files(small, folder / "large.tflite")
        files.large.write_bytes(mobilenet_v1(quantized=False))
        yield files


class _Interpreters:
    """An interpreter of LiteRT for each thread, since none may serve two at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inputs = inputs_of(load(path))
        self._local = threading.local()

    def run(self) -> object:
        peer = getattr(self._local, "peer", None)
        if peer is None:
            peer = self._local.peer = LiteRt(self._path)
        return peer.run(self._inputs)


def _session_run(path: Path) -> Callable[[], object]:
    named = load(path)
    session = OnnxRuntime(named)
    return partial(session.run, session.converted(inputs_of(named)))


_PEERS: dict[str, Callable[[Path], Callable[[], object]]] = {
    LITERT_THREAD: lambda path: _Interpreters(path).run,
    ONNX_THREAD: _session_run,
}
"""What runs a file on the calling thread."""


async def _contenders(files: Files, place: Place) -> dict[str, _ModelRuns]:
    device = await place.device()
    urgent = await device.prepare(load(files.small), priority=Priority.HIGH)
    long = await device.prepare(load(files.large), priority=Priority.LOW)
    run_long = partial(long.run, inputs_of(long))
    found = {ASYNCNN: _ModelRuns(partial(urgent.run, inputs_of(urgent)), run_long)}
    for name, runner in _PEERS.items():
        with place.noted(name):
            small, large = map(runner, files)
            in_thread = partial(asyncio.to_thread, small)
            found[name] = _ModelRuns(
                in_thread, partial(asyncio.to_thread, large), large
            )
    for each in found.values():
        await asyncio.gather(each.small(), each.large())
    return found


def _of_each(runs_of: Callable[[_ModelRuns], Runs]) -> Start:
    """Return what starts, for each contender, what is measured of its runs."""

    async def start(files: Files, place: Place) -> Started:
        contenders = await _contenders(files, place)
        return {name: runs_of(runs) for name, runs in contenders.items()}

    return start


async def _urgent_ms(runs: _ModelRuns) -> float:
    async with qos_load.saturated(runs.large, _LONG_RUNS):
        return await qos_load.p99_us(runs.small, _URGENT_RUNS, _PAUSE_S) / 1000


async def _request_us(runs: _ModelRuns) -> float:
    return await qos_load.request_us(runs.small, _CONCURRENCY, _ALONE_US)


alone = _of_each(lambda runs: runs.small)
serving = _of_each(lambda runs: Once(partial(_request_us, runs)))
urgent = _of_each(lambda runs: Once(partial(_urgent_ms, runs)))


async def stopping(files: Files, place: Place) -> Started:
    """Wait for a thread that computes on for nobody, in milliseconds."""
    peers = await _contenders(files, place)
    one_lane = replace(OWN_PROCESS, inline_below_us=0, lanes=1)
    device = await place.device(one_lane)
    prepared = await device.prepare(load(files.large))
    probe = await device.prepare(tiny_addition())
    inputs, vectors = inputs_of(prepared), inputs_of(probe)
    started = time.perf_counter()
    await prepared.run(inputs)
    run_s = time.perf_counter() - started

    async def turn() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for row, (stop, wait) in _STOPS.items():
            us, _processor_us = await qos_load.freed_us(
                partial(stop, prepared, inputs), lambda: probe.run(vectors), run_s
            )
            found[f"{row} {ASYNCNN}"] = us / 1000
            for name, runs in peers.items():
                if runs.compute is not None:
                    ms = await _goes_on_ms(runs.compute, wait, run_s)
                    found[f"{row} {name}"] = ms
        return found

    return {ASYNCNN: Once(turn)}


async def _until_cancelled(work: Callable[[], object], after_s: float) -> None:
    task = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait([task])


async def _until_late(work: Callable[[], object], after_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.to_thread(work)


_STOPS = {
    "cancelled": (qos_load.cancelled, _until_cancelled),
    "deadline": (qos_load.out_of_time, _until_late),
}
"""How a run of the device is stopped, and how waiting for a thread ends."""


async def _goes_on_ms(
    compute: Callable[[], object],
    wait: Callable[[Callable[[], object], float], Coroutine[Any, Any, None]],
    run_s: float,
) -> float:
    """Return how long threads compute after nobody waits any more, 95th percentile."""
    rng = random.Random(1)
    taken = [0.0]
    for _ in range(_STOPPED_RUNS):
        begun: list[float] = []
        ended: list[float] = []

        def work(begun: list[float] = begun, ended: list[float] = ended) -> None:
            begun.append(time.monotonic())
            try:
                compute()
            finally:
                ended.append(time.monotonic())

        await wait(work, rng.uniform(0.1, 0.8) * run_s)
        stopped = time.monotonic()
        while not ended:
            if not begun and time.monotonic() - stopped > _NEVER_BEGINS_S:
                break  # it was cancelled while it waited for a thread
            await asyncio.sleep(0.0005)
        if ended and ended[0] > stopped:
            taken.append(ended[0] - stopped)
    return percentile(taken, 0.95) * 1000


async def crash(files: Files, place: Place) -> Started:
    """Wait from the end of a driver to the next result, in milliseconds."""

    async def turn() -> float:
        async with connect(supervised=True, device="accelerated") as device:
            prepared = await device.prepare(load(files.small))
            inputs = inputs_of(prepared)
            await prepared.run(inputs)
            os.kill(int(device.name.rpartition("-")[2]), signal.SIGKILL)
            started = time.perf_counter()
            while True:
                try:
                    await prepared.run(inputs)
                    return (time.perf_counter() - started) * 1000
                except AsyncnnError:
                    if time.perf_counter() - started > _ANOTHER_DRIVER_S:
                        raise
                await asyncio.sleep(0.001)

    return {ASYNCNN: Once(turn)}


async def memory(files: Files, place: Place) -> Started:
    """Have processes report what they take, their shares of common pages, in MiB."""
    for name, runner in _PEERS.items():
        with place.noted(name):
            runner(files.small)
    return {
        name: Once(partial(_held_mib, hold, files.large))
        for name, hold in _HOLDERS.items()
        if name not in place.refusals
    }


async def _held_mib(hold: Callable[..., object], model: Path) -> float:
    with processes.temporary_folder() as folder, ExitStack() as stack:
        socket = folder / "driver.sock"
        serving = [_serve] if hold is _hold_prepared else []
        pipes = [
            stack.enter_context(processes.process(None, each, socket, model))
            for each in (*serving, *[hold] * _PROCESSES)
        ]
        for pipe in pipes:
            pipe.send_bytes(processes.READY)
        return sum(int(pipe.recv()) for pipe in pipes) / 1024


async def _serve(pipe: processes.Pipe, socket: Path, model: Path) -> None:
    """Be a driver, whose clients share a cache, until the pipe closes."""
    settings, _ = processes.cached_in(socket.parent)
    settings = replace(settings, maps_cache_files=False)
    opened = open_device("accelerated", settings=settings)
    async with opened as device, Server(device.hal, socket):
        await _tell(pipe)


async def _hold_prepared(pipe: processes.Pipe, socket: Path, model: Path) -> None:
    _, cache = processes.cached_in(socket.parent)
    async with connect(socket, cache_dir=cache) as device:
        prepared = await device.prepare(load(model))
        await prepared.run(inputs_of(prepared))
        await _tell(pipe)


async def _hold_peer(
    name: str, pipe: processes.Pipe, socket: Path, model: Path
) -> None:
    run = _PEERS[name](model)
    run()
    await _tell(pipe)


async def _tell(pipe: processes.Pipe) -> None:
    """Send what this process takes when it is asked; end with the pipe."""
    await processes.until_closed(
        pipe, lambda order: pipe.send(processes.proportional_kib())
    )


_HOLDERS: dict[str, Callable[..., object]] = {
    ASYNCNN: _hold_prepared,
    **{name: partial(_hold_peer, name) for name in _PEERS},
}


_FREE = "until the thread is free, 95th percentile"

SECTIONS: dict[Start, dict[str, tuple[str, str]]] = {
    alone: {"alone": ("one run, median", "us")},
    serving: {"serving": ("64 tasks at once, time for each request", "us")},
    urgent: {"urgent": ("an urgent run beside 16 long ones, 99th percentile", "ms")},
    stopping: {
        "cancelled": (f"after a cancel, {_FREE}", "ms"),
        "deadline": (f"after a missed deadline, {_FREE}", "ms"),
    },
    crash: {"crash": ("after a crash of the engine, until the next result", "ms")},
    memory: {"memory": ("four processes with a model of 17 MB", "MiB")},
}
"""Titles and units of the rows that are measured together, by what starts them.

Where there are several rows, figures are by row and contender.
"""


_CRASH_NOTE = "a crash in a thread of the application ends the application: no figure"


class ThreadsRow(report.Subject, frozen=True, kw_only=True):
    """A figure of all contenders, in its ``unit``, smaller is better."""

    title: str
    unit: str

    def cells(self) -> report.Row:
        """Return the cells of both ratios."""
        return [report.verdict_cell(self.verdicts, g.figure, g.peer) for g in GOALS]


class ThreadsReport(report.SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench threads --json``: rows by figure."""

    CONTENDERS = TITLES
    OTHERS = ("/ LiteRT", "/ ONNX Runtime")
    TITLE = "beside a thread of the application; smaller is better"

    rows: dict[str, ThreadsRow]

    def subjects(self) -> dict[str, report.Subject]:
        """Return the rows by their titles."""
        return {f"{row.title}, {row.unit}": row for row in self.rows.values()}

    def bars(self) -> report.Bars:
        """Return nothing: their units differ."""
        return {}

    def notes(self) -> Iterator[str]:
        """Yield who was not measured, and why."""
        if "crash" in self.rows:
            yield _CRASH_NOTE
        refusals = {row.title: row.refusals for row in self.rows.values()}
        yield from report.refusal_notes(refusals, TITLES)


def bench(order: Order) -> ThreadsReport:
    """Measure on models that are made for it, wherever the system puts the threads.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version(), **installed_versions(*PACKAGES)}
    by_name = {"/".join(titles): start for start, titles in SECTIONS.items()}
    rows: dict[str, ThreadsRow] = {}
    with model_pair() as files:

        def measured() -> dict[str, Any]:
            for name in order.progress(list(by_name)):
                rows.update(asyncio.run(_rows(by_name[name], files, order.rounds)))
            return {"rows": rows}

        return ThreadsReport.measured(ALL_CPUS, order.rounds, measured, peers)


async def _rows(start: Start, files: Files, rounds: int) -> dict[str, ThreadsRow]:
    measured, refusals = await measure_workload(start, files, rounds)
    rows = {}
    for row, (title, unit) in SECTIONS[start].items():
        names = {name: name if name in measured else f"{row} {name}" for name in TITLES}
        figures = {n: measured[key] for n, key in names.items() if key in measured}
        rows[row] = ThreadsRow(
            title=title,
            unit=unit,
            figures=figures,
            verdicts=report.judge(GOALS, figures),
            refusals=refusals,
        )
    return rows
