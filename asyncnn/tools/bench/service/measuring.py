"""Measures executions in a driver process in each placement."""

import asyncio
import contextlib
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.drivers import driver_on, no_op_driver_on
from asyncnn.tools.bench.echoes import (
    Exchange,
    grpc_echo,
    grpc_version,
    pipe_echo,
    streams_echo,
)
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.placement import cpu_pairs, describe_pair, pinned
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Call,
    Figure,
    measure,
    timed_await,
    timed_call,
)
from asyncnn.tools.bench.service.calls import (
    exchanged_bytes,
    execute_call,
    image_call,
    run_call,
)
from asyncnn.tools.bench.service.peers import IMAGE_SHAPE, executor_image, pipe_image
from asyncnn.tools.bench.service.report import (
    ADD,
    DESCRIPTIONS,
    EXECUTE,
    GRPC,
    IMAGE,
    IMAGE_COPIED,
    IMAGE_EXECUTOR,
    IMAGE_PIPE,
    PIPE,
    RUN,
    STREAMS,
    ServicePlacement,
    ServiceReport,
    judge_service,
)

_BATCH_US = 20_000.0


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
