"""``asyncnn bench burst``: the way to a driver process through shared memory.

Bytes through a pair of queues and back, beside other ways to exchange as many with
another process; both ends are asyncio applications. Whole executions go to a driver
process that publishes the no-op device. Their parts are timed in this process: what an
execution takes beyond their sum goes to waiting, to the event loops and to what happens
between the calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.reduction import recv_handle, send_handle

from asyncnn import hal
from asyncnn.burst import BurstController, packets
from asyncnn.burst.slots import Binder, PoolSlots
from asyncnn.callbacks import IExecutionCallback
from asyncnn.fmq import IS_COMPILED, LoopPoller, MessageQueue
from asyncnn.logs import SparseLogger
from asyncnn.runtime.device import Device
from asyncnn.tools.bench import noop, peers
from asyncnn.tools.bench.benches import Group, Place, PlacedBench, Start, on_cpu
from asyncnn.tools.bench.environment import CpuPair
from asyncnn.tools.bench.made_models import LENGTH, tiny_addition
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.processes import READY, Pipe, hogs, process
from asyncnn.tools.bench.report import BenchReport, Goal, Measured
from asyncnn.tools.bench.rounds import Call, Order

MESSAGE_BYTES = 256
MESSAGES = 2000
"""Messages of one run of a stream."""

BATCH = 16
IDLE_S = 0.003
RECORDED = 1000
EXCHANGE = Exchange(MESSAGE_BYTES, MESSAGE_BYTES)

_QUANTUM, _COUNT = 8, 3072
_STREAM_COUNT = 1024

PARTS = {
    "part_request_queue": "the packet of the request written and read",
    "part_bind": "the packet known again, with its memory",
    "part_execute": "the request validated, the callback notified",
    "part_result_queue": "the packet of the result made, written, read and known again",
}
"""Parts of an execution, in their order."""


@contextlib.asynccontextmanager
async def burst_execution(cpu: int, calls: int = 0) -> AsyncIterator[Call]:
    """Execute a ready request, at the HAL, in a driver process on another CPU.

    The driver keeps the last ``calls``.
    """
    async with noop.no_op_driver_on(cpu, calls) as device:
        prepared = await device.prepare(tiny_addition())
        request = noop.addition_request(prepared)
        with await BurstController.open(prepared.hal) as burst:
            yield partial(burst.execute, request)


@contextlib.asynccontextmanager
async def burst_run(cpu: int) -> AsyncIterator[Call]:
    """Run a model on arrays in place, as an application would, likewise."""
    async with noop.no_op_driver_on(cpu) as device:
        prepared = await device.prepare(tiny_addition())
        async with prepared.burst() as burst:
            yield burst.run_in_place


@contextlib.asynccontextmanager
async def burst_parts() -> AsyncIterator[Mapping[str, Call]]:
    """Yield the parts of an execution, one call each."""
    async with noop.NoOpDevice() as device:
        prepared = await Device("no-op", device).prepare(tiny_addition())
        request = noop.addition_request(prepared)
        slots = PoolSlots(lambda _: None)
        pools = [pool for pool in request.pools if isinstance(pool, hal.Memory)]
        shape = packets.RequestShape.of(request.inputs, request.outputs, len(pools))
        packet = shape.encode(slots.of(pools), hal.MeasureTiming.NO)
        binder = Binder(prepared.hal, slots, SparseLogger(logging.getLogger(__name__)))
        await binder.bind(packet)
        shapes = (hal.OutputShape((LENGTH,), True),)
        result = packets.ResultShape.of(hal.ErrorStatus.NONE, shapes)
        arguments = (request, hal.MeasureTiming.NO, None, None, _Unheard())
        size = packets.DATUM_BYTES, packets.DEFAULT_QUEUE_LENGTH
        with (
            MessageQueue.create(*size) as writer,
            MessageQueue.open(writer.descriptor) as reader,
        ):

            def carry(data: bytes) -> bytes:
                writer.write_nowait(data)
                return reader.read_nowait() or b""

            calls: tuple[Call, ...] = (
                partial(carry, packet),
                partial(binder.bind_nowait, packet),
                partial(prepared.hal.execute_1_3, *arguments),
                lambda: result.decode(carry(result.encode())),
            )
            yield dict(zip(PARTS, calls, strict=True))


class _Unheard(IExecutionCallback):
    """Takes results, early ones too, and does nothing with them."""

    takes_early_results = True

    def notify_1_3(self, *_: object, **__: object) -> None:
        pass


@contextlib.asynccontextmanager
async def queue_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """Have another process answer through a pair of queues; see `pipe_echo`."""
    request = bytes(exchange.request)
    with (
        MessageQueue.create(_QUANTUM, _COUNT) as to,
        MessageQueue.create(_QUANTUM, _COUNT) as back,
        process(cpu, _serve, 0, exchange.response) as pipe,
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
        process(cpu, _serve, MESSAGES * MESSAGE_BYTES, _QUANTUM) as pipe,
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


def _serve(pipe: Pipe, total: int, response: int) -> None:
    """Answer what comes through the first of two queues, or so many bytes of it."""
    pipe.send_bytes(READY)
    answer, unread = bytes(response), total
    with contextlib.ExitStack() as stack:
        queues = []
        for _ in range(2):
            ints = pipe.recv()
            handle = hal.Handle(tuple(recv_handle(pipe) for _ in range(3)), ints)
            queues.append(stack.enter_context(MessageQueue.open(handle)))
        requests, answers = queues

        def echo() -> None:
            requests.read_nowait()
            answers.write_nowait(answer)

        def count() -> None:
            nonlocal unread
            unread -= len(requests.read_nowait() or b"")
            if not unread:
                unread = total
                answers.write_nowait(answer)

        async def serve() -> None:
            LoopPoller.running().serve(requests, count if total else echo)
            await asyncio.Event().wait()

        asyncio.run(serve())


def _part(name: str) -> Start:
    async def start(place: Place) -> Call:
        parts: Mapping[str, Call] = await place.shared(burst_parts)
        return parts[name]

    return start


@contextlib.contextmanager
def _hogged(cpus: CpuPair) -> Iterator[None]:
    with hogs({*cpus}) as computing, computing():
        yield


def _time(placement: Measured, contender: str) -> str:
    if contender not in placement.figures:
        return "-"
    p99_us = placement.facts["p99_us"][contender]
    return f"{placement.us[contender]:.3g} {p99_us:8.4g}"


_QUEUE, _PIPE = on_cpu(queue_echo, EXCHANGE), on_cpu(peers.pipe_echo, EXCHANGE)

_GROUPS = (
    Group(
        {
            "burst": on_cpu(burst_execution),
            "burst_recorded": on_cpu(burst_execution, RECORDED),
            "burst_run": on_cpu(burst_run),
            **{name: _part(name) for name in PARTS},
            "queue": _QUEUE,
            "pipe": _PIPE,
            "asyncio_streams": on_cpu(peers.streams_echo, EXCHANGE),
            "uvloop_streams": lambda place: peers.uvloop_echo(*place.cpus, EXCHANGE),
            "pyzmq": on_cpu(peers.zmq_echo, EXCHANGE),
            "grpc_aio": on_cpu(peers.grpc_echo, EXCHANGE),
            "iceoryx2": on_cpu(peers.iceoryx_echo, EXCHANGE),
        }
    ),
    Group(
        {"queue_idle": _QUEUE, "pipe_idle": _PIPE}, batch_us=100_000.0, pause_s=IDLE_S
    ),
    Group({"queue_hogs": _QUEUE, "pipe_hogs": _PIPE}, beside=_hogged),
    Group(
        {
            "queue_stream": on_cpu(queue_stream, 1),
            "queue_batches": on_cpu(queue_stream, BATCH),
            "pipe_stream": on_cpu(
                peers.pipe_echo, Exchange(MESSAGE_BYTES, _QUANTUM), MESSAGES
            ),
        },
        per=MESSAGES,
    ),
)
"""Exchanges at once, after idleness and beside others; then messages one way."""

_TITLES = {
    "burst": "a burst: no-op execution of a ready request at the HAL, awaited",
    "burst_recorded": f"the same, while the driver keeps its last {RECORDED} calls",
    "burst_run": "a burst: run_in_place of the same, awaited",
    **{name: f"of it: {title}" for name, title in PARTS.items()},
    "queue": "a pair of queues, awaited at both ends",
    "pipe": "multiprocessing.Pipe, blocking",
    "asyncio_streams": "asyncio streams, Unix socket",
    "uvloop_streams": "the same on uvloop",
    "pyzmq": "pyzmq request and reply, Unix socket, awaited",
    "grpc_aio": "grpc.aio unary call, Unix socket",
    "iceoryx2": "iceoryx2 request and response, looking again and again",
    "queue_idle": f"queues, after {IDLE_S * 1000:g} ms of idleness",
    "pipe_idle": "multiprocessing.Pipe, likewise",
    "queue_hogs": "queues, while another process spins on each CPU",
    "pipe_hogs": "multiprocessing.Pipe, likewise",
    "queue_stream": "one way: a queue, a message at a time",
    "queue_batches": f"one way: a queue, {BATCH} messages at a time",
    "pipe_stream": "one way: multiprocessing.Pipe",
}

_STREAM_GOALS = (
    Goal("queue_stream", "pipe_stream", 1 / 8, 1 / 6),
    Goal("queue_batches", "pipe_stream", 1 / 60, 1 / 40),
)

_RING = "compiled ring" if IS_COMPILED else "ring in Python"

BURSTS = PlacedBench(
    _TITLES,
    _GROUPS,
    goals=[
        Goal("burst", "pipe", 0.12, 0.5),
        # What an execution adds to its two messages is Python, as is this part of it:
        # machines differ in what that takes, and in what it takes to wake a peer.
        Goal("burst", "part_execute", 5.0),
        Goal("burst", "grpc_aio", 1 / 75, 1 / 50),
        Goal("burst", "iceoryx2", 0.6, 1.0),
        Goal("queue", "pipe", 0.06, 0.1),
        Goal("queue_idle", "pipe_idle", 0.3, 1.0),
        Goal("queue_hogs", "pipe_hogs", 1.0),
        Goal("queue_hogs", "a millisecond", 1.0),
        *_STREAM_GOALS,
    ],
    together=[
        Goal("burst", "pipe", 0.65, 1.5),
        Goal("burst", "part_execute", 7.0),
        Goal("burst", "grpc_aio", 1 / 23, 1 / 15),
        Goal("queue", "pipe", 0.5, 0.6),
        # What is wanted here is that sleeping costs no more than a blocking peer's.
        Goal("queue_idle", "pipe_idle", 1.0),
        Goal("queue_hogs", "a millisecond", 1.0),
        *_STREAM_GOALS,
    ],
    packages=("grpcio", "iceoryx2", "pyzmq", "uvloop"),
    notes=[
        f"queues and bursts have the {_RING}",
        f"{MESSAGE_BYTES} bytes to the other process and {MESSAGE_BYTES} back",
    ],
    fields={"exchange": EXCHANGE, "is_ring_compiled": IS_COMPILED},
    title="microseconds: median over the rounds of medians, p99",
    time=_time,
    constants={"a millisecond": 1000.0},
)

HEADLINE = Goal("burst", "best pipe", 0.35, 1.0)
"""Of a burst across CPUs and a Pipe where that is at its best."""


def burst(order: Order) -> BenchReport:
    """Measure with the two processes on different CPUs, then on the same one."""
    found = BURSTS.measured(order)
    return with_headline(BURSTS.report(order.rounds, found), found, gates=order.gates)


def with_headline(
    report: BenchReport, placements: Sequence[Measured], *, gates: bool = False
) -> BenchReport:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    There is no headline unless both were measured.
    """
    apart = [each.us for each in placements if each.facts["is_apart"]]
    bursts = [us["burst"] for us in apart if "burst" in us]
    pipes = [each.us["pipe"] for each in placements if "pipe" in each.us]
    headline = None
    if bursts and pipes:
        headline = HEADLINE.judge(min(bursts) / min(pipes), gates=gates)
    (table,) = report.tables
    table = table.ended("burst / best pipe of all placements", headline, 1)
    document = report.document | {"headline": headline}
    return report._replace(document=document, tables=[table])
