"""``asyncnn bench fence``: what it costs to wait for fences, beside other waits.

Single waits within a process; a hundred executions in a driver process, chained by
fences or awaited one by one; frames through four stages. Nothing is computed, as it is
the waiting that is measured.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec

from asyncnn.bench.environment import Environment, describe_environment
from asyncnn.bench.fence_chains import LENGTH, awaited_executions, fenced_chain
from asyncnn.bench.fence_pipelines import (
    FRAMES,
    STAGES,
    one_by_one,
    pipelined,
    queued,
)
from asyncnn.bench.fence_waits import (
    Wait,
    pending_event,
    pending_eventfd,
    pending_fence,
    pending_fence_of_another,
    signalled_fence,
    turn_of_the_loop,
)
from asyncnn.bench.noop import NoOpDevice
from asyncnn.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.bench.rounds import DEFAULT_ROUNDS, Figure, measure, timed_await
from asyncnn.bench.service import cpu_pairs, describe_pair
from asyncnn.bench.service_driver import no_op_driver_on
from asyncnn.bench.service_peers import pinned
from asyncnn.runtime.device import Device

SIGNALLED = "signalled"
SLEEP = "sleep"
PENDING = "pending"
PENDING_FD = "pending_fd"
EVENT = "asyncio_event"
EVENTFD = "eventfd"
CHAIN = "chain"
AWAITED = "awaited"
PIPELINE = "pipeline"
ONE_BY_ONE = "one_by_one"
QUEUES = "queues"

DESCRIPTIONS = {
    SIGNALLED: "a signalled fence, awaited",
    SLEEP: "asyncio.sleep(0), awaited",
    PENDING: "a fence made, awaited, and signalled by the loop",
    EVENT: "an asyncio.Event, likewise",
    EVENTFD: "an eventfd with add_reader, likewise",
    PENDING_FD: "a fence of another owner, likewise, by its descriptor",
    CHAIN: f"{LENGTH} no-ops in a driver process, chained by fences",
    AWAITED: f"{LENGTH} no-ops in a driver process, each awaited",
    PIPELINE: f"{FRAMES} frames, {STAGES} stages: asyncnn.pipeline",
    ONE_BY_ONE: f"{FRAMES} frames, {STAGES} stages: each prepared.run awaited",
    QUEUES: f"{FRAMES} frames, {STAGES} stages: asyncio.Queue and to_thread",
}
"""Contenders in the order in which they are reported."""

_WAITS: dict[str, Wait] = {
    SIGNALLED: signalled_fence(),
    SLEEP: turn_of_the_loop(),
    PENDING: pending_fence,
    EVENT: pending_event,
    EVENTFD: pending_eventfd,
    PENDING_FD: pending_fence_of_another,
}

_BATCH_US = 20_000.0


GOALS = (
    RatioGoal(SIGNALLED, SLEEP, 1.0),
    RatioGoal(PENDING, EVENTFD, 1.5),
    RatioGoal(CHAIN, AWAITED, 0.33),
    RatioGoal(PIPELINE, QUEUES, 0.5),
)
"""They hold in each placement."""


class FencePlacement(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdicts: tuple[RatioVerdict, ...]


class FenceReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench fence --json``."""

    environment: Environment
    rounds: int
    placements: tuple[FencePlacement, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met in every placement."""
        return all(v.met for placed in self.placements for v in placed.verdicts)


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


def judge_fences(figures: Mapping[str, Figure]) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals."""
    return tuple(judge_ratio(goal, figures) for goal in GOALS)


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
