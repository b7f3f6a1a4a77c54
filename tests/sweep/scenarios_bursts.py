"""Bursts that open, run and close."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncnn.runtime.burst import Burst
from tests.sweep.scenario import EVERYWHERE, ON_ONE_LOOP, scenario
from tests.sweep.stages import Stage, X, check, tended


@scenario(*EVERYWHERE)
async def burst_opening(stage: Stage) -> None:
    async with stage.model.burst():
        await asyncio.sleep(0)


@scenario(*EVERYWHERE)
async def burst_from_end_to_end(stage: Stage) -> None:
    async with stage.model.burst() as burst:
        for _ in range(3):
            check(await burst.run(X))


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Burst]:
    async with stage.model.burst() as burst:
        burst.input()[:] = X
        yield burst


@scenario(*EVERYWHERE, given=opened)
async def burst_running(stage: Stage) -> None:
    for _ in range(3):
        check(await stage.given.run(X))


@scenario(*EVERYWHERE, given=opened)
async def burst_running_in_place(stage: Stage) -> None:
    for _ in range(3):
        check(await stage.given.run_in_place())


@scenario(*ON_ONE_LOOP, given=opened)
async def burst_of_two_sets_of_arrays(stage: Stage) -> None:
    for _ in range(2):
        execution = stage.given.reusable()
        execution.input()[:] = X
        check(await execution.run())


@scenario(*EVERYWHERE)
async def burst_closing_under_a_run(stage: Stage) -> None:
    async with stage.model.burst() as burst:
        running = tended(asyncio.create_task(burst.run(X)))
        await asyncio.sleep(0)
    await asyncio.wait([running])


@scenario(*ON_ONE_LOOP)
async def burst_without_spinning(stage: Stage) -> None:
    async with stage.model.burst(spins=False) as burst:
        check(await burst.run(X))
