"""``asyncnn bench burst``: the way to a driver process through shared memory.

Bytes through a pair of queues and back, beside other ways to exchange as many with
another process: one after the other, after some milliseconds of idleness, and while
every CPU is wanted by somebody else; and messages one way. All of it with the two
processes on different CPUs and on the same one; both ends are asyncio applications.

Whole executions go to a driver process that publishes the no-op device. Their
parts are timed in this process, each by itself: what an execution takes beyond their
sum goes to waiting, to the event loops and to what happens between the calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from functools import partial
from multiprocessing.reduction import recv_handle, send_handle
from typing import ClassVar

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
from asyncnn.fmq import IS_COMPILED, LoopPoller, MessageQueue
from asyncnn.logs import SparseLogger
from asyncnn.runtime.device import Device
from asyncnn.tools.bench import noop, peers
from asyncnn.tools.bench.benches import (
    Group,
    Place,
    PlacedReport,
    Placement,
    Start,
    Starting,
    placements,
)
from asyncnn.tools.bench.environment import (
    CpuPair,
    describe_environment,
    installed_versions,
)
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.processes import READY, Pipe, hogs, process
from asyncnn.tools.bench.report import Goal, GoalVerdict, ReportTable, judge
from asyncnn.tools.bench.rounds import Call, Figure, Figures, Order

MESSAGE_BYTES = 256
MESSAGES = 2000
"""Messages of one run of a stream."""

BATCH = 16
IDLE_S = 0.003
EXCHANGE = Exchange(MESSAGE_BYTES, MESSAGE_BYTES)

_QUANTUM, _COUNT = 8, 3072
_STREAM_COUNT = 1024
_ACKNOWLEDGED = bytes(_QUANTUM)
_STREAM = Exchange(MESSAGE_BYTES, _QUANTUM)

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

BURST = "burst"
QUEUE, PIPE, GRPC, ICEORYX = "queue", "pipe", "grpc_aio", "iceoryx2"
QUEUE_IDLE, PIPE_IDLE = "queue_idle", "pipe_idle"
QUEUE_HOGS, PIPE_HOGS = "queue_hogs", "pipe_hogs"
QUEUE_STREAM, QUEUE_BATCHES = "queue_stream", "queue_batches"
PIPE_STREAM = "pipe_stream"
MILLISECOND = "a millisecond"


@contextlib.asynccontextmanager
async def burst_execution(cpu: int) -> AsyncIterator[Call]:
    """Execute a ready request, at the HAL, in a driver process on another CPU."""
    async with noop.no_op_driver_on(cpu) as device:
        prepared = await device.prepare(noop.tiny_addition())
        request = noop.addition_request(prepared)
        with await BurstController.open(prepared.hal) as burst:
            yield partial(burst.execute, request)


@contextlib.asynccontextmanager
async def burst_run(cpu: int) -> AsyncIterator[Call]:
    """Run a model on arrays in place, as an application would, likewise."""
    async with noop.no_op_driver_on(cpu) as device:
        prepared = await device.prepare(noop.tiny_addition())
        async with prepared.burst() as burst:
            yield burst.run_in_place


@contextlib.asynccontextmanager
async def burst_parts() -> AsyncIterator[Mapping[str, Call]]:
    """Yield the parts of an execution, one call each."""
    async with noop.NoOpDevice() as device:
        prepared = await Device("no-op", device).prepare(noop.tiny_addition())
        request = noop.addition_request(prepared)
        slots = PoolSlots(lambda _: None)
        pools = [pool for pool in request.pools if isinstance(pool, hal.Memory)]
        shape = RequestShape.of(request.inputs, request.outputs, len(pools))
        packet = shape.encode(slots.of(pools), hal.MeasureTiming.NO)
        binder = Binder(prepared.hal, slots, SparseLogger(logging.getLogger(__name__)))
        await binder.bind(packet)
        shapes = (hal.OutputShape((noop.LENGTH,), True),)
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
def _received(pipe: Pipe) -> Iterator[list[MessageQueue]]:
    pipe.send_bytes(READY)
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(2):
            ints = pipe.recv()
            handle = hal.Handle(tuple(recv_handle(pipe) for _ in range(3)), ints)
            opened.append(stack.enter_context(MessageQueue.open(handle)))
        yield opened


def _serve_echo(pipe: Pipe, response: int) -> None:
    answer = bytes(response)
    with _received(pipe) as (requests, answers):

        def on_ready() -> None:
            requests.read_nowait()
            answers.write_nowait(answer)

        asyncio.run(_serve(requests, on_ready))


def _serve_stream(pipe: Pipe) -> None:
    with _received(pipe) as (messages, answers):
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


def _echo(make: Callable[[int, Exchange], Starting]) -> Start:
    return lambda place: make(place.cpu, EXCHANGE)


def _part(name: str) -> Start:
    async def start(place: Place) -> Call:
        parts: Mapping[str, Call] = await place.shared(burst_parts)
        return parts[name]

    return start


@contextlib.contextmanager
def _hogged(cpus: CpuPair) -> Iterator[None]:
    with hogs({*cpus}) as computing, computing():
        yield


_GROUPS = (
    Group(
        {
            BURST: lambda place: burst_execution(place.cpu),
            "burst_run": lambda place: burst_run(place.cpu),
            **{name: _part(name) for name in PARTS},
            QUEUE: _echo(queue_echo),
            PIPE: _echo(peers.pipe_echo),
            "asyncio_streams": _echo(peers.streams_echo),
            "uvloop_streams": lambda place: peers.uvloop_echo(*place.cpus, EXCHANGE),
            "pyzmq": _echo(peers.zmq_echo),
            GRPC: _echo(peers.grpc_echo),
            ICEORYX: _echo(peers.iceoryx_echo),
        }
    ),
    Group(
        {QUEUE_IDLE: _echo(queue_echo), PIPE_IDLE: _echo(peers.pipe_echo)},
        batch_us=100_000.0,
        pause_s=IDLE_S,
    ),
    Group(
        {QUEUE_HOGS: _echo(queue_echo), PIPE_HOGS: _echo(peers.pipe_echo)},
        beside=_hogged,
    ),
    Group(
        {
            QUEUE_STREAM: lambda place: queue_stream(place.cpu, 1),
            QUEUE_BATCHES: lambda place: queue_stream(place.cpu, BATCH),
            PIPE_STREAM: lambda place: peers.pipe_echo(place.cpu, _STREAM, MESSAGES),
        },
        per=MESSAGES,
    ),
)
"""Exchanges at once, after idleness and beside others; then messages one way."""

_STREAM_GOALS = (
    Goal(QUEUE_STREAM, PIPE_STREAM, 1 / 8, 1 / 6),
    Goal(QUEUE_BATCHES, PIPE_STREAM, 1 / 60, 1 / 40),
)

GOALS = {
    True: (
        Goal(BURST, PIPE, 0.12, 0.2),
        # What an execution adds to its two messages depends least on the machine.
        Goal(BURST, QUEUE, 8.0),
        Goal(BURST, GRPC, 1 / 75, 1 / 50),
        Goal(BURST, ICEORYX, 0.6, 1.0),
        Goal(QUEUE, PIPE, 0.06, 0.1),
        Goal(QUEUE_IDLE, PIPE_IDLE, 0.3, 1.0),
        Goal(QUEUE_HOGS, PIPE_HOGS, 1.0),
        Goal(QUEUE_HOGS, MILLISECOND, 1.0),
        *_STREAM_GOALS,
    ),
    False: (
        Goal(BURST, PIPE, 0.65, 1.0),
        Goal(BURST, QUEUE, 2.0),
        Goal(BURST, GRPC, 1 / 23, 1 / 15),
        Goal(QUEUE, PIPE, 0.5, 0.6),
        # What is wanted here is that sleeping costs no more than a blocking peer's.
        Goal(QUEUE_IDLE, PIPE_IDLE, 1.0),
        Goal(QUEUE_HOGS, MILLISECOND, 1.0),
        *_STREAM_GOALS,
    ),
}
"""By whether the two processes have different CPUs."""

_HEADLINE = Goal(BURST, "best " + PIPE, 0.35, 0.5)
"""Of a burst across CPUs and a Pipe where that is at its best."""

_PACKAGES = ("grpcio", "iceoryx2", "pyzmq", "uvloop")


class BurstReport(PlacedReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench burst --json``.

    ``headline`` compares placements; there is none on a machine with one CPU.
    """

    CONTENDERS: ClassVar[Mapping[str, str]] = {
        BURST: "a burst: no-op execution of a ready request at the HAL, awaited",
        "burst_run": "a burst: run_in_place of the same, awaited",
        **PARTS,
        QUEUE: "a pair of queues, awaited at both ends",
        PIPE: "multiprocessing.Pipe, blocking",
        "asyncio_streams": "asyncio streams, Unix socket",
        "uvloop_streams": "the same on uvloop",
        "pyzmq": "pyzmq request and reply, Unix socket, awaited",
        GRPC: "grpc.aio unary call, Unix socket",
        ICEORYX: "iceoryx2 request and response, looking again and again",
        QUEUE_IDLE: f"queues, after {IDLE_S * 1000:g} ms of idleness",
        PIPE_IDLE: "multiprocessing.Pipe, likewise",
        QUEUE_HOGS: "queues, while another process spins on each CPU",
        PIPE_HOGS: "multiprocessing.Pipe, likewise",
        QUEUE_STREAM: "one way: a queue, a message at a time",
        QUEUE_BATCHES: f"one way: a queue, {BATCH} messages at a time",
        PIPE_STREAM: "one way: multiprocessing.Pipe",
    }
    GOALS = GOALS[True]
    TITLE = "microseconds: median over the rounds of medians, p99"

    exchange: Exchange
    headline: GoalVerdict | None = None
    is_ring_compiled: bool = IS_COMPILED

    def time(self, placement: Placement, contender: str) -> str:
        """Return the median and the 99th percentile as text."""
        if contender not in placement.us:
            return "-"
        return f"{placement.us[contender]:.3g} {placement.p99_us[contender]:8.4g}"

    def tables(self) -> Iterator[ReportTable]:
        """Yield the one table; the headline comes last."""
        (table,) = super().tables()
        yield table.ended(f"{BURST} / best {PIPE} of all placements", self.headline, 1)

    def notes(self) -> Iterator[str]:
        """Yield which ring was measured, sizes, and who could not be measured."""
        ring = "the compiled ring" if self.is_ring_compiled else "the ring in Python"
        yield f"queues and bursts have {ring}"
        sent, received = self.exchange.request, self.exchange.response
        yield f"{sent} bytes to the other process and {received} back"
        yield from super().notes()


def burst(order: Order) -> BurstReport:
    """Measure with the two processes on different CPUs, then on the same one."""
    judged = partial(judge_burst, gates=order.gates)
    found = tuple(placements(_GROUPS, judged, order.rounds))
    both = [(each.is_apart, each.figures) for each in found]
    return BurstReport(
        environment=describe_environment(**installed_versions(*_PACKAGES)),
        rounds=order.rounds,
        exchange=EXCHANGE,
        placements=found,
        headline=judge_headline(both, gates=order.gates),
    )


def judge_burst(
    figures: Figures, is_apart: bool, *, gates: bool = False
) -> tuple[GoalVerdict, ...]:
    """Hold figures against the goals, or the gates; what was not measured is left out.

    :param is_apart: whether the two processes had different CPUs.
    """
    known = dict(figures)
    if QUEUE_HOGS in figures:
        rounds = len(figures[QUEUE_HOGS].round_medians_us)
        known[MILLISECOND] = Figure((1000.0,) * rounds)
    return judge(GOALS[is_apart], known, gates=gates)


def judge_headline(
    placements: Collection[tuple[bool, Figures]], *, gates: bool = False
) -> GoalVerdict | None:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    None unless both were measured.
    """
    bursts = [f[BURST].us for is_apart, f in placements if is_apart and BURST in f]
    pipes = [figures[PIPE].us for _, figures in placements if PIPE in figures]
    if not bursts or not pipes:
        return None
    return _HEADLINE.judge(min(bursts) / min(pipes), gates=gates)
