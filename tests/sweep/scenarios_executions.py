"""Runs by every path, alone, many at once, and on the same arrays."""

import asyncio

import numpy as np

from asyncnn.fenced_run import FencedRun
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import AsyncnnError
from asyncnn.runtime.device import Device
from tests.networks import chain
from tests.sweep.scenario import EVERYWHERE, ON_ONE_LOOP, add_scenario, scenario
from tests.sweep.stages import LENGTH, SIZE, Stage, X, check


async def run_async(stage: Stage) -> None:
    check(await stage.model.run(X, path="async"))


async def run_sync(stage: Stage) -> None:
    check(await stage.model.run(X, path="sync"))


async def run_by_fence(stage: Stage) -> None:
    check(await stage.model.run(X, path="fenced"))


for play in (run_async, run_sync, run_by_fence):
    add_scenario(play.__name__.replace("_", "-"), play, *EVERYWHERE)


@scenario(*ON_ONE_LOOP)
async def run_with_timeout(stage: Stage) -> None:
    check(await stage.model.run(X, timeout=30))


@scenario(*ON_ONE_LOOP)
async def run_too_late(stage: Stage) -> None:
    try:
        check(await stage.model.run(X, timeout=1e-5))
    except AsyncnnError:
        await asyncio.sleep(0)


@scenario(*ON_ONE_LOOP)
async def run_with_timeout_around(stage: Stage) -> None:
    async with asyncio.timeout(30):
        check(await stage.model.run(X))


@scenario(*EVERYWHERE)
async def several_runs(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(stage.model.run(X)) for _ in range(4)]
    for run in runs:
        check(run.result())


@scenario(*ON_ONE_LOOP)
async def runs_that_wait_for_room(stage: Stage) -> None:
    device = Device("narrow", stage.device.hal, max_in_flight=1)
    model = await device.prepare(chain(LENGTH, SIZE))
    for outputs in await asyncio.gather(*(model.run(X) for _ in range(3))):
        check(outputs)


@scenario(*ON_ONE_LOOP)
async def outputs_of_unknown_size(stage: Stage) -> None:
    model = await stage.device.prepare(chain(LENGTH, 0))
    check(await model.run(X))


@scenario(*EVERYWHERE)
async def reusable(stage: Stage) -> None:
    execution = stage.model.reusable()
    execution.input()[:] = X
    for _ in range(3):
        check(await execution.run())


def ends(stage: Stage, *runs: FencedRun) -> None:
    """Have each run end, whatever becomes of who awaits it."""
    for run in runs:
        # The run itself would keep its arrays.
        stage.witness.notice(
            lambda fence=run.fence: "" if fence.status is not None else f"{fence}"
        )


@scenario(*EVERYWHERE)
async def fenced_chain(stage: Stage) -> None:
    runs: list[FencedRun] = []
    value = X
    for _ in range(3):
        runs.append(stage.model.run_fenced(value, wait_for=runs[-1:]))
        value = runs[-1].outputs["z"]
    ends(stage, *runs)
    outputs = await runs[-1]
    np.testing.assert_array_equal(outputs["z"], X + 3 * LENGTH)


@scenario(*EVERYWHERE)
async def fenced_chain_cancelled_with_its_task(stage: Stage) -> None:
    gate, source = SyncFence.pair()
    first = stage.model.run_fenced(X, wait_for=[gate])
    second = stage.model.run_fenced(first.outputs["z"], wait_for=[first])
    ends(stage, first, second)
    try:
        await asyncio.sleep(0)
        source.signal()
        await second
    finally:
        first.cancel()


@scenario(*ON_ONE_LOOP)
async def fenced_runs_of_a_reusable(stage: Stage) -> None:
    execution = stage.model.reusable()
    execution.input()[:] = X
    gate, source = SyncFence.pair()
    first = execution.run_fenced([gate])
    second = execution.run_fenced([first])
    ends(stage, first, second)
    asyncio.get_running_loop().call_soon(source.signal)
    await first
    check(await second)
