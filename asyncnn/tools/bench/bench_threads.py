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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

import asyncnn
from asyncnn import Priority
from asyncnn.devices import OWN_PROCESS
from asyncnn.service import Server
from asyncnn.tools.bench import environment, processes, qos_load, report
from asyncnn.tools.bench.benches import Place, StartAll, measure_workload
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.measured_models import inputs_of, small_model
from asyncnn.tools.bench.rounds import Figures, Once, Order, Runs, Started, percentile
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.onnx_writer import PACKAGES, OnnxRuntime
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


def _interpreter_runs(path: Path) -> Callable[[], object]:
    """Return what has an interpreter for each thread: none may serve two at a time."""
    inputs, local = inputs_of(asyncnn.load(path)), threading.local()

    def run() -> object:
        if not hasattr(local, "peer"):
            local.peer = LiteRt(path)
        return local.peer.run(inputs)

    return run


def _session_runs(path: Path) -> Callable[[], object]:
    session = OnnxRuntime(named := asyncnn.load(path))
    return partial(session.run, session.converted(inputs_of(named)))


_PEERS = {LITERT_THREAD: _interpreter_runs, ONNX_THREAD: _session_runs}
"""What runs a file on the calling thread."""


async def _contenders(files: Files, place: Place) -> dict[str, _ModelRuns]:
    device = await place.device()
    priorities = Priority.HIGH, Priority.LOW
    both = [
        await device.prepare(asyncnn.load(file), priority=priority)
        for file, priority in zip(files, priorities, strict=True)
    ]
    found = {
        ASYNCNN: _ModelRuns(*(partial(each.run, inputs_of(each)) for each in both))
    }
    for name, runner in _PEERS.items():
        with place.noted(name):
            calls = [runner(file) for file in files]
            small, large = (partial(asyncio.to_thread, call) for call in calls)
            found[name] = _ModelRuns(small, large, calls[1])
    for each in found.values():
        await asyncio.gather(each.small(), each.large())
    return found


def _of_each(runs_of: Callable[[_ModelRuns], Runs]) -> StartAll[Files]:
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
    prepared = await device.prepare(asyncnn.load(files.large))
    probe = await device.prepare(tiny_addition())
    inputs, run_probe = inputs_of(prepared), partial(probe.run, inputs_of(probe))
    started = time.perf_counter()
    await prepared.run(inputs)
    run_s = time.perf_counter() - started

    async def turn() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for row, (stop, wait) in _STOPS.items():
            stopped = partial(stop, prepared, inputs)
            us, _processor_us = await qos_load.freed_us(stopped, run_probe, run_s)
            found[f"{row} {ASYNCNN}"] = us / 1000
            for name, runs in peers.items():
                if runs.compute is not None:
                    ms = await goes_on_ms(runs.compute, wait, run_s)
                    found[f"{row} {name}"] = ms
        return found

    return {ASYNCNN: Once(turn)}


async def until_cancelled(work: Callable[[], object], after_s: float) -> None:
    """Wait for work in a thread, and no longer after so many seconds."""
    task = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait([task])


async def _until_late(work: Callable[[], object], after_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.to_thread(work)


_STOPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cancelled": (qos_load.cancelled, until_cancelled),
    "deadline": (qos_load.out_of_time, _until_late),
}
"""How a run of the device is stopped, and how waiting for a thread ends."""


async def goes_on_ms(
    compute: Callable[[], object], wait: Callable[..., Any], run_s: float
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
        async with asyncnn.connect(supervised=True, device="accelerated") as device:
            prepared = await device.prepare(asyncnn.load(files.small))
            inputs = inputs_of(prepared)
            await prepared.run(inputs)
            os.kill(int(device.name.rpartition("-")[2]), signal.SIGKILL)
            started = time.perf_counter()
            while True:
                try:
                    await prepared.run(inputs)
                    return (time.perf_counter() - started) * 1000
                except asyncnn.AsyncnnError:
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
        name: Once(partial(_held_mib, name, files.large))
        for name in TITLES
        if name not in place.refusals
    }


async def _held_mib(name: str, model: Path) -> float:
    with processes.temporary_folder() as folder, contextlib.ExitStack() as stack:
        socket = folder / "driver.sock"
        serving: list[Callable[..., Any]] = [_serve] if name == ASYNCNN else []
        pipes = [
            stack.enter_context(processes.process(None, each, socket, model, name))
            for each in (*serving, *[_hold] * _PROCESSES)
        ]
        for pipe in pipes:
            pipe.send_bytes(processes.READY)
        return sum(int(pipe.recv()) for pipe in pipes) / 1024


async def _serve(pipe: processes.Pipe, socket: Path, *_: object) -> None:
    """Be a driver until the pipe closes."""
    opened = asyncnn.open_device("accelerated", settings=OWN_PROCESS)
    async with opened as device, Server(device.hal, socket):
        await _until_asked(pipe)


async def _hold(pipe: processes.Pipe, socket: Path, model: Path, name: str) -> None:
    """Have a model ready, by a client of the driver or by a peer."""
    if name != ASYNCNN:
        run = _PEERS[name](model)
        run()
        await _until_asked(pipe)
        return
    async with asyncnn.connect(socket) as device:
        prepared = await device.prepare(asyncnn.load(model))
        await prepared.run(inputs_of(prepared))
        await _until_asked(pipe)


async def _until_asked(pipe: processes.Pipe) -> None:
    """Send what this process takes when it is asked; end with the pipe."""
    await processes.until_closed(
        pipe, lambda order: pipe.send(processes.proportional_kib())
    )


_FREE = "until the thread is free, 95th percentile"

SECTIONS: dict[StartAll[Files], dict[str, tuple[str, str]]] = {
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

THREADS = report.Subjects(
    TITLES,
    {
        "/ LiteRT": lambda row: row.cell(ASYNCNN, LITERT_THREAD),
        "/ ONNX Runtime": lambda row: row.cell(ASYNCNN, ONNX_THREAD),
    },
    field="rows",
    named=True,
    title="beside a thread of the application; smaller is better",
    label=lambda row: f"{row.facts['title']}, {row.facts['unit']}",
)
"""Rows by figure, in units of their own."""


def bench(order: Order) -> report.BenchReport:
    """Measure on models that are made for it, wherever the system puts the threads.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version(), **environment.installed_versions(*PACKAGES)}
    by_name = {"/".join(titles): start for start, titles in SECTIONS.items()}
    rows: list[report.Measured] = []
    with model_pair() as files, environment.placement(environment.ALL_CPUS) as where:
        for name in order.progress(list(by_name)):
            start = by_name[name]
            measured = measure_workload(start, files, order.rounds)
            rows += rows_of(SECTIONS[start], *asyncio.run(measured))
    return reported(order.rounds, where, rows, peers)


def reported(
    rounds: int,
    where: str,
    rows: Sequence[report.Measured],
    peers: Mapping[str, str] | None = None,
) -> report.BenchReport:
    """Return the report, which has no chart, as units differ."""
    notes = [_CRASH_NOTE] if any(row.name == "crash" for row in rows) else []
    refusals = {row.facts["title"]: row.refusals for row in rows}
    notes += report.refusal_notes(refusals, TITLES)
    whole = THREADS.report(rounds, where, rows, peers)
    return whole._replace(notes=notes, bars={})


def rows_of(
    titles: Mapping[str, tuple[str, str]], measured: Figures, refusals: dict[str, str]
) -> Iterator[report.Measured]:
    """Yield the rows of figures that were measured together."""
    for row, (title, unit) in titles.items():
        names = {name: name if name in measured else f"{row} {name}" for name in TITLES}
        figures = {n: measured[key] for n, key in names.items() if key in measured}
        yield report.Measured.judged(
            row, figures, GOALS, refusals, title=title, unit=unit
        )
