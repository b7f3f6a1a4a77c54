"""What ``asyncnn bench burst`` measures: executions by burst, their parts, and queues.

Whole executions are those of a driver process that publishes the no-op device. Their
parts are timed in this process, each by itself: what an execution takes beyond their
sum goes to waiting, to the event loops and to what happens between the calls. Queues
lead to another process and back; both ends are asyncio applications.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from multiprocessing.reduction import recv_handle, send_handle

from asyncnn import hal
from asyncnn.burst import BurstController
from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    RequestShape,
    ResultShape,
)
from asyncnn.burst.slots import Binder, PoolSlots
from asyncnn.callbacks import IExecutionCallback
from asyncnn.fmq import LoopPoller, MessageQueue
from asyncnn.logs import SparseLogger
from asyncnn.runtime.device import Device
from asyncnn.tools.bench.noop import (
    LENGTH,
    NoOpDevice,
    addition_request,
    no_op_driver_on,
    tiny_addition,
)
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.processes import READY, Pipe, process
from asyncnn.tools.bench.rounds import Call

PART_REQUEST = "part_request_queue"
PART_BIND = "part_bind"
PART_EXECUTE = "part_execute"
PART_RESULT = "part_result_queue"

PARTS = {
    PART_REQUEST: "of it: the packet of the request written and read",
    PART_BIND: "of it: the packet known again, with its memory",
    PART_EXECUTE: "of it: the request validated, the callback notified",
    PART_RESULT: "of it: the packet of the result made, written, read and known again",
}
"""Parts of an execution, in their order."""

MESSAGE_BYTES = 256
MESSAGES = 2000
"""Messages of one run of a stream."""

BATCH = 16

_QUANTUM, _COUNT = 8, 3072
_STREAM_COUNT = 1024
_ACKNOWLEDGED = bytes(_QUANTUM)


@contextlib.asynccontextmanager
async def burst_execution(cpu: int) -> AsyncIterator[Call]:
    """Execute a ready request, at the HAL, in a driver process on another CPU."""
    async with no_op_driver_on(cpu) as device:
        prepared = await device.prepare(tiny_addition())
        request = addition_request(prepared)
        with await BurstController.open(prepared.hal) as burst:
            yield partial(burst.execute, request)


@contextlib.asynccontextmanager
async def burst_run(cpu: int) -> AsyncIterator[Call]:
    """Run a model on arrays in place, as an application would, likewise."""
    async with no_op_driver_on(cpu) as device:
        prepared = await device.prepare(tiny_addition())
        async with prepared.burst() as burst:
            yield burst.run_in_place


@contextlib.asynccontextmanager
async def burst_parts() -> AsyncIterator[Mapping[str, Call]]:
    """Yield the parts of an execution, one call each."""
    async with NoOpDevice() as device:
        prepared = await Device("no-op", device).prepare(tiny_addition())
        request = addition_request(prepared)
        slots = PoolSlots(lambda _: None)
        pools = [pool for pool in request.pools if isinstance(pool, hal.Memory)]
        shape = RequestShape.of(request.inputs, request.outputs, len(pools))
        packet = shape.encode(slots.of(pools), hal.MeasureTiming.NO)
        binder = Binder(prepared.hal, slots, SparseLogger(logging.getLogger(__name__)))
        await binder.bind(packet)
        shapes = (hal.OutputShape((LENGTH,), True),)
        result = ResultShape.of(hal.ErrorStatus.NONE, shapes)
        arguments = (request, hal.MeasureTiming.NO, None, None, _Unheard())
        with (
            MessageQueue.create(DATUM_BYTES, DEFAULT_QUEUE_LENGTH) as writer,
            MessageQueue.open(writer.descriptor) as reader,
        ):

            def carry(data: bytes) -> bytes:
                writer.write_nowait(data)
                return reader.read_nowait() or b""

            yield {
                PART_REQUEST: partial(carry, packet),
                PART_BIND: partial(binder.bind_nowait, packet),
                PART_EXECUTE: partial(prepared.hal.execute_1_3, *arguments),
                PART_RESULT: lambda: result.decode(carry(result.encode())),
            }


@contextlib.asynccontextmanager
async def queue_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """Have another process answer through a pair of queues; see `pipe_echo`."""
    request = bytes(exchange.request)
    with (
        MessageQueue.create(_QUANTUM, _COUNT) as to,
        MessageQueue.create(_QUANTUM, _COUNT) as back,
        process(cpu, _serve_echo, exchange.response) as pipe,
    ):
        _send(pipe, to, back)

        async def call() -> bytes:
            to.write_nowait(request)
            return await back.read()

        yield call


@contextlib.asynccontextmanager
async def queue_stream(cpu: int, batch: int) -> AsyncIterator[Call]:
    """Have another process read `MESSAGES`, written so many at a time.

    A call ends when all have been read.
    """
    packet = bytes(MESSAGE_BYTES * batch)
    with (
        MessageQueue.create(MESSAGE_BYTES, _STREAM_COUNT) as to,
        MessageQueue.create(_QUANTUM, 1) as back,
        process(cpu, _serve_stream) as pipe,
    ):
        _send(pipe, to, back)

        async def call() -> bytes:
            for _ in range(MESSAGES // batch):
                if not to.write_nowait(packet):
                    await to.write(packet)
            return await back.read()

        yield call


@contextlib.asynccontextmanager
async def pipe_stream(cpu: int) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` one way, blocking at both ends."""
    message = bytes(MESSAGE_BYTES)
    with process(cpu, _serve_pipe_stream) as pipe:

        def call() -> bytes:
            for _ in range(MESSAGES):
                pipe.send_bytes(message)
            return pipe.recv_bytes()

        yield call


class _Unheard(IExecutionCallback):
    """Takes results, early ones too, and does nothing with them."""

    takes_early_results = True

    def notify_1_3(self, *_: object, **__: object) -> None:
        pass


def _send(pipe: Pipe, *queues: MessageQueue) -> None:
    for queue in queues:
        pipe.send(queue.descriptor.ints)
        for fd in queue.descriptor.fds:
            send_handle(pipe, fd, None)


@contextlib.contextmanager
def _received(pipe: Pipe) -> Iterator[MessageQueue]:
    ints = pipe.recv()
    fds = tuple(recv_handle(pipe) for _ in range(3))
    with MessageQueue.open(hal.Handle(fds, ints)) as queue:
        yield queue


def _serve_echo(pipe: Pipe, response: int) -> None:
    pipe.send_bytes(READY)
    answer = bytes(response)
    with _received(pipe) as requests, _received(pipe) as answers:

        def on_ready() -> None:
            requests.read_nowait()
            answers.write_nowait(answer)

        asyncio.run(_serve(requests, on_ready))


def _serve_stream(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    with _received(pipe) as messages, _received(pipe) as answers:
        total = MESSAGES * MESSAGE_BYTES
        unread = total

        def on_ready() -> None:
            nonlocal unread
            unread -= len(messages.read_nowait() or b"")
            if not unread:
                unread = total
                answers.write_nowait(_ACKNOWLEDGED)

        asyncio.run(_serve(messages, on_ready))


async def _serve(queue: MessageQueue, on_ready: Call) -> None:
    LoopPoller.running().serve(queue, on_ready)
    await asyncio.Event().wait()


def _serve_pipe_stream(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            for _ in range(MESSAGES):
                pipe.recv_bytes()
            pipe.send_bytes(READY)
