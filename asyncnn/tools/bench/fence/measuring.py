"""Measures waits, chains and pipelines in each placement."""

import asyncio
from contextlib import AsyncExitStack

from asyncnn.runtime.device import Device
from asyncnn.tools.bench.drivers import no_op_driver_on
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.fence.chains import awaited_executions, fenced_chain
from asyncnn.tools.bench.fence.pipelines import one_by_one, pipelined, queued
from asyncnn.tools.bench.fence.report import (
    AWAITED,
    CHAIN,
    DESCRIPTIONS,
    EVENT,
    EVENTFD,
    ONE_BY_ONE,
    PENDING,
    PENDING_FD,
    PIPELINE,
    QUEUES,
    SIGNALLED,
    SLEEP,
    FencePlacement,
    FenceReport,
    judge_fences,
)
from asyncnn.tools.bench.fence.waits import (
    Wait,
    pending_event,
    pending_eventfd,
    pending_fence,
    pending_fence_of_another,
    signalled_fence,
    turn_of_the_loop,
)
from asyncnn.tools.bench.noop import NoOpDevice
from asyncnn.tools.bench.placement import cpu_pairs, describe_pair, pinned
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Figure, measure, timed_await

_WAITS: dict[str, Wait] = {
    SIGNALLED: signalled_fence(),
    SLEEP: turn_of_the_loop(),
    PENDING: pending_fence,
    EVENT: pending_event,
    EVENTFD: pending_eventfd,
    PENDING_FD: pending_fence_of_another,
}

_BATCH_US = 20_000.0


def bench_fence(*, rounds: int = DEFAULT_ROUNDS) -> FenceReport:
    """Measure with a driver process on another CPU, then on the same one."""
    return FenceReport(
        environment=describe_environment(),
        rounds=rounds,
        placements=tuple(
            _bench(client, driver, rounds) for client, driver in cpu_pairs()
        ),
    )


def _bench(client: int, driver: int, rounds: int) -> FencePlacement:
    with pinned(client):
        figures = asyncio.run(_measure(driver, rounds))
    return FencePlacement(
        placement=describe_pair(client, driver),
        figures=figures,
        us={name: figures[name].us for name in DESCRIPTIONS},
        verdicts=judge_fences(figures),
    )


async def _measure(driver: int, rounds: int) -> dict[str, Figure]:
    async with AsyncExitStack() as stack:
        remote = await stack.enter_async_context(no_op_driver_on(driver))
        local = Device("no-op", await stack.enter_async_context(NoOpDevice()))
        waits: dict[str, Wait] = {
            **_WAITS,
            CHAIN: await fenced_chain(remote),
            AWAITED: await awaited_executions(remote),
            PIPELINE: await pipelined(local, stack),
            ONE_BY_ONE: await one_by_one(local),
            QUEUES: await queued(stack),
        }
        batches = [timed_await(name, wait) for name, wait in waits.items()]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)
