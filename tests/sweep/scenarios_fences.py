"""Fences by themselves."""

import asyncio

from asyncnn.fences import SyncFence, merge
from tests.sweep.scenario import scenario
from tests.sweep.stages import Stage


@scenario("alone")
async def fence_of_this_process(_: Stage) -> None:
    fence, source = SyncFence.pair()
    asyncio.get_running_loop().call_soon(source.signal)
    await fence


@scenario("alone")
async def fence_with_a_descriptor(_: Stage) -> None:
    fence, source = SyncFence.pair()
    with SyncFence.from_fd(fence.fileno()) as imported:
        asyncio.get_running_loop().call_soon(source.signal)
        await imported
    await fence


@scenario("alone")
async def fence_with_timeout(_: Stage) -> None:
    fence, source = SyncFence.pair()
    try:
        await fence.wait(0.001)
    except TimeoutError:
        source.signal()
    await fence.wait(1)


@scenario("alone")
async def fences_merged(_: Stage) -> None:
    pairs = [SyncFence.pair() for _ in range(3)]
    merged = merge(*(fence for fence, _ in pairs))
    for _, source in pairs:
        asyncio.get_running_loop().call_soon(source.signal)
    await merged


@scenario("alone")
async def fence_of_many_tasks(_: Stage) -> None:
    fence, source = SyncFence.pair()

    async def waiting() -> None:
        await fence

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(waiting())
        await asyncio.sleep(0)
        source.signal()
