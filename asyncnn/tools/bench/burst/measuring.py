"""Measures bursts, queues and their peers in each placement."""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from time import perf_counter_ns
from typing import Any

from asyncnn.tools.bench.burst.execution import (
    BURST,
    BURST_RUN,
    burst_execution,
    burst_parts,
    burst_run,
)
from asyncnn.tools.bench.burst.goals import (
    GRPC,
    ICEORYX,
    IDLE_S,
    PIPE,
    PIPE_HOGS,
    PIPE_IDLE,
    PIPE_STREAM,
    QUEUE,
    QUEUE_BATCHES,
    QUEUE_HOGS,
    QUEUE_IDLE,
    QUEUE_STREAM,
    STREAMS,
    UVLOOP,
    ZMQ,
    judge_burst,
    judge_headline,
)
from asyncnn.tools.bench.burst.peers import (
    ManyCalls,
    iceoryx_echo,
    installed_versions,
    pipe_stream,
    uvloop_echo,
    zmq_echo,
)
from asyncnn.tools.bench.burst.report import BurstPlacement, BurstReport
from asyncnn.tools.bench.burst.transport import (
    BATCH,
    MESSAGE_BYTES,
    MESSAGES,
    queue_echo,
    queue_stream,
)
from asyncnn.tools.bench.echoes import Exchange, grpc_echo, pipe_echo, streams_echo
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.placement import cpu_pairs, describe_pair, pinned
from asyncnn.tools.bench.processes import READY, Pipe, process
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Batch, Call, Figure, measure

EXCHANGE = Exchange(MESSAGE_BYTES, MESSAGE_BYTES)

_P99 = " p99"
_BATCH_US = 20_000.0
_IDLE_BATCH_US = 100_000.0


def bench_burst(*, rounds: int = DEFAULT_ROUNDS, gates: bool = False) -> BurstReport:
    """Measure with the two processes on different CPUs, then on the same one.

    :param gates: judge by what any machine has to reach, not by what is wanted.
    """
    placements = [_bench(*cpus, rounds, gates) for cpus in cpu_pairs()]
    return BurstReport(
        environment=describe_environment(**installed_versions()),
        rounds=rounds,
        exchange=EXCHANGE,
        placements=tuple(placements),
        headline=judge_headline(
            [(p.is_apart, p.figures) for p in placements], gates=gates
        ),
    )


def _bench(client: int, other: int, rounds: int, gates: bool) -> BurstPlacement:
    refusals: dict[str, str] = {}
    with pinned(client):
        measured = asyncio.run(_measure(client, other, rounds, refusals))
    figures = {name: f for name, f in measured.items() if not name.endswith(_P99)}
    is_apart = client != other
    return BurstPlacement(
        placement=describe_pair(client, other),
        is_apart=is_apart,
        figures=figures,
        us={name: figure.us for name, figure in figures.items()},
        p99_us={name: measured[name + _P99].us for name in figures},
        verdicts=judge_burst(figures, is_apart=is_apart, gates=gates),
        refusals=refusals,
    )


async def _measure(
    client: int, cpu: int, rounds: int, refusals: dict[str, str]
) -> dict[str, Figure]:
    figures = await _measure_busy(client, cpu, rounds, refusals)
    figures |= await _measure_disturbed(client, cpu, rounds)
    return figures | await _measure_streams(cpu, rounds)


async def _measure_busy(
    client: int, cpu: int, rounds: int, refusals: dict[str, str]
) -> dict[str, Figure]:
    """Measure exchanges that follow one another at once."""
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(queue_echo(cpu, EXCHANGE))
        pipe = await stack.enter_async_context(pipe_echo(cpu, EXCHANGE))
        execution = await stack.enter_async_context(burst_execution(cpu))
        run = await stack.enter_async_context(burst_run(cpu))
        parts = await stack.enter_async_context(burst_parts())
        own = {QUEUE: queue, PIPE: pipe, BURST: execution, BURST_RUN: run, **parts}
        busy = [await _timed(name, call) for name, call in own.items()]
        for name, peer in _peers(client, cpu).items():
            try:
                call = await stack.enter_async_context(peer)
            except PeerMissingError as error:
                refusals[name] = str(error)
            else:
                remote = isinstance(call, ManyCalls)
                busy.append(_remote(name, call) if remote else await _timed(name, call))
        return await measure(busy, rounds=rounds, batch_us=_BATCH_US)


async def _measure_disturbed(client: int, cpu: int, rounds: int) -> dict[str, Figure]:
    """Measure exchanges after idleness and beside others, with no peers around."""
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(queue_echo(cpu, EXCHANGE))
        pipe = await stack.enter_async_context(pipe_echo(cpu, EXCHANGE))
        idle = [
            await _timed(QUEUE_IDLE, queue, pause_s=IDLE_S),
            await _timed(PIPE_IDLE, pipe, pause_s=IDLE_S),
        ]
        figures = await measure(idle, rounds=rounds, batch_us=_IDLE_BATCH_US)
        with _hogs({client, cpu}):
            hogs = [await _timed(QUEUE_HOGS, queue), await _timed(PIPE_HOGS, pipe)]
            return figures | await measure(hogs, rounds=rounds, batch_us=_BATCH_US)


async def _measure_streams(cpu: int, rounds: int) -> dict[str, Figure]:
    contenders = {
        QUEUE_STREAM: queue_stream(cpu, 1),
        QUEUE_BATCHES: queue_stream(cpu, BATCH),
        PIPE_STREAM: pipe_stream(cpu),
    }
    async with AsyncExitStack() as stack:
        batches = [
            await _timed(name, await stack.enter_async_context(stream), per=MESSAGES)
            for name, stream in contenders.items()
        ]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


def _peers(client: int, cpu: int) -> dict[str, AbstractAsyncContextManager[Any]]:
    return {
        STREAMS: streams_echo(cpu, EXCHANGE),
        UVLOOP: uvloop_echo(client, cpu, EXCHANGE),
        ZMQ: zmq_echo(cpu, EXCHANGE),
        GRPC: grpc_echo(cpu, EXCHANGE),
        ICEORYX: iceoryx_echo(cpu, EXCHANGE),
    }


async def _timed(figure: str, call: Call, *, pause_s: float = 0, per: int = 1) -> Batch:
    """Return the batch of a call that may have to be awaited, with 99th percentiles."""

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        samples = []
        for _ in range(runs):
            if pause_s:
                await asyncio.sleep(pause_s)
            started = perf_counter_ns()
            result = call()
            if is_awaited:
                await result
            samples.append((perf_counter_ns() - started) / 1000 / per)
        return _summary(figure, samples)

    first: Any = call()
    is_awaited = inspect.isawaitable(first)
    if is_awaited:
        await first
    return batch


def _remote(figure: str, calls: ManyCalls) -> Batch:
    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        return _summary(figure, calls.measure(runs))

    return batch


def _summary(figure: str, samples: list[float]) -> Mapping[str, Sequence[float]]:
    samples.sort()
    return {figure: samples, figure + _P99: [samples[len(samples) * 99 // 100]]}


@contextlib.contextmanager
def _hogs(cpus: set[int]) -> Iterator[None]:
    """Have a process want each of the CPUs all the time."""
    with ExitStack() as stack:
        for cpu in cpus:
            stack.enter_context(process(cpu, _spin))
        yield


def _spin(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    while True:
        pass
