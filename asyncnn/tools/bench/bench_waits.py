"""What it costs to wait: ``asyncnn bench`` ``awaiting``, ``fence`` and ``service``.

``awaiting`` runs a tiny addition in this process, one layer after the other. Each
layer's figure includes those below it. ``fence`` has single waits within a process,
executions of the no-op device in a driver process, chained or awaited one by one, and
frames through four stages that compute nothing. ``service`` has an execution that
computes nothing, and an image that is cut, in another process.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import pairwise

import numpy as np

import asyncnn
from asyncnn import hal, shared_array
from asyncnn.engine import PlanExecution, Program
from asyncnn.fences import SyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service.process import driver_process
from asyncnn.tools.bench import environment, noop, peers
from asyncnn.tools.bench.benches import (
    HERE,
    Place,
    PlacedBench,
    Start,
    called,
    on_cpu,
    with_device,
)
from asyncnn.tools.bench.made_models import LENGTH, cutting_model, tiny_addition
from asyncnn.tools.bench.peers import IMAGE_SHAPE, RESULT_SHAPE
from asyncnn.tools.bench.report import BenchReport, Goal
from asyncnn.tools.bench.rounds import Call, Order

Wait = Callable[[], Awaitable[object]]

_X, _Y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)


def _adding(make: Callable[[asyncnn.PreparedModel], Call]) -> Start:
    """Return what starts a contender that runs the addition on the loop's thread."""

    async def start(place: Place) -> Call:
        device = await place.shared(asyncnn.open_device, "reference")
        return make(await device.prepare(tiny_addition()))

    return start


def _request_call(prepared: asyncnn.PreparedModel) -> Call:
    output = np.empty(LENGTH, np.float32)
    build = RequestBuilder(prepared.inputs, prepared.outputs)
    return noop.hal_execution(prepared, build([_X, _Y], [output]))


def _engine_call(prepared: asyncnn.PreparedModel) -> Call:
    program, inputs = Program(tiny_addition().model), [_X, _Y]
    plan = program.plan(tuple(array.shape for array in inputs))
    return lambda: PlanExecution(program, plan, inputs, [None]).advance()


async def _run_on_lane(place: Place) -> Call:
    settings = asyncnn.DeviceSettings(inline_below_us=0)
    device = await place.device(settings, name="reference")
    prepared = await device.prepare(tiny_addition())
    return lambda: prepared.run([_X, _Y])


def one_and_all() -> Iterator[tuple[str, environment.CpuPair]]:
    """Place all threads on one CPU, then wherever the system puts them."""
    for cpus in (environment.ONE_CPU, environment.ALL_CPUS):
        with environment.placement(cpus) as where:
            yield where, HERE


AWAITING = PlacedBench(
    {
        "numpy": "np.add(x, y), called",
        "engine": "the compiled plan, called",
        "hal": "IPreparedModel.execute_1_3 of a ready request, awaited",
        "run": "prepared.run([x, y]), awaited",
        "run_on_lane": "the same, never inline on the loop",
        "to_thread": "asyncio.to_thread(np.add, x, y), awaited",
    },
    {
        "numpy": called(lambda: np.add(_X, _Y)),
        "engine": _adding(_engine_call),
        "hal": _adding(_request_call),
        "run": _adding(lambda prepared: lambda: prepared.run([_X, _Y])),
        "run_on_lane": _run_on_lane,
        "to_thread": called(lambda: asyncio.to_thread(np.add, _X, _Y)),
    },
    goals=[Goal("run", "to_thread", 0.3)],
    places=one_and_all,
)


def awaiting(order: Order) -> BenchReport:
    """Measure each layer of the driver."""
    return with_verdict(AWAITING(order))


def with_verdict(report: BenchReport) -> BenchReport:
    """Have the fields of each placement's only verdict by themselves."""
    for placement in report.document["placements"]:
        (verdict,) = placement["verdicts"]
        placement |= {n: getattr(verdict, n) for n in ("ratio", "limit", "met")}
    return report


CHAINED = 100
STAGES = 4
FRAMES = 100
_STREAM = f"{FRAMES} frames, {STAGES} stages"

_IN_FLIGHT = 8
_FRAME = np.zeros(4, np.float32)
_SIGNALLED = SyncFence.signalled()


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


async def fenced_chain(device: asyncnn.Device) -> Wait:
    """Return the wait for the last of `CHAINED` executions, each after the other."""
    prepared = await device.prepare(tiny_addition())
    request = noop.addition_request(prepared)

    async def chain() -> None:
        wait_for: tuple[hal.ISyncFence, ...] = ()
        for _ in range(CHAINED):
            _, fence, _ = prepared.hal.execute_fenced(
                request, wait_for, hal.MeasureTiming.NO, None, None, None
            )
            wait_for = (fence or SyncFence.signalled(),)
        await wait_for[0]

    return chain


async def awaited_executions(device: asyncnn.Device) -> Wait:
    """Return the wait for `CHAINED` executions, each awaited before the next."""
    execute = await execute_call(device)

    async def executions() -> None:
        for _ in range(CHAINED):
            await execute()

    return executions


@asynccontextmanager
async def _no_op(cpu: int) -> AsyncIterator[asyncnn.Device]:
    """Have the no-op device in this process, whatever the CPU of the other one."""
    async with noop.NoOpDevice() as device:
        yield asyncnn.Device("no-op", device)


@asynccontextmanager
async def pipelined(device: asyncnn.Device) -> AsyncIterator[Wait]:
    """Yield the wait for `FRAMES` frames through a pipeline that stays open."""
    model = await device.prepare(tiny_addition())
    names = [f"stage {number}" for number in range(STAGES)]
    stages = [
        Stage(name, model, inputs={"x": f"{before}.{of}", "y": "put.y"})
        for name, before, of in zip(
            names, ["put", *names], ["x", *["sum"] * STAGES], strict=False
        )
    ]
    async with Pipeline(*stages, in_flight=_IN_FLIGHT) as pipeline:

        async def take() -> Array:
            return (await anext(pipeline))["sum"]

        yield _streamed(lambda: pipeline.put([_FRAME, _FRAME]), take)


async def one_by_one(device: asyncnn.Device) -> Wait:
    """Return the wait for `FRAMES` frames, each stage of which is awaited."""
    model = await device.prepare(tiny_addition())

    async def run() -> Array:
        for _ in range(FRAMES):
            frame = _FRAME
            for _ in range(STAGES):
                frame = (await model.run([frame, _FRAME]))["sum"]
        return frame

    return run


def _same(frame: Array) -> Array:
    return frame


@asynccontextmanager
async def queued(place: Place) -> AsyncIterator[Wait]:
    """Yield the wait for frames through queues and calls in threads."""
    ends: list[asyncio.Queue[Array]]
    ends = [asyncio.Queue(_IN_FLIGHT) for _ in range(STAGES + 1)]

    async def work(taken: asyncio.Queue[Array], given: asyncio.Queue[Array]) -> None:
        while True:
            await given.put(await asyncio.to_thread(_same, await taken.get()))

    with ExitStack() as stack:
        for taken, given in pairwise(ends):
            stack.callback(asyncio.create_task(work(taken, given)).cancel)
        yield _streamed(lambda: ends[0].put(_FRAME), ends[-1].get)


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


fence = PlacedBench(
    {
        "signalled": "a signalled fence, awaited",
        "sleep": "asyncio.sleep(0), awaited",
        "pending": "a fence made, awaited, and signalled by the loop",
        "asyncio_event": "an asyncio.Event, likewise",
        "eventfd": "an eventfd with add_reader, likewise",
        "pending_fd": "a fence of another owner, likewise, by its descriptor",
        "chain": f"{CHAINED} no-ops in a driver process, chained by fences",
        "awaited": f"{CHAINED} no-ops in a driver process, each awaited",
        "pipeline": f"{_STREAM}: asyncnn.pipeline",
        "one_by_one": f"{_STREAM}: each prepared.run awaited",
        "queues": f"{_STREAM}: asyncio.Queue and to_thread",
    },
    {
        "signalled": called(lambda: _SIGNALLED),
        "sleep": called(lambda: asyncio.sleep(0)),
        "pending": called(pending_fence),
        "asyncio_event": called(pending_event),
        "eventfd": called(pending_eventfd),
        "pending_fd": called(pending_fence_of_another),
        "chain": with_device(noop.no_op_driver_on, fenced_chain),
        "awaited": with_device(noop.no_op_driver_on, awaited_executions),
        "pipeline": with_device(_no_op, pipelined),
        "one_by_one": with_device(_no_op, one_by_one),
        "queues": queued,
    },
    goals=[
        Goal("signalled", "sleep", 1.0),
        Goal("pending", "eventfd", 1.5),
        Goal("chain", "awaited", 0.33),
        Goal("pipeline", "queues", 0.5),
    ],
)


_IMAGE = np.random.default_rng(0).random(IMAGE_SHAPE, np.float32)


@asynccontextmanager
async def _driver_on(cpu: int) -> AsyncIterator[asyncnn.Device]:
    """Start a driver process on one CPU and asyncnn.connect to it."""
    with ExitStack() as stack:
        with environment.pinned(cpu):
            driver = stack.enter_context(driver_process(device="reference"))
        async with asyncnn.connect(driver.path) as device:
            yield device


async def execute_call(device: asyncnn.Device) -> Call:
    """Return the execution of a ready request whose arrays are shared, at the HAL."""
    prepared = await device.prepare(tiny_addition())
    return noop.hal_execution(prepared, noop.addition_request(prepared))


async def _run_call(device: asyncnn.Device) -> Call:
    """Return the run of the same model on arrays of this process, copied both ways."""
    prepared = await device.prepare(tiny_addition())
    return lambda: prepared.run([_X, _Y])


async def image_call(device: asyncnn.Device, image: Array, in_place: bool) -> Call:
    """Return the run of `cutting_model`, ``in_place`` on shared arrays or by copies."""
    prepared = await device.prepare(cutting_model(IMAGE_SHAPE, RESULT_SHAPE))
    given, out = image, None
    if in_place:
        given, out = map(shared_array, (IMAGE_SHAPE, RESULT_SHAPE))
        given[:] = image

    async def call() -> Array:
        return (await prepared.run([given], out=out))["y"]

    return call


_EXCHANGE = peers.exchanged_bytes()

service = PlacedBench(
    {
        "execute": "execute_1_3 of a ready request in shared arrays, no-op, awaited",
        "add": "the same, but four floats are added",
        "run": "prepared.run of that with ordinary arrays, awaited",
        "asyncio_streams": "asyncio streams, Unix socket, as many bytes",
        "grpc_aio": "grpc.aio unary call, Unix socket, as many bytes",
        "pipe": "multiprocessing.Pipe, as many bytes",
        "image": "image: prepared.run of shared arrays, awaited",
        "image_copied": "image: prepared.run of ordinary arrays, awaited",
        "image_pipe": "image: multiprocessing.Pipe, NumPy arrays",
        "image_executor": "image: ProcessPoolExecutor, NumPy arrays, awaited",
    },
    {
        "execute": with_device(noop.no_op_driver_on, execute_call),
        "add": with_device(_driver_on, execute_call),
        "run": with_device(_driver_on, _run_call),
        "asyncio_streams": on_cpu(peers.streams_echo, _EXCHANGE),
        "grpc_aio": on_cpu(peers.grpc_echo, _EXCHANGE),
        "pipe": on_cpu(peers.pipe_echo, _EXCHANGE),
        "image": with_device(_driver_on, image_call, _IMAGE, True),
        "image_copied": with_device(_driver_on, image_call, _IMAGE, False),
        "image_pipe": on_cpu(peers.pipe_image, _IMAGE),
        "image_executor": on_cpu(peers.executor_image, _IMAGE),
    },
    goals=[
        Goal("execute", "asyncio_streams", 1.6),
        Goal("execute", "grpc_aio", 0.5),
        Goal("image", "image_pipe", 0.3),
        Goal("image", "image_executor", 0.1),
    ],
    packages=["grpcio"],
    notes=[f"{_EXCHANGE.request} bytes to the driver and {_EXCHANGE.response} back"],
    fields={"exchange": _EXCHANGE},
)
