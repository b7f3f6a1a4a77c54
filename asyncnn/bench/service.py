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
import inspect
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec
import numpy as np

from asyncnn.bench.environment import Environment, describe_environment
from asyncnn.bench.litert import PeerMissingError
from asyncnn.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_await,
    timed_call,
)
from asyncnn.bench.service_driver import (
    driver_on,
    exchanged_bytes,
    execute_call,
    image_call,
    no_op_driver_on,
    run_call,
)
from asyncnn.bench.service_peers import (
    IMAGE_SHAPE,
    Call,
    Exchange,
    executor_image,
    grpc_echo,
    grpc_version,
    pinned,
    pipe_echo,
    pipe_image,
    streams_echo,
)
from asyncnn.hal.operations.bound import Array

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

DESCRIPTIONS = {
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
"""Contenders in the order in which they are reported."""

_BATCH_US = 20_000.0


GOALS = (
    RatioGoal(EXECUTE, STREAMS, 1.6),
    RatioGoal(EXECUTE, GRPC, 0.5),
    RatioGoal(IMAGE, IMAGE_PIPE, 0.3),
    RatioGoal(IMAGE, IMAGE_EXECUTOR, 0.1),
)
"""They hold in each placement."""


class ServicePlacement(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender. Those refused have a reason instead."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdicts: tuple[RatioVerdict, ...]
    refusals: dict[str, str]


class ServiceReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench service --json``."""

    environment: Environment
    rounds: int
    exchange: Exchange
    placements: tuple[ServicePlacement, ...]

    @property
    def met(self) -> bool:
        """Whether every goal whose peer was measured was met in every placement."""
        return all(v.met for placed in self.placements for v in placed.verdicts)


def bench_service(*, rounds: int = DEFAULT_ROUNDS) -> ServiceReport:
    """Measure with the two processes on different CPUs, then on the same one.

    A machine with one CPU is measured once.
    """
    exchange = exchanged_bytes()
    peers: dict[str, str] = {}
    with contextlib.suppress(PeerMissingError):
        peers["grpcio"] = grpc_version()
    return ServiceReport(
        environment=describe_environment(**peers),
        rounds=rounds,
        exchange=exchange,
        placements=tuple(
            _bench(client, driver, exchange, rounds) for client, driver in cpu_pairs()
        ),
    )


def cpu_pairs() -> list[tuple[int, int]]:
    """Return the CPUs of this process and of another one: apart, then together."""
    *others, last = sorted(os.sched_getaffinity(0))  # the first serve most interrupts
    return [*((last, other) for other in others[-1:]), (last, last)]


def describe_pair(client: int, driver: int) -> str:
    """Return in words where the two processes run."""
    where = f"application on CPU {client}, the other process on "
    return where + (f"CPU {driver}" if driver != client else "it too")


def _bench(
    client: int, driver: int, exchange: Exchange, rounds: int
) -> ServicePlacement:
    refusals: dict[str, str] = {}
    with pinned(client):
        figures = asyncio.run(_measure(driver, exchange, rounds, refusals))
    return ServicePlacement(
        placement=describe_pair(client, driver),
        figures=figures,
        us={name: figures[name].us for name in DESCRIPTIONS if name in figures},
        verdicts=judge_service(figures),
        refusals=refusals,
    )


def judge_service(figures: Mapping[str, Figure]) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals; peers that were not measured are left out."""
    return tuple(judge_ratio(goal, figures) for goal in GOALS if goal.peer in figures)


async def _measure(
    cpu: int, exchange: Exchange, rounds: int, refusals: dict[str, str]
) -> dict[str, Figure]:
    image = np.random.default_rng(0).random(IMAGE_SHAPE, np.float32)
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(driver_on(cpu))
        no_op = await stack.enter_async_context(no_op_driver_on(cpu))
        calls = {
            EXECUTE: await execute_call(no_op),
            ADD: await execute_call(device),
            RUN: await run_call(device),
            IMAGE: await image_call(device, image, in_place=True),
            IMAGE_COPIED: await image_call(device, image, in_place=False),
        }
        for name, peer in _peers(cpu, exchange, image).items():
            try:
                calls[name] = await stack.enter_async_context(peer)
            except PeerMissingError as error:
                refusals[name] = str(error)
        batches = [await _timed(name, call) for name, call in calls.items()]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


def _peers(
    cpu: int, exchange: Exchange, image: Array
) -> dict[str, AbstractAsyncContextManager[Call]]:
    return {
        STREAMS: streams_echo(cpu, exchange),
        GRPC: grpc_echo(cpu, exchange),
        PIPE: pipe_echo(cpu, exchange),
        IMAGE_PIPE: pipe_image(cpu, image),
        IMAGE_EXECUTOR: executor_image(cpu, image),
    }


async def _timed(name: str, call: Call) -> Batch:
    first: Any = call()
    if inspect.isawaitable(first):
        await first
        return timed_await(name, call)
    return timed_call(name, call)
