"""What ``asyncnn bench accelerated`` measures: which models, of whom, and how.

A measurement of one model gives figures of every contender, round by round, and why
others are missing.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.devices.litert.cuts import barriers
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.engine import Program
from asyncnn.engine.delegation import Step
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Priority
from asyncnn.pacing import completed
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.translation import translating
from asyncnn.tools.bench.heartbeat import Heartbeat, Pulse, beating_driver
from asyncnn.tools.bench.litert import LITERT, in_executor, on_one_thread
from asyncnn.tools.bench.measured_models import Candidate, inputs_of, random_inputs
from asyncnn.tools.bench.noop import LENGTH, tiny_addition
from asyncnn.tools.bench.onnx_models import ONNX, OnnxRuntime
from asyncnn.tools.bench.processes import (
    READY,
    Pipe,
    private_kib,
    process,
    temporary_folder,
)
from asyncnn.tools.bench.qos_load import (
    Run,
    cancelled,
    freed_us,
    latencies_us,
    longest_step_us,
    out_of_time,
    percentile,
    request_us,
    saturated,
)
from asyncnn.tools.bench.report import noted
from asyncnn.tools.bench.rounds import (
    Batch,
    Figure,
    measure,
    rotated,
    timed_await,
    timed_call,
)
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.other_runtimes import LiteRt

ACCELERATED = "accelerated"
"""The device's name."""

DEVICE, AWAITED, INLINE, BOUND = "device", "awaited", "inline", "bound"
ONE_THREAD, EXECUTOR, TO_THREAD = "one_thread", "executor", "to_thread"
PREPARED, CREATED, ANEW, CACHED = "prepared", "created", "anew", "cached"
CANCELLED, DEADLINE, PART = "cancelled", "deadline", "part"
PROCESSOR = "_cpu"
"""Ends the names of figures of processor time."""

SATURATED, IDLE, IDLE_AND_PART = "saturated", "idle", "idle_and_part"
BURST, BUSY, REMOTE = "burst", "busy", "remote"
FIRST, SECOND = "first", "second"
ONE_LANE = "one_lane"

CONCURRENCIES = 8, 64
_SERVING = {
    AWAITED: "device",
    ONE_LANE: "one lane",
    ONE_THREAD: "one thread",
    EXECUTOR: "executor",
    TO_THREAD: "ONNX, to_thread",
}
SERVING = {
    f"{name}_{count}": f"{title}, {count}"
    for count in CONCURRENCIES
    for name, title in _SERVING.items()
}

Rounds: TypeAlias = dict[str, tuple[float, ...]]
"""Figures by contender, one for each round."""

Refusals: TypeAlias = dict[str, str]
"""Why a contender was not measured."""

Measured: TypeAlias = tuple[Rounds, Refusals]

INLINE_BELOW_US = 150.0
"""Models that LiteRT takes less for are also measured inline."""


_INLINE = replace(OWN_PROCESS, inline_below_us=1e6)
_ONE_LANE = replace(OWN_PROCESS, inline_below_us=0, lanes=1)
_LOAD = 8
_LISTENED_S = 0.5
_BACKGROUND = 4
_URGENT_RUNS = 100
_PAUSE_S = 0.005


Measure: TypeAlias = Callable[[Candidate, int], Coroutine[Any, Any, Measured]]


def opened(
    settings: DeviceSettings = OWN_PROCESS, cache_dir: Path | None = None
) -> contextlib.AbstractAsyncContextManager[Device]:
    """Open the accelerated device."""
    return open_device(ACCELERATED, settings=settings, cache_dir=cache_dir)


async def measure_alone(candidate: Candidate, rounds: int) -> Measured:
    """Measure one run after the other, of everybody."""
    refusals: Refusals = {}
    inputs = candidate.inputs
    batches: list[Batch] = []
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened())
        with noted(refusals, DEVICE, AWAITED, BOUND):
            prepared = await device.prepare(candidate.named)
            batches.append(_on_device(prepared, inputs))
            batches.append(timed_await(AWAITED, lambda: prepared.run(inputs)))
            batches.append(timed_await(BOUND, prepared.reusable(inputs).run))
        if DEVICE not in refusals and 0 < candidate.us < INLINE_BELOW_US:
            other = await stack.enter_async_context(opened(_INLINE))
            inline = await other.prepare(candidate.named)
            batches.append(timed_await(INLINE, lambda: inline.run(inputs)))
        with noted(refusals, LITERT, ONE_THREAD, EXECUTOR):
            peer = LiteRt(candidate.file)
            peer.set_inputs(inputs)
            batches.append(timed_call(LITERT, peer.invoke))
            for name, entered in _AWAITED.items():
                run = await stack.enter_async_context(entered(peer, inputs))
                batches.append(timed_await(name, run))
        with noted(refusals, ONNX, TO_THREAD):
            session = OnnxRuntime(candidate.named)
            feed = session.converted(inputs)
            batches.append(timed_call(ONNX, session.bound(feed)))
            batches.append(timed_await(TO_THREAD, session.awaited(feed)))
        return rounds_of(await measure(batches, rounds=rounds)), refusals


_AWAITED = {ONE_THREAD: on_one_thread, EXECUTOR: in_executor}


def rounds_of(figures: Mapping[str, Figure]) -> Rounds:
    """Return the median of each round of every contender."""
    return {name: figure.round_medians_us for name, figure in figures.items()}


def _on_device(prepared: PreparedModel, inputs: Sequence[Array]) -> Batch:
    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        outputs = [await prepared.run(inputs, measure=True) for _ in range(runs)]
        timings = [each.timing for each in outputs if each.timing is not None]
        return {DEVICE: [(each.on_device_ns or 0) / 1000 for each in timings]}

    return batch


async def measure_tiny(candidate: Candidate, rounds: int) -> Measured:
    """Measure an addition beside NumPy in `asyncio.to_thread`."""
    x, y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
    async with opened() as device:
        prepared = await device.prepare(candidate.named)
        batches = [
            timed_await(AWAITED, lambda: prepared.run([x, y])),
            timed_await(TO_THREAD, lambda: asyncio.to_thread(np.add, x, y)),
        ]
        return rounds_of(await measure(batches, rounds=rounds)), {}


async def measure_preparing(candidate: Candidate, rounds: int) -> Measured:
    """Measure preparing a model beside creating an interpreter of its file."""
    refusals: Refusals = {}
    batches = []
    async with opened() as device:
        with noted(refusals, PREPARED):
            await device.prepare(candidate.named)
            batches.append(
                timed_await(PREPARED, lambda: device.prepare(candidate.named))
            )
        with noted(refusals, CREATED):
            LiteRt(candidate.file)
            batches.append(timed_call(CREATED, lambda: LiteRt(candidate.file)))
        return rounds_of(await measure(batches, rounds=rounds)), refusals


async def measure_cached(candidate: Candidate, rounds: int) -> Measured:
    """Measure preparing a model from a cache beside preparing it anew.

    Some of that may be left to the first run. So a figure is what preparing and that
    take, less what a second run takes.
    """
    named, identity = candidate.named, candidate.name.encode()
    inputs = candidate.inputs
    with temporary_folder() as folder:
        settings, cache = _cached_in(folder)
        async with (
            opened(settings) as anew,
            opened(settings, cache_dir=cache) as cached,
        ):
            await cached.prepare(named, identity=identity)
            batches = [
                _until_bound(ANEW, lambda: anew.prepare(named), inputs),
                _until_bound(
                    CACHED, lambda: cached.prepare(named, identity=identity), inputs
                ),
            ]
            return rounds_of(await measure(batches, rounds=rounds)), {}


def _until_bound(
    figure: str,
    prepare: Callable[[], Awaitable[PreparedModel]],
    inputs: Sequence[Array],
) -> Batch:
    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        samples = []
        for _ in range(runs):
            started = time.perf_counter_ns()
            prepared = await prepare()
            await prepared.run(inputs)
            first_ended = time.perf_counter_ns()
            await prepared.run(inputs)
            later_ns = time.perf_counter_ns() - first_ended
            # The next one would share what is in use: its lane lets go of it soon.
            del prepared
            await asyncio.sleep(_PAUSE_S)
            samples.append((first_ended - started - later_ns) / 1000)
        return {figure: samples}

    return batch


class _Parted(LiteRtDelegate):
    """Divides models at the barriers as well, so that each part can be timed."""

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        for start, end in pairwise([0, *super().cuts(steps), len(steps)]):
            if start:
                yield start
            part = steps[start:end]
            yield from (start + at for at in barriers(part))


def _parted(named: NamedModel) -> Program:
    return Program(completed(translating(named)).model, delegate=_Parted(load_engine()))


async def measure_cancelling(candidate: Candidate, rounds: int) -> Measured:
    """Measure how long a lane goes on with what was cancelled, or has missed its time.

    Beside that, the longest part between two barriers, or step of a kernel.
    """
    named, inputs = candidate.named, candidate.inputs
    parted = _parted(named)
    results: defaultdict[str, list[float]] = defaultdict(list)
    async with opened(_ONE_LANE) as device:
        prepared = await device.prepare(named)
        tiny = await device.prepare(tiny_addition())
        x = np.zeros(LENGTH, np.float32)
        run_s = candidate.us * 1e-6
        stops = {
            CANCELLED: partial(cancelled, prepared, inputs),
            DEADLINE: partial(out_of_time, prepared, inputs),
        }
        for number in range(rounds):
            results[PART].append(longest_step_us(parted, inputs))
            for name, stop in rotated(list(stops.items()), number):
                us, processor_us = await freed_us(stop, lambda: tiny.run([x, x]), run_s)
                results[name].append(us)
                results[name + PROCESSOR].append(processor_us)
    return _closed(results), {}


def _closed(results: Mapping[str, Sequence[float]]) -> Rounds:
    return {name: tuple(values) for name, values in results.items()}


async def measure_priorities(candidate: Candidate, rounds: int) -> Measured:
    """Measure urgent runs of a small model while others saturate the device."""
    parted, inputs = _parted(candidate.named), candidate.inputs
    results: defaultdict[str, list[float]] = defaultdict(list)
    async with opened() as device:
        with _small_model() as path:
            urgent = await device.prepare(load(path), priority=Priority.HIGH)
        low = await device.prepare(candidate.named, priority=Priority.LOW)
        run = partial(urgent.run, inputs_of(urgent))
        for _ in range(rounds):
            part_us = longest_step_us(parted, inputs)
            idle_us = await _p99_us(run)
            async with saturated(partial(low.run, inputs), _BACKGROUND):
                results[SATURATED].append(await _p99_us(run))
            results[IDLE].append(idle_us)
            results[IDLE_AND_PART].append(idle_us + part_us)
    return _closed(results), {}


async def _p99_us(run: Run) -> float:
    return percentile(await latencies_us(run, _URGENT_RUNS, _PAUSE_S), 0.99)


@contextlib.contextmanager
def _small_model() -> Iterator[Path]:
    """Have the file of a model of some hundred microseconds."""
    with temporary_folder() as folder:
        path = folder / "small.tflite"
        path.write_bytes(mobilenet_v1(quantized=False, size=96, width=0.25))
        yield path


async def measure_serving(candidate: Candidate, rounds: int) -> Measured:
    """Measure requests of many tasks at once, for the device and its peers."""
    refusals: Refusals = {}
    results: defaultdict[str, list[float]] = defaultdict(list)
    async with _servers(candidate, refusals) as servers:
        for run in servers.values():
            await run()
        turns = [(name, count) for count in CONCURRENCIES for name in servers]
        for number in range(rounds):
            for name, count in rotated(turns, number * len(servers) + number):
                us = await request_us(servers[name], count, candidate.us)
                results[f"{name}_{count}"].append(us)
    return _closed(results), refusals


@contextlib.asynccontextmanager
async def _servers(
    candidate: Candidate, refusals: Refusals
) -> AsyncIterator[dict[str, Run]]:
    inputs = candidate.inputs
    servers: dict[str, Run] = {}
    async with AsyncExitStack() as stack:
        for name, lanes in {AWAITED: OWN_PROCESS.lanes, ONE_LANE: 1}.items():
            with noted(refusals, name):
                settings = replace(OWN_PROCESS, lanes=lanes)
                device = await stack.enter_async_context(opened(settings))
                prepared = await device.prepare(candidate.named)
                servers[name] = partial(prepared.run, inputs)
        with noted(refusals, ONE_THREAD, EXECUTOR):
            for name, entered in _AWAITED.items():
                peer = LiteRt(candidate.file)
                servers[name] = await stack.enter_async_context(entered(peer, inputs))
        with noted(refusals, TO_THREAD):
            session = OnnxRuntime(candidate.named)
            servers[TO_THREAD] = session.awaited(session.converted(inputs))
        yield servers


async def measure_driver(candidate: Candidate, rounds: int) -> Measured:
    """Measure a burst of a driver process beside the device in this process."""
    inputs = candidate.inputs
    with temporary_folder() as folder:
        path = folder / "driver.sock"
        with beating_driver(path, OWN_PROCESS, ACCELERATED):
            async with opened() as device, connect(path) as remote:
                prepared = await device.prepare(candidate.named)
                served = await remote.prepare(candidate.named)
                async with served.burst(spins=False) as burst:
                    batches = [
                        timed_await(BURST, lambda: burst.run(inputs)),
                        timed_await(REMOTE, lambda: served.run(inputs)),
                        timed_await(AWAITED, lambda: prepared.run(inputs)),
                    ]
                    return rounds_of(await measure(batches, rounds=rounds)), {}


async def measure_heartbeat(candidate: Candidate, rounds: int) -> Measured:
    """Listen to the loop while it serves and while it is idle, in turn."""
    results: defaultdict[str, list[float]] = defaultdict(list)
    async with opened() as device:
        prepared = await device.prepare(candidate.named)
        run = partial(prepared.run, candidate.inputs)
        with closing(Heartbeat()) as heartbeat:
            for _ in range(rounds):
                results[IDLE].append((await _listened(heartbeat)).p99_ms * 1000)
                async with saturated(run, _LOAD):
                    results[BUSY].append((await _listened(heartbeat)).p99_ms * 1000)
    return _closed(results), {}


async def _listened(heartbeat: Heartbeat) -> Pulse:
    heartbeat.start()
    await asyncio.sleep(_LISTENED_S)
    return heartbeat.stop()


async def measure_memory(candidate: Candidate, rounds: int) -> Measured:
    """Measure the private memory of processes that have the model ready, in KiB.

    Each has had another one ready before, so that what code takes is not counted. The
    first process fills a cache. Of those that load from it, as many as map the same
    files share them, so that the second one is measured beside another.
    """
    results: defaultdict[str, list[float]] = defaultdict(list)
    with _small_model() as warming:
        models = candidate.file, warming
        for number in range(rounds):
            for way in rotated((DEVICE, LITERT), number):
                with process(None, _HOLDERS[way], *models) as pipe:
                    results[way].append(pipe.recv())
            with temporary_folder() as folder, ExitStack() as stack:
                kib = [
                    stack.enter_context(
                        process(None, _hold_prepared, *models, folder)
                    ).recv()
                    for _ in range(3)
                ]
                results[FIRST].append(kib[0])
                results[SECOND].append(kib[-1])
    return _closed(results), {}


async def _hold_prepared(
    pipe: Pipe, path: Path, warming: Path, folder: Path | None = None
) -> None:
    """Tell of the memory for a model, and hold it for as long as the pipe is open."""
    pipe.send_bytes(READY)
    settings, cache = OWN_PROCESS, None
    if folder is not None:
        settings, cache = _cached_in(folder)
    async with opened(settings, cache) as device:
        first = await device.prepare(load(warming))
        await first.run(inputs_of(first))
        before = private_kib()
        prepared = await device.prepare(load(path))
        await prepared.run(inputs_of(prepared))
        pipe.send(private_kib() - before)
        with contextlib.suppress(EOFError):
            pipe.recv()


def _cached_in(folder: Path) -> tuple[DeviceSettings, Path]:
    """Return settings of a device whose files all lie in a folder, and its cache."""
    cache = folder / "models"
    cache.mkdir(mode=0o700, exist_ok=True)
    settings = replace(
        OWN_PROCESS,
        cache_key_file=str(folder / "key"),
        packed_weights_dir=str(folder / "weights"),
        maps_cache_files=True,
    )
    return settings, cache


def _hold_interpreter(pipe: Pipe, path: Path, warming: Path) -> None:
    pipe.send_bytes(READY)
    first = LiteRt(warming)
    first.run(random_inputs(first.input_kinds()))
    before = private_kib()
    peer = LiteRt(path)
    peer.run(random_inputs(peer.input_kinds()))
    pipe.send(private_kib() - before)


_HOLDERS: dict[str, Callable[..., object]] = {
    DEVICE: _hold_prepared,
    LITERT: _hold_interpreter,
}
