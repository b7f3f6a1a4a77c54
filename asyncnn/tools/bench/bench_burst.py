"""``asyncnn bench burst``: the way to a driver process through shared memory.

Bytes through a pair of queues and back, beside other ways to exchange as many with
another process: one after the other, after some milliseconds of idleness, and while
every CPU is wanted by somebody else; and messages one way. All of it with the two
processes on different CPUs and on the same one.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeAlias

from asyncnn.fmq import IS_COMPILED
from asyncnn.tools.bench import burst_contenders as contenders
from asyncnn.tools.bench import peers
from asyncnn.tools.bench.burst_contenders import BATCH, MESSAGE_BYTES, MESSAGES, PARTS
from asyncnn.tools.bench.environment import (
    CpuPair,
    describe_environment,
    installed_versions,
)
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.processes import (
    Figures,
    Refusals,
    hogs,
    in_each_placement,
)
from asyncnn.tools.bench.report import (
    Goal,
    PlacedReport,
    Placement,
    Table,
    Verdict,
    judge,
)
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Call,
    Figure,
    ManyCalls,
    measure,
    timed,
)

_Limits: TypeAlias = tuple[float | None, float]
"""The largest ratio that is wanted, and the gate: the largest on any machine.

Where nothing else is wanted, the gate is the goal.
"""

BURST = "burst"
BURST_RUN = "burst_run"
QUEUE = "queue"
PIPE = "pipe"
STREAMS = "asyncio_streams"
UVLOOP = "uvloop_streams"
ZMQ = "pyzmq"
GRPC = "grpc_aio"
ICEORYX = "iceoryx2"
QUEUE_IDLE = "queue_idle"
PIPE_IDLE = "pipe_idle"
QUEUE_HOGS = "queue_hogs"
PIPE_HOGS = "pipe_hogs"
QUEUE_STREAM = "queue_stream"
QUEUE_BATCHES = "queue_batches"
PIPE_STREAM = "pipe_stream"
MILLISECOND = "a millisecond"

IDLE_S = 0.003

CONTENDERS = {
    BURST: "a burst: no-op execution of a ready request at the HAL, awaited",
    BURST_RUN: "a burst: run_in_place of the same, awaited",
    **PARTS,
    QUEUE: "a pair of queues, awaited at both ends",
    PIPE: "multiprocessing.Pipe, blocking",
    STREAMS: "asyncio streams, Unix socket",
    UVLOOP: "the same on uvloop",
    ZMQ: "pyzmq request and reply, Unix socket, awaited",
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

_LIMITS: dict[tuple[str, str], tuple[_Limits, _Limits | None]] = {
    (BURST, PIPE): ((0.12, 0.2), (0.65, 1.0)),
    # What an execution adds to its two messages depends least on the machine.
    (BURST, QUEUE): ((None, 8.0), (None, 2.0)),
    (BURST, GRPC): ((1 / 75, 1 / 50), (1 / 23, 1 / 15)),
    (BURST, ICEORYX): ((0.6, 1.0), None),
    (QUEUE, PIPE): ((0.06, 0.1), (0.5, 0.6)),
    # What is wanted on one CPU is that sleeping costs no more than a blocking peer's.
    (QUEUE_IDLE, PIPE_IDLE): ((0.3, 1.0), (None, 1.0)),
    (QUEUE_HOGS, PIPE_HOGS): ((1.0, 1.0), None),
    (QUEUE_HOGS, MILLISECOND): ((None, 1.0), (None, 1.0)),
    (QUEUE_STREAM, PIPE_STREAM): ((1 / 8, 1 / 6), (1 / 8, 1 / 6)),
    (QUEUE_BATCHES, PIPE_STREAM): ((1 / 60, 1 / 40), (1 / 60, 1 / 40)),
}
"""Limits on ratios, on different CPUs and on the same one; None is no limit."""

_HEADLINE: _Limits = (0.35, 0.5)
"""On the ratio of a burst across CPUs to a Pipe where that is at its best."""


EXCHANGE = Exchange(MESSAGE_BYTES, MESSAGE_BYTES)

_PACKAGES = ("grpcio", "iceoryx2", "pyzmq", "uvloop")
_P99 = " p99"
_BATCH_US = 20_000.0
_IDLE_BATCH_US = 100_000.0


def goals_of(*, is_apart: bool, gates: bool = False) -> tuple[Goal, ...]:
    """Return the goals of a placement, or its ``gates``, which are wider."""
    return tuple(
        Goal(*pair, _chosen(limits, gates))
        for pair, (apart, together) in _LIMITS.items()
        if (limits := apart if is_apart else together) is not None
    )


def _chosen(limits: _Limits, gates: bool) -> float:
    goal, gate = limits
    return gate if gates or goal is None else goal


class BurstPlacement(Placement, frozen=True, kw_only=True):
    """Figures of one placement; ``p99_us`` are medians of 99th percentiles."""

    is_apart: bool
    p99_us: dict[str, float]

    def time(self, contender: str) -> str:
        """Return the median and the 99th percentile as text."""
        if contender not in self.us:
            return "-"
        return f"{self.us[contender]:.3g} {self.p99_us[contender]:8.4g}"


class BurstReport(PlacedReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench burst --json``.

    ``headline`` compares placements; there is none on a machine with one CPU.
    """

    CONTENDERS = CONTENDERS
    GOALS = goals_of(is_apart=True)
    TITLE = "microseconds: median over the rounds of medians, p99"

    exchange: Exchange
    placements: tuple[BurstPlacement, ...]
    headline: Verdict | None = None
    is_ring_compiled: bool = IS_COMPILED

    def outcomes(self) -> Iterator[bool]:
        """Yield those of every placement, and the headline's."""
        yield from super().outcomes()
        if self.headline is not None:
            yield self.headline.met

    def tables(self) -> Iterator[Table]:
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


def bench(*, rounds: int = DEFAULT_ROUNDS, gates: bool = False) -> BurstReport:
    """Measure with the two processes on different CPUs, then on the same one.

    :param gates: judge by what any machine has to reach, not by what is wanted.
    """
    measure = partial(_measure, rounds)
    placements = [_placed(*each, gates) for each in in_each_placement(measure)]
    return BurstReport(
        environment=describe_environment(**installed_versions(*_PACKAGES)),
        rounds=rounds,
        exchange=EXCHANGE,
        placements=tuple(placements),
        headline=judge_headline(
            [(p.is_apart, p.figures) for p in placements], gates=gates
        ),
    )


def _placed(
    cpus: CpuPair, measured: Figures, refusals: Refusals, gates: bool
) -> BurstPlacement:
    figures = {name: f for name, f in measured.items() if not name.endswith(_P99)}
    return BurstPlacement(
        placement=str(cpus),
        is_apart=cpus.is_apart,
        figures=figures,
        p99_us={name: measured[name + _P99].us for name in figures},
        verdicts=judge_burst(figures, is_apart=cpus.is_apart, gates=gates),
        refusals=refusals,
    )


def judge_burst(
    figures: Mapping[str, Figure], *, is_apart: bool, gates: bool = False
) -> tuple[Verdict, ...]:
    """Hold figures against the goals, or the gates; what was not measured is left out.

    :param is_apart: whether the two processes had different CPUs.
    """
    goals = goals_of(is_apart=is_apart, gates=gates)
    verdicts = judge(goals, figures)
    in_ms = [
        goal.judge(figures[goal.figure].us / 1000)
        for goal in goals
        if goal.peer == MILLISECOND and goal.figure in figures
    ]
    return (*verdicts, *in_ms)


def judge_headline(
    placements: Collection[tuple[bool, Mapping[str, Figure]]], *, gates: bool = False
) -> Verdict | None:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    None unless both were measured.
    """
    bursts = [f[BURST].us for is_apart, f in placements if is_apart and BURST in f]
    pipes = [figures[PIPE].us for _, figures in placements if PIPE in figures]
    if not bursts or not pipes:
        return None
    goal = Goal(BURST, "best " + PIPE, _chosen(_HEADLINE, gates))
    return goal.judge(min(bursts) / min(pipes))


async def _measure(rounds: int, cpus: CpuPair, refusals: Refusals) -> Figures:
    figures = await _measure_busy(cpus, rounds, refusals)
    figures |= await _measure_disturbed(cpus, rounds)
    return figures | await _measure_streams(cpus.other, rounds)


async def _measure_busy(cpus: CpuPair, rounds: int, refusals: Refusals) -> Figures:
    """Measure exchanges that follow one another at once."""
    cpu = cpus.other
    own = {
        QUEUE: contenders.queue_echo(cpu, EXCHANGE),
        PIPE: peers.pipe_echo(cpu, EXCHANGE),
        BURST: contenders.burst_execution(cpu),
        BURST_RUN: contenders.burst_run(cpu),
    }
    others = {
        STREAMS: peers.streams_echo(cpu, EXCHANGE),
        UVLOOP: peers.uvloop_echo(cpus.client, cpu, EXCHANGE),
        ZMQ: peers.zmq_echo(cpu, EXCHANGE),
        GRPC: peers.grpc_echo(cpu, EXCHANGE),
        ICEORYX: peers.iceoryx_echo(cpu, EXCHANGE),
    }
    async with AsyncExitStack() as stack:
        calls = await peers.entered(stack, own, refusals)
        calls |= await stack.enter_async_context(contenders.burst_parts())
        calls |= await peers.entered(stack, others, refusals)
        batches = [await _timed(name, call) for name, call in calls.items()]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


async def _measure_disturbed(cpus: CpuPair, rounds: int) -> Figures:
    """Measure exchanges after idleness and beside others, with no peers around."""
    async with (
        contenders.queue_echo(cpus.other, EXCHANGE) as queue,
        peers.pipe_echo(cpus.other, EXCHANGE) as pipe,
    ):
        idle = [
            await _timed(QUEUE_IDLE, queue, pause_s=IDLE_S),
            await _timed(PIPE_IDLE, pipe, pause_s=IDLE_S),
        ]
        figures = await measure(idle, rounds=rounds, batch_us=_IDLE_BATCH_US)
        with hogs({*cpus}) as computing, computing():
            hogged = [await _timed(QUEUE_HOGS, queue), await _timed(PIPE_HOGS, pipe)]
            return figures | await measure(hogged, rounds=rounds, batch_us=_BATCH_US)


async def _measure_streams(cpu: int, rounds: int) -> Figures:
    streams = {
        QUEUE_STREAM: contenders.queue_stream(cpu, 1),
        QUEUE_BATCHES: contenders.queue_stream(cpu, BATCH),
        PIPE_STREAM: contenders.pipe_stream(cpu),
    }
    async with AsyncExitStack() as stack:
        batches = [
            await _timed(name, await stack.enter_async_context(stream), per=MESSAGES)
            for name, stream in streams.items()
        ]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


async def _timed(
    figure: str, call: Call | ManyCalls, *, pause_s: float = 0, per: int = 1
) -> Batch:
    """Return the batch of a call of ``per`` messages, with 99th percentiles."""
    once = await timed(figure, call)

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        samples: list[float] = []
        if pause_s:
            for _ in range(runs):
                await asyncio.sleep(pause_s)
                samples.extend((await once(1))[figure])
        else:
            samples.extend(us / per for us in (await once(runs))[figure])
        samples.sort()
        return {figure: samples, figure + _P99: [samples[len(samples) * 99 // 100]]}

    return batch
