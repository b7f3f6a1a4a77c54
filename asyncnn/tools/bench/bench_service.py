"""``asyncnn bench service``: what it costs to have a driver process do the work.

Two exchanges with another process, each beside other ways to have it: an execution that
computes nothing, and a float image of 224 x 224 in with 1001 floats out. Both are
measured with the two processes on different CPUs and on the same one, since what a
wake-up across CPUs costs decides most of it.

The driver of the first publishes the no-op device, which validates what it is given and
computes nothing; that of all else the reference device.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from functools import partial

import numpy as np

from asyncnn import hal
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import wire
from asyncnn.service.process import driver_process
from asyncnn.tools.bench import peers
from asyncnn.tools.bench.environment import (
    CpuPair,
    describe_environment,
    installed_versions,
    pinned,
)
from asyncnn.tools.bench.noop import (
    LENGTH,
    addition_request,
    hal_execution,
    no_op_driver_on,
    tiny_addition,
)
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.processes import (
    READY,
    SPAWN,
    Figures,
    Pipe,
    Refusals,
    placements,
    process,
)
from asyncnn.tools.bench.report import Goal, PlacedReport
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Call, measure, timed

EXECUTE = "execute"
ADD = "add"
RUN = "run"
STREAMS = "asyncio_streams"
GRPC = "grpc_aio"
PIPE = "pipe"
IMAGE = "image"
IMAGE_COPIED = "image_copied"
IMAGE_PIPE = "image_pipe"
IMAGE_EXECUTOR = "image_executor"

CONTENDERS = {
    EXECUTE: "execute_1_3 of a ready request in shared arrays, no-op, awaited",
    ADD: "the same, but four floats are added",
    RUN: "prepared.run of that with ordinary arrays, awaited",
    STREAMS: "asyncio streams, Unix socket, as many bytes",
    GRPC: "grpc.aio unary call, Unix socket, as many bytes",
    PIPE: "multiprocessing.Pipe, as many bytes",
    IMAGE: "image: prepared.run of shared arrays, awaited",
    IMAGE_COPIED: "image: prepared.run of ordinary arrays, awaited",
    IMAGE_PIPE: "image: multiprocessing.Pipe, NumPy arrays",
    IMAGE_EXECUTOR: "image: ProcessPoolExecutor, NumPy arrays, awaited",
}

GOALS = (
    Goal(EXECUTE, STREAMS, 1.6),
    Goal(EXECUTE, GRPC, 0.5),
    Goal(IMAGE, IMAGE_PIPE, 0.3),
    Goal(IMAGE, IMAGE_EXECUTOR, 0.1),
)
"""They hold in each placement."""

IMAGE_SHAPE = (1, 224, 224, 3)
RESULT_SHAPE = (1, 7, 143, 1)
"""1001 numbers."""

_BATCH_US = 20_000.0


class ServiceReport(PlacedReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench service --json``."""

    CONTENDERS = CONTENDERS
    GOALS = GOALS

    exchange: Exchange

    def notes(self) -> Iterator[str]:
        """Yield sizes, and who could not be measured."""
        exchange = self.exchange
        yield f"{exchange.request} bytes to the driver and {exchange.response} back"
        yield from super().notes()


def bench(*, rounds: int = DEFAULT_ROUNDS) -> ServiceReport:
    """Measure with the two processes on different CPUs, then on the same one."""
    exchange = exchanged_bytes()
    return ServiceReport(
        environment=describe_environment(**installed_versions("grpcio")),
        rounds=rounds,
        exchange=exchange,
        placements=placements(partial(_measure, exchange, rounds), GOALS),
    )


async def _measure(
    exchange: Exchange, rounds: int, cpus: CpuPair, refusals: Refusals
) -> Figures:
    cpu = cpus.other
    image = np.random.default_rng(0).random(IMAGE_SHAPE, np.float32)
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(driver_on(cpu))
        no_op = await stack.enter_async_context(no_op_driver_on(cpu))
        calls: dict[str, Call] = {
            EXECUTE: await execute_call(no_op),
            ADD: await execute_call(device),
            RUN: await run_call(device),
            IMAGE: await image_call(device, image, in_place=True),
            IMAGE_COPIED: await image_call(device, image, in_place=False),
        }
        others = {
            STREAMS: peers.streams_echo(cpu, exchange),
            GRPC: peers.grpc_echo(cpu, exchange),
            PIPE: peers.pipe_echo(cpu, exchange),
            IMAGE_PIPE: pipe_image(cpu, image),
            IMAGE_EXECUTOR: executor_image(cpu, image),
        }
        calls |= await peers.entered(stack, others, refusals)
        batches = [await timed(name, call) for name, call in calls.items()]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


@contextlib.asynccontextmanager
async def driver_on(cpu: int) -> AsyncIterator[Device]:
    """Start a driver process on one CPU and connect to it."""
    with ExitStack() as stack:
        with pinned(cpu):
            driver = stack.enter_context(driver_process(device="reference"))
        async with connect(driver.path) as device:
            yield device


def cutting_model() -> NamedModel:
    """Return the model that takes an image and cuts 1001 numbers out of it."""
    builder = ModelBuilder()
    kind = hal.OperandType.TENSOR_FLOAT32
    image = builder.input("image", kind, IMAGE_SHAPE)
    begin = builder.constant(np.zeros(len(IMAGE_SHAPE), np.int32))
    size = builder.constant(np.array(RESULT_SHAPE, np.int32))
    result = builder.operation(
        hal.OperationType.SLICE, [image, begin, size], hal.Operand(kind, RESULT_SHAPE)
    )
    builder.output(result, "result")
    return builder.build()


async def execute_call(device: Device) -> Call:
    """Return the execution of a ready request whose arrays are shared, at the HAL."""
    prepared = await device.prepare(tiny_addition())
    return hal_execution(prepared, addition_request(prepared))


async def run_call(device: Device) -> Call:
    """Return the run of the same model on arrays of this process, copied both ways."""
    prepared = await device.prepare(tiny_addition())
    inputs = [*np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)]
    return lambda: prepared.run(inputs)


async def image_call(device: Device, image: Array, *, in_place: bool) -> Call:
    """Return the run of `cutting_model`, ``in_place`` on shared arrays or by copies."""
    prepared = await device.prepare(cutting_model())
    given, out = image, None
    if in_place:
        given, out = shared_array(IMAGE_SHAPE), shared_array(RESULT_SHAPE)
        given[:] = image

    async def call() -> Array:
        return (await prepared.run([given], out=out))["result"]

    return call


def exchanged_bytes() -> Exchange:
    """Return how many bytes such an execution sends and receives over the socket."""
    # Numbers of an ordinary size; the first few take a byte less.
    execute = wire.ExecuteBound(
        execution=1000,
        bound=1,
        measure=hal.MeasureTiming.NO,
        deadline=None,
        loop_timeout=None,
    )
    shapes = (hal.OutputShape((LENGTH,), True),)
    executed = wire.Executed(1000, hal.ErrorStatus.NONE, shapes, hal.NO_TIMING, "")
    kind_bytes = 1
    return Exchange(
        kind_bytes + len(wire.encode(execute)), kind_bytes + len(wire.encode(executed))
    )


def cut(image: Array) -> Array:
    """Return the 1001 numbers that stand for a result; costs as good as nothing."""
    _, rows, columns, channels = RESULT_SHAPE
    return np.ascontiguousarray(image[:, :rows, :columns, :channels])


@contextlib.asynccontextmanager
async def pipe_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` with NumPy arrays, blocking at both ends."""
    with process(cpu, _serve_pipe_image) as pipe:

        def call() -> Array:
            pipe.send(image)
            result: Array = pipe.recv()
            return result

        yield call


@contextlib.asynccontextmanager
async def executor_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`ProcessPoolExecutor` of one process with NumPy arrays, awaited."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(
        1, SPAWN, initializer=os.sched_setaffinity, initargs=(0, {cpu})
    ) as executor:

        def call() -> Awaitable[Array]:
            return loop.run_in_executor(executor, cut, image)

        yield call


def _serve_pipe_image(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(cut(pipe.recv()))
