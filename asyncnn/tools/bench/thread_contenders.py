"""What ``asyncnn bench threads`` measures: the device, and threads around engines."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Priority
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.tools.bench.measured_models import inputs_of
from asyncnn.tools.bench.noop import tiny_addition
from asyncnn.tools.bench.onnx_models import OnnxRuntime
from asyncnn.tools.bench.processes import READY, Pipe, process, temporary_folder
from asyncnn.tools.bench.qos_load import (
    Run,
    cancelled,
    freed_us,
    latencies_us,
    out_of_time,
    percentile,
    request_us,
    saturated,
)
from asyncnn.tools.bench.rounds import measure, rotated, timed_await
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.other_runtimes import LiteRt

ASYNCNN, LITERT_THREAD, ONNX_THREAD = "asyncnn", "litert_thread", "onnx_thread"

_ACCELERATED = "accelerated"
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

Refusals: TypeAlias = dict[str, str]
Measured: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]


class Files(NamedTuple):
    """MobileNets: one of some hundred microseconds, and one of some milliseconds."""

    small: Path
    large: Path


class _Runs(NamedTuple):
    """One run of each; ``compute`` is that of the large one, on the calling thread."""

    small: Run
    large: Run
    compute: Callable[[], object] | None = None


@contextlib.contextmanager
def model_pair() -> Iterator[Files]:
    """Have the files of both models.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    with temporary_folder() as folder:
        files = Files(folder / "small.tflite", folder / "large.tflite")
        files.small.write_bytes(mobilenet_v1(quantized=False, size=96, width=0.25))
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


def _around_litert(files: Files) -> _Runs:
    small, large = _Interpreters(files.small), _Interpreters(files.large)
    return _threads(small.run, large.run)


def _around_onnx_runtime(files: Files) -> _Runs:
    calls = []
    for path in files:
        named = load(path)
        session = OnnxRuntime(named)
        calls.append(partial(session.run, session.converted(inputs_of(named))))
    return _threads(*calls)


def _threads(small: Callable[[], object], large: Callable[[], object]) -> _Runs:
    return _Runs(
        lambda: asyncio.to_thread(small), lambda: asyncio.to_thread(large), large
    )


_PEERS = {LITERT_THREAD: _around_litert, ONNX_THREAD: _around_onnx_runtime}


@contextlib.asynccontextmanager
async def _contenders(
    files: Files, refusals: Refusals
) -> AsyncIterator[dict[str, _Runs]]:
    async with open_device(_ACCELERATED, settings=OWN_PROCESS) as device:
        urgent = await device.prepare(load(files.small), priority=Priority.HIGH)
        long = await device.prepare(load(files.large), priority=Priority.LOW)
        found = {
            ASYNCNN: _Runs(
                partial(urgent.run, inputs_of(urgent)),
                partial(long.run, inputs_of(long)),
            )
        }
        for name, make in _PEERS.items():
            try:
                found[name] = make(files)
            except AsyncnnError as error:
                refusals[name] = str(error)
        for each in found.values():
            await asyncio.gather(each.small(), each.large())
        yield found


async def measure_alone(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure runs of the small model, one after the other, in microseconds."""
    async with _contenders(files, refusals) as contenders:
        batches = [timed_await(name, each.small) for name, each in contenders.items()]
        figures = await measure(batches, rounds=rounds)
    return {"alone": {n: each.round_medians_us for n, each in figures.items()}}


async def measure_serving(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure requests of the small model from many tasks, in microseconds."""
    return await _by_contender(
        "serving",
        files,
        rounds,
        refusals,
        lambda runs: request_us(runs.small, _CONCURRENCY, _ALONE_US),
    )


async def measure_urgent(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure runs of the small model beside long ones, in milliseconds."""

    async def p99_ms(runs: _Runs) -> float:
        async with saturated(runs.large, _LONG_RUNS):
            samples = await latencies_us(runs.small, _URGENT_RUNS, _PAUSE_S)
        return percentile(samples, 0.99) / 1000

    return await _by_contender("urgent", files, rounds, refusals, p99_ms)


async def _by_contender(
    figure: str,
    files: Files,
    rounds: int,
    refusals: Refusals,
    value: Callable[[_Runs], Awaitable[float]],
) -> Measured:
    results: defaultdict[str, list[float]] = defaultdict(list)
    async with _contenders(files, refusals) as contenders:
        for number in range(rounds):
            for name, runs in rotated(list(contenders.items()), number):
                results[name].append(await value(runs))
    return {figure: results}


async def measure_stopping(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure how long a thread computes on for nobody, in milliseconds."""
    one_lane = replace(OWN_PROCESS, inline_below_us=0, lanes=1)
    results: dict[str, defaultdict[str, list[float]]] = {
        "cancelled": defaultdict(list),
        "deadline": defaultdict(list),
    }
    async with AsyncExitStack() as stack:
        peers = await stack.enter_async_context(_contenders(files, refusals))
        device = await stack.enter_async_context(
            open_device(_ACCELERATED, settings=one_lane)
        )
        prepared = await device.prepare(load(files.large))
        inputs = inputs_of(prepared)
        tiny = await device.prepare(tiny_addition())
        vectors = inputs_of(tiny)
        started = time.perf_counter()
        await prepared.run(inputs)
        run_s = time.perf_counter() - started
        ours = {
            "cancelled": partial(cancelled, prepared, inputs),
            "deadline": partial(out_of_time, prepared, inputs),
        }
        for _ in range(rounds):
            for figure, stop in ours.items():
                us, _processor_us = await freed_us(
                    stop, lambda: tiny.run(vectors), run_s
                )
                results[figure][ASYNCNN].append(us / 1000)
            for name, runs in peers.items():
                if runs.compute is not None:
                    for figure, wait in _STOPS.items():
                        ms = await _goes_on_ms(runs.compute, wait, run_s)
                        results[figure][name].append(ms)
    return results


async def _until_cancelled(work: Callable[[], object], after_s: float) -> None:
    task = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait([task])


async def _until_late(work: Callable[[], object], after_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.to_thread(work)


_STOPS: dict[str, Callable[[Callable[[], object], float], Coroutine[Any, Any, None]]]
_STOPS = {"cancelled": _until_cancelled, "deadline": _until_late}


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


async def measure_crash(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure from the end of a driver to the next result, in milliseconds."""
    del refusals
    taken = []
    for _ in range(rounds):
        async with connect(supervised=True, device=_ACCELERATED) as device:
            prepared = await device.prepare(load(files.small))
            inputs = inputs_of(prepared)
            await prepared.run(inputs)
            os.kill(int(device.name.rpartition("-")[2]), signal.SIGKILL)
            started = time.perf_counter()
            while True:
                try:
                    await prepared.run(inputs)
                    break
                except AsyncnnError:
                    if time.perf_counter() - started > _ANOTHER_DRIVER_S:
                        raise
                await asyncio.sleep(0.001)
            taken.append((time.perf_counter() - started) * 1000)
    return {"crash": {ASYNCNN: taken}}


async def measure_memory(files: Files, rounds: int, refusals: Refusals) -> Measured:
    """Measure what processes take, their shares of common pages, in MiB."""
    results: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, hold in _HOLDERS.items():
            if name not in refusals:
                with temporary_folder() as folder:
                    results[name].append(_held_mib(name, hold, files.large, folder))
    return {"memory": results}


def _held_mib(
    name: str, hold: Callable[..., object], model: Path, folder: Path
) -> float:
    socket = folder / "driver.sock"
    with ExitStack() as stack:
        pipes: list[Pipe] = []
        if name == ASYNCNN:
            pipes.append(stack.enter_context(process(None, _serve, socket)))
        pipes += [
            stack.enter_context(process(None, hold, model, socket))
            for _ in range(_PROCESSES)
        ]
        for pipe in pipes:
            pipe.send_bytes(READY)
        return sum(map(_received, pipes)) / 1024


def _received(pipe: Pipe) -> int:
    kib: int = pipe.recv()
    return kib


async def _serve(pipe: Pipe, socket: Path) -> None:
    """Be a driver, whose clients share a cache, until the pipe closes."""
    settings = replace(
        OWN_PROCESS,
        cache_key_file=str(socket.parent / "key"),
        packed_weights_dir=str(socket.parent / "weights"),
    )
    async with (
        open_device(_ACCELERATED, settings=settings) as device,
        Server(device.hal, socket),
    ):
        pipe.send_bytes(READY)
        await asyncio.to_thread(_tell_memory, pipe)


async def _hold_prepared(pipe: Pipe, model: Path, socket: Path) -> None:
    cache = socket.parent / "models"
    cache.mkdir(mode=0o700, exist_ok=True)
    async with connect(socket, cache_dir=cache) as device:
        prepared = await device.prepare(load(model))
        await prepared.run(inputs_of(prepared))
        pipe.send_bytes(READY)
        await asyncio.to_thread(_tell_memory, pipe)


def _hold_interpreter(pipe: Pipe, model: Path, socket: Path) -> None:
    peer = _Interpreters(model)
    peer.run()
    pipe.send_bytes(READY)
    _tell_memory(pipe)


def _hold_session(pipe: Pipe, model: Path, socket: Path) -> None:
    named = load(model)
    session = OnnxRuntime(named)
    feed: dict[str, Array] = session.converted(inputs_of(named))
    del named
    session.run(feed)
    pipe.send_bytes(READY)
    _tell_memory(pipe)


_HOLDERS: dict[str, Callable[..., object]] = {
    ASYNCNN: _hold_prepared,
    LITERT_THREAD: _hold_interpreter,
    ONNX_THREAD: _hold_session,
}


def _tell_memory(pipe: Pipe) -> None:
    """Tell what this process takes once asked; stay until the pipe closes."""
    with contextlib.suppress(EOFError):
        pipe.recv_bytes()
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        pipe.send(
            sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        )
        pipe.recv_bytes()
