"""Bytes to another process and back through queues, both ends asyncio applications."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from multiprocessing.reduction import recv_handle, send_handle

from asyncnn.fmq import LoopPoller, MessageQueue
from asyncnn.hal.types import Handle
from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.processes import READY, Pipe, process
from asyncnn.tools.bench.rounds import Call

MESSAGE_BYTES = 256
MESSAGES = 2000
"""Messages of one run of a stream."""

BATCH = 16

_QUANTUM, _COUNT = 8, 3072
_STREAM_COUNT = 1024
_ACKNOWLEDGED = bytes(_QUANTUM)


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


def _send(pipe: Pipe, *queues: MessageQueue) -> None:
    for queue in queues:
        pipe.send(queue.descriptor.ints)
        for fd in queue.descriptor.fds:
            send_handle(pipe, fd, None)


@contextlib.contextmanager
def _received(pipe: Pipe) -> Iterator[MessageQueue]:
    ints = pipe.recv()
    fds = tuple(recv_handle(pipe) for _ in range(3))
    with MessageQueue.open(Handle(fds, ints)) as queue:
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
