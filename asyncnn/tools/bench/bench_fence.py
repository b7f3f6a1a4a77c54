"""``asyncnn bench fence``: what it costs to wait for fences, beside other waits.

Single waits within a process; a hundred executions in a driver process, chained by
fences or awaited one by one; frames through four stages. Nothing is computed, as it is
the waiting that is measured: executions are those of the no-op device, validated and
reported in full, and stages of the peers are functions that return their argument.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise

import numpy as np

from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import MeasureTiming
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.device import Device
from asyncnn.tools.bench.environment import CpuPair, describe_environment
from asyncnn.tools.bench.noop import (
    NoOpDevice,
    addition_request,
    hal_execution,
    no_op_driver_on,
    tiny_addition,
)
from asyncnn.tools.bench.processes import Figures, Refusals, placements
from asyncnn.tools.bench.report import Goal, PlacedReport
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, measure, timed_await

Wait = Callable[[], Awaitable[object]]

CHAINED = 100
STAGES = 4
FRAMES = 100

SIGNALLED = "signalled"
SLEEP = "sleep"
PENDING = "pending"
PENDING_FD = "pending_fd"
EVENT = "asyncio_event"
EVENTFD = "eventfd"
CHAIN = "chain"
AWAITED = "awaited"
PIPELINE = "pipeline"
ONE_BY_ONE = "one_by_one"
QUEUES = "queues"

CONTENDERS = {
    SIGNALLED: "a signalled fence, awaited",
    SLEEP: "asyncio.sleep(0), awaited",
    PENDING: "a fence made, awaited, and signalled by the loop",
    EVENT: "an asyncio.Event, likewise",
    EVENTFD: "an eventfd with add_reader, likewise",
    PENDING_FD: "a fence of another owner, likewise, by its descriptor",
    CHAIN: f"{CHAINED} no-ops in a driver process, chained by fences",
    AWAITED: f"{CHAINED} no-ops in a driver process, each awaited",
    PIPELINE: f"{FRAMES} frames, {STAGES} stages: asyncnn.pipeline",
    ONE_BY_ONE: f"{FRAMES} frames, {STAGES} stages: each prepared.run awaited",
    QUEUES: f"{FRAMES} frames, {STAGES} stages: asyncio.Queue and to_thread",
}

GOALS = (
    Goal(SIGNALLED, SLEEP, 1.0),
    Goal(PENDING, EVENTFD, 1.5),
    Goal(CHAIN, AWAITED, 0.33),
    Goal(PIPELINE, QUEUES, 0.5),
)
"""They hold in each placement."""

_BATCH_US = 20_000.0
_IN_FLIGHT = 8
_FRAME = np.zeros(4, np.float32)
_SIGNALLED = SyncFence.signalled()


class FenceReport(PlacedReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench fence --json``."""

    CONTENDERS = CONTENDERS
    GOALS = GOALS


def bench(*, rounds: int = DEFAULT_ROUNDS) -> FenceReport:
    """Measure with a driver process on another CPU, then on the same one."""
    return FenceReport(
        environment=describe_environment(),
        rounds=rounds,
        placements=placements(partial(_measure, rounds), GOALS),
    )


async def _measure(rounds: int, cpus: CpuPair, refusals: Refusals) -> Figures:
    async with AsyncExitStack() as stack:
        remote = await stack.enter_async_context(no_op_driver_on(cpus.other))
        local = Device("no-op", await stack.enter_async_context(NoOpDevice()))
        waits: dict[str, Wait] = {
            **SINGLE_WAITS,
            CHAIN: await fenced_chain(remote),
            AWAITED: await awaited_executions(remote),
            PIPELINE: await pipelined(local, stack),
            ONE_BY_ONE: await one_by_one(local),
            QUEUES: await queued(stack),
        }
        batches = [timed_await(name, wait) for name, wait in waits.items()]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


async def pending_fence() -> None:
    """Make a fence and wait for it while the loop signals it."""
    fence, source = SyncFence.pair()
    asyncio.get_running_loop().call_soon(source.signal)
    await fence


async def pending_event() -> None:
    """Do so with an event of asyncio."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await event.wait()


async def pending_eventfd() -> None:
    """Do so with a descriptor, as any fence must that another process can signal."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        loop.add_reader(fd, readable.set_result, None)
        loop.call_soon(os.eventfd_write, fd, 1)
        await readable
        loop.remove_reader(fd)
    finally:
        os.close(fd)


async def pending_fence_of_another() -> None:
    """Wait for a fence by its descriptor, as another process would."""
    fence, source = SyncFence.pair()
    imported = SyncFence.from_fd(fence.fileno())
    asyncio.get_running_loop().call_soon(source.signal)
    await imported


SINGLE_WAITS: dict[str, Wait] = {
    SIGNALLED: lambda: _SIGNALLED,
    SLEEP: partial(asyncio.sleep, 0),
    PENDING: pending_fence,
    EVENT: pending_event,
    EVENTFD: pending_eventfd,
    PENDING_FD: pending_fence_of_another,
}
"""Waits for something that happens within the process."""


async def fenced_chain(device: Device) -> Wait:
    """Return the wait for the last of `CHAINED` executions, each after the other."""
    prepared = await device.prepare(tiny_addition())
    request = addition_request(prepared)

    async def chain() -> None:
        wait_for: tuple[ISyncFence, ...] = ()
        for _ in range(CHAINED):
            _, fence, _ = prepared.hal.execute_fenced(
                request, wait_for, MeasureTiming.NO, None, None, None
            )
            wait_for = (fence or SyncFence.signalled(),)
        await wait_for[0]

    return chain


async def awaited_executions(device: Device) -> Wait:
    """Return the wait for `CHAINED` executions, each awaited before the next."""
    prepared = await device.prepare(tiny_addition())
    execute = hal_execution(prepared, addition_request(prepared))

    async def executions() -> None:
        for _ in range(CHAINED):
            await execute()

    return executions


def nothing(frame: Array) -> Array:
    """Return ``frame``: what a stage of the peers does."""
    return frame


async def pipelined(device: Device, stack: AsyncExitStack) -> Wait:
    """Return the wait for `FRAMES` frames through a pipeline that stays open."""
    model = await device.prepare(tiny_addition())
    names = [f"stage {number}" for number in range(STAGES)]
    stages = [
        Stage(name, model, inputs={"x": f"{before}.{of}", "y": "put.y"})
        for name, before, of in zip(
            names, ["put", *names], ["x", *["sum"] * STAGES], strict=False
        )
    ]
    pipeline = await stack.enter_async_context(Pipeline(*stages, in_flight=_IN_FLIGHT))

    async def take() -> Array:
        return (await anext(pipeline))["sum"]

    return _streamed(lambda: pipeline.put([_FRAME, _FRAME]), take)


async def one_by_one(device: Device) -> Wait:
    """Return the wait for `FRAMES` frames, each stage of which is awaited."""
    model = await device.prepare(tiny_addition())

    async def run() -> Array:
        for _ in range(FRAMES):
            frame = _FRAME
            for _ in range(STAGES):
                frame = (await model.run([frame, _FRAME]))["sum"]
        return frame

    return run


async def queued(stack: AsyncExitStack) -> Wait:
    """Return the wait for frames through queues and calls in threads."""
    ends: list[asyncio.Queue[Array]]
    ends = [asyncio.Queue(_IN_FLIGHT) for _ in range(STAGES + 1)]

    async def work(taken: asyncio.Queue[Array], given: asyncio.Queue[Array]) -> None:
        while True:
            frame = await taken.get()
            await given.put(await asyncio.to_thread(nothing, frame))

    for taken, given in pairwise(ends):
        stack.callback(asyncio.create_task(work(taken, given)).cancel)

    return _streamed(lambda: ends[0].put(_FRAME), ends[-1].get)


def _streamed(
    put: Callable[[], Awaitable[object]], take: Callable[[], Awaitable[Array]]
) -> Wait:
    """Return the wait for `FRAMES` frames that are put in while others are taken."""

    async def feed() -> None:
        for _ in range(FRAMES):
            await put()

    async def run() -> Array:
        feeding = asyncio.create_task(feed())
        for _ in range(FRAMES):
            frame = await take()
        await feeding
        return frame

    return run
