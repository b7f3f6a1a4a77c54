"""What ``asyncnn bench accelerated`` measures of a model: how its contenders start.

A function starts a section's, by name. Most are of the device itself; others are
of what surrounds a run: a framework, a loop with other work, a process that starts.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
from msgspec.structs import replace

import asyncnn
from asyncnn import Priority, hal
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.litert.cuts import barriers
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.engine import Program
from asyncnn.engine.delegation import Step
from asyncnn.hal.operations.bound import Array
from asyncnn.pacing import completed
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.translation import translating
from asyncnn.tools.bench import measured_models, processes, qos_load
from asyncnn.tools.bench.activities import Heartbeat, beating_driver
from asyncnn.tools.bench.benches import Place
from asyncnn.tools.bench.made_models import LENGTH, tiny_addition
from asyncnn.tools.bench.measured_models import ModelCandidate, in_executor, inputs_of
from asyncnn.tools.bench.rounds import OWN, Batches, Once, Samples, Started
from asyncnn.tools.onnx_writer import OnnxRuntime
from asyncnn.tools.other_runtimes import LiteRt

CONCURRENCIES = 8, 64

INLINE_BELOW_US = 150.0
"""Models that LiteRT takes less for are also measured inline."""

_ONE_LANE = replace(OWN_PROCESS, inline_below_us=0, lanes=1)
_LOAD = 8
_LISTENED_S = 0.5
_BACKGROUND = 4
_URGENT_RUNS = 100
_PAUSE_S = 0.005
_PIECE_NS = 90_000


@asynccontextmanager
async def _on_one_thread(
    peer: LiteRt, inputs: Sequence[Array]
) -> AsyncIterator[qos_load.Run]:
    """Await an interpreter on a thread of its own: a hand-written executor."""
    loop = asyncio.get_running_loop()
    asked: SimpleQueue[asyncio.Future[object] | None] = SimpleQueue()

    def serve() -> None:
        while (future := asked.get()) is not None:
            try:
                end = partial(future.set_result, peer.run(inputs))
            except Exception as error:
                end = partial(future.set_exception, error)
            loop.call_soon_threadsafe(_unless_done, future, end)

    def run() -> Awaitable[object]:
        future = loop.create_future()
        asked.put(future)
        return future

    with ThreadPoolExecutor(1) as pool:
        pool.submit(serve)
        try:
            yield run
        finally:
            asked.put(None)


def _unless_done(future: "asyncio.Future[object]", end: Callable[[], None]) -> None:
    if not future.done():  # else it was cancelled
        end()


_AWAITED = {"one_thread": _on_one_thread, "executor": in_executor}


async def _run_on(
    candidate: ModelCandidate, place: Place, **changes: Any
) -> qos_load.Run:
    """Return a run of a model on a device, whose settings have changes."""
    device = await place.device(replace(OWN_PROCESS, **changes))
    return partial((await device.prepare(candidate.named)).run, candidate.inputs)


async def alone(candidate: ModelCandidate, place: Place) -> Started:
    """Run one after the other, of everybody."""
    inputs, started = candidate.inputs, Started()
    device = await place.device()
    with place.noted("device", "awaited", "bound"):
        prepared = await device.prepare(candidate.named)
        started["device"] = measured_models.on_device(prepared, inputs)
        started["awaited"] = partial(prepared.run, inputs)
        started["bound"] = prepared.reusable(inputs).run
    if "device" not in place.refusals and 0 < candidate.us < INLINE_BELOW_US:
        started["inline"] = await _run_on(candidate, place, inline_below_us=1e6)
    with place.noted("litert", *_AWAITED):
        peer = LiteRt(candidate.file)
        peer.set_inputs(inputs)
        started["litert"] = peer.invoke
        for name, entered in _AWAITED.items():
            started[name] = await place.enter(entered(peer, inputs))
    with place.noted("onnx", "to_thread"):
        session = OnnxRuntime(candidate.named)
        feed = session.converted(inputs)
        started["onnx"] = session.bound(feed)
        started["to_thread"] = session.awaited(feed)
    return started


async def tiny(candidate: ModelCandidate, place: Place) -> Started:
    """Add, beside NumPy in `asyncio.to_thread`."""
    x, y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
    prepared = await (await place.device()).prepare(candidate.named)
    return {
        "awaited": lambda: prepared.run([x, y]),
        "to_thread": lambda: asyncio.to_thread(np.add, x, y),
    }


async def preparing(candidate: ModelCandidate, place: Place) -> Started:
    """Prepare a model, beside creating an interpreter of its file."""
    started, device = Started(), await place.device()
    with place.noted("prepared"):
        await device.prepare(candidate.named)
        started["prepared"] = partial(device.prepare, candidate.named)
    with place.noted("created"):
        LiteRt(candidate.file)
        started["created"] = partial(LiteRt, candidate.file)
    return started


async def cached(candidate: ModelCandidate, place: Place) -> Started:
    """Prepare a translation from a cache, beside preparing it anew.

    Some of that may be left to the first run. So a figure is what preparing and that
    take, less what a second run takes.
    """
    named, inputs = completed(translating(candidate.named)), candidate.inputs
    folder = place.stack.enter_context(processes.temporary_folder())
    settings, cache = processes.cached_in(folder)
    device, caching = await place.device(settings), await place.device(settings, cache)
    loading = partial(caching.prepare, named, identity=candidate.name.encode())
    await loading()
    prepare = {"anew": partial(device.prepare, named), "cached": loading}
    return {
        name: Batches(partial(_until_bound, each, inputs))
        for name, each in prepare.items()
    }


async def _until_bound(
    prepare: Callable[[], Awaitable[asyncnn.PreparedModel]],
    inputs: Sequence[Array],
    runs: int,
) -> Samples:
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
    return {OWN: samples}


class _Parted(LiteRtDelegate):
    """Divides models at the barriers as well, so that each part can be timed."""

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        for start, end in pairwise([0, *super().cuts(steps), len(steps)]):
            if start:
                yield start
            yield from (start + at for at in barriers(steps[start:end]))


def _longest_part_us(candidate: ModelCandidate) -> Callable[[], float]:
    """Return what times the longest part between two barriers, or step of a kernel."""
    model = completed(translating(candidate.named)).model
    program = Program(model, delegate=_Parted(load_engine()))
    return partial(qos_load.longest_step_us, program, candidate.inputs)


async def cancelling(candidate: ModelCandidate, place: Place) -> Started:
    """Wait for a lane that goes on with what was cancelled, or has missed its time."""
    device, part_us = await place.device(_ONE_LANE), _longest_part_us(candidate)
    prepared = await device.prepare(candidate.named)
    probe = await device.prepare(tiny_addition())
    run_probe = partial(probe.run, inputs_of(probe))

    async def part() -> float:
        return part_us()

    async def stopped(name: str, stop: Callable[..., Any]) -> dict[str, float]:
        stopping = partial(stop, prepared, candidate.inputs)
        times = await qos_load.freed_us(stopping, run_probe, candidate.us * 1e-6)
        return dict(zip((name, f"{name}_cpu"), times, strict=True))

    stops = {"cancelled": qos_load.cancelled, "deadline": qos_load.out_of_time}
    stopping = {n: Once(partial(stopped, n, stop)) for n, stop in stops.items()}
    return {"part": Once(part), **stopping}


async def priorities(candidate: ModelCandidate, place: Place) -> Started:
    """Run a small model urgently while others saturate the device."""
    device, part_us = await place.device(), _longest_part_us(candidate)
    with measured_models.small_model() as path:
        urgent = await device.prepare(asyncnn.load(path), priority=Priority.HIGH)
    low = await device.prepare(candidate.named, priority=Priority.LOW)
    run = partial(urgent.run, inputs_of(urgent))

    async def turn() -> dict[str, float]:
        longest_us = part_us()
        idle_us = await qos_load.p99_us(run, _URGENT_RUNS, _PAUSE_S)
        async with qos_load.saturated(partial(low.run, candidate.inputs), _BACKGROUND):
            busy_us = await qos_load.p99_us(run, _URGENT_RUNS, _PAUSE_S)
        both_us = idle_us + longest_us
        return {"saturated": busy_us, "idle": idle_us, "idle_and_part": both_us}

    return {"saturated": Once(turn)}


async def serving(candidate: ModelCandidate, place: Place) -> Started:
    """Answer requests of many tasks at once."""
    inputs = candidate.inputs
    servers: dict[str, qos_load.Run] = {}
    for name, lanes in {"awaited": OWN_PROCESS.lanes, "one_lane": 1}.items():
        with place.noted(name):
            servers[name] = await _run_on(candidate, place, lanes=lanes)
    with place.noted(*_AWAITED):
        for name, entered in _AWAITED.items():
            servers[name] = await place.enter(entered(LiteRt(candidate.file), inputs))
    with place.noted("to_thread"):
        session = OnnxRuntime(candidate.named)
        servers["to_thread"] = session.awaited(session.converted(inputs))
    for run in servers.values():
        await run()
    return {
        f"{name}_{count}": Once(partial(qos_load.request_us, run, count, candidate.us))
        for count in CONCURRENCIES
        for name, run in servers.items()
    }


async def driver(candidate: ModelCandidate, place: Place) -> Started:
    """Run by a burst of a driver process, beside the device in this process."""
    path = place.stack.enter_context(processes.temporary_folder()) / "driver.sock"
    place.stack.enter_context(beating_driver(path, OWN_PROCESS, "accelerated"))
    device = await place.enter(asyncnn.connect(path))
    served = await device.prepare(candidate.named)
    burst = await place.enter(served.burst(spins=False))
    return {
        "burst": partial(burst.run, candidate.inputs),
        "remote": partial(served.run, candidate.inputs),
        "awaited": await _run_on(candidate, place),
    }


async def heartbeat(candidate: ModelCandidate, place: Place) -> Started:
    """Listen to the loop while it serves and while it is idle, in turn."""
    run = await _run_on(candidate, place)
    beats = place.stack.enter_context(contextlib.closing(Heartbeat()))

    async def listened_us() -> float:
        beats.start()
        await asyncio.sleep(_LISTENED_S)
        return beats.stop().p99_ms * 1000

    async def turn() -> dict[str, float]:
        idle_us = await listened_us()
        async with qos_load.saturated(run, _LOAD):
            return {"idle": idle_us, "busy": await listened_us()}

    return {"busy": Once(turn)}


async def memory(candidate: ModelCandidate, place: Place) -> Started:
    """Have processes with the model ready report their private memory, in KiB.

    Each has had another one ready before, so that what code takes is not counted. The
    first process fills a cache. Of those that load from it, as many as map the same
    files share them, so that the second one is measured beside another.
    """
    small = place.stack.enter_context(measured_models.small_model())
    holders: dict[str, Callable[..., Any]] = {
        "device": partial(processes.hold_prepared, path=candidate.file, warming=small),
        "litert": partial(
            processes.hold_interpreters, path=candidate.file, warming=small
        ),
    }

    async def held(hold: Callable[..., object]) -> float:
        return float(processes.reported(hold))

    async def sharing() -> dict[str, float]:
        with processes.temporary_folder() as folder, ExitStack() as stack:
            hold = partial(holders["device"], folder=folder)
            started = (processes.process(None, hold) for _ in range(3))
            kib = [stack.enter_context(each).recv() for each in started]
        return {"first": kib[0], "second": kib[-1]}

    each = {name: Once(partial(held, hold)) for name, hold in holders.items()}
    return {**each, "first": Once(sharing)}


class _Half:
    """The device ``hal``, but that it supports one half of each model's operations."""

    def __init__(self, device: hal.IDevice, *, is_later: bool) -> None:
        self._device = device
        self._is_later = is_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    async def get_supported_operations_1_3(
        self, model: hal.Model
    ) -> tuple[hal.ErrorStatus, tuple[bool, ...]]:
        """Return the device's answer, but no for the operations of the other half."""
        status, supports = await self._device.get_supported_operations_1_3(model)
        middle = len(supports) // 2
        return status, tuple(
            can and (position >= middle) is self._is_later
            for position, can in enumerate(supports)
        )


@asynccontextmanager
async def _framework(*devices: Any) -> AsyncIterator[asyncnn.Device]:
    given = [OpenDevice(f"device-{k}", each) for k, each in enumerate(devices)]
    settings = asyncnn.FrameworkSettings(moving_weight=0)
    async with open_framework(OWN_PROCESS, devices=given, framework=settings) as both:
        yield asyncnn.Device("framework", both)


async def framework(candidate: ModelCandidate, place: Place) -> Started:
    """Run a model on the device, through a framework, and in two partitions."""
    device = await place.device()
    models = {"awaited": await device.prepare(candidate.named)}
    whole = await place.enter(_framework(device.hal))
    models["whole"] = await whole.prepare(candidate.named)
    halves = (_Half(device.hal, is_later=later) for later in (False, True))
    parted = await place.enter(_framework(*halves))
    with place.noted("halves"):
        models["halves"] = await parted.prepare(candidate.named)
    inputs = candidate.inputs
    return {name: partial(model.run, inputs) for name, model in models.items()}


async def beside(candidate: ModelCandidate, place: Place) -> Started:
    """Run on the device and in an executor while the loop has other work."""

    async def busy() -> None:
        while True:
            until_ns = time.perf_counter_ns() + _PIECE_NS
            while time.perf_counter_ns() < until_ns:
                pass
            await asyncio.sleep(0)

    started = Started(awaited=await _run_on(candidate, place))
    with place.noted("executor"):
        peer = in_executor(LiteRt(candidate.file), candidate.inputs)
        started["executor"] = await place.enter(peer)
    place.stack.callback(asyncio.create_task(busy()).cancel)
    return started


_FIRST_RESULTS = {
    "device": """
import asyncio, sys, asyncnn, numpy as np
async def main():
    async with asyncnn.open_device("accelerated") as device:
        model = await device.prepare(asyncnn.load(sys.argv[1]))
        await model.run([np.zeros(i.dimensions, i.dtype) for i in model.inputs])
asyncio.run(main())
""",
    "litert": """
import sys
from ai_edge_litert.interpreter import Interpreter
model = Interpreter(sys.argv[1])
model.allocate_tensors()
model.invoke()
""",
}


async def starting(candidate: ModelCandidate, place: Place) -> Started:
    """Await processes that end with their first result, and a driver's first one."""

    async def first_result_ms(name: str, program: str) -> float:
        started = time.perf_counter()
        ending = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, str(candidate.file)),
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await ending.wait():
            raise asyncnn.GeneralFailureError(f"{name} does not start")
        return (time.perf_counter() - started) * 1000

    async def connected() -> dict[str, float]:
        started = time.perf_counter()
        async with asyncnn.connect(device="accelerated") as device:
            prepared = await device.prepare(candidate.named)
            await prepared.run(candidate.inputs)
            ms = (time.perf_counter() - started) * 1000
        return {"connected": ms, "a second": 1000.0}

    programs = {
        name: Once(partial(first_result_ms, name, program))
        for name, program in _FIRST_RESULTS.items()
    }
    return {**programs, "connected": Once(connected)}
