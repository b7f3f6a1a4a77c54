"""Frames through four stages that do nothing, as contenders of a benchmark.

Ours are executions of the device that computes nothing, validated and reported in full.
Those of the peer are calls of a function that returns what it is given.
"""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.device import Device
from asyncnn.tools.bench.addition import tiny_addition
from asyncnn.tools.bench.fence.waits import Wait

STAGES = 4
FRAMES = 100

_IN_FLIGHT = 8
_FRAME = np.zeros(4, np.float32)


def nothing(frame: Array) -> Array:
    """Return ``frame``: what a stage of the peers does."""
    return frame


async def pipelined(device: Device, stack: AsyncExitStack) -> Wait:
    """Return the wait for `FRAMES` frames through a pipeline that stays open."""
    model = await device.prepare(tiny_addition())
    names = [f"stage {number}" for number in range(STAGES)]
    stages = [
        Stage(name, model, inputs={"x": f"{before}.{of}", "y": "put.y"})
        for name, before, of in zip(
            names, ["put", *names], ["x", *["sum"] * STAGES], strict=False
        )
    ]
    pipeline = await stack.enter_async_context(Pipeline(*stages, in_flight=_IN_FLIGHT))

    async def feed() -> None:
        for _ in range(FRAMES):
            await pipeline.put([_FRAME, _FRAME])

    async def run() -> Array:
        feeding = asyncio.create_task(feed())
        for _ in range(FRAMES):
            result = await anext(pipeline)
        await feeding
        return result["sum"]

    return run


async def one_by_one(device: Device) -> Wait:
    """Return the wait for `FRAMES` frames, each stage of which is awaited."""
    model = await device.prepare(tiny_addition())

    async def run() -> Array:
        for _ in range(FRAMES):
            frame = _FRAME
            for _ in range(STAGES):
                frame = (await model.run([frame, _FRAME]))["sum"]
        return frame

    return run


async def queued(stack: AsyncExitStack) -> Wait:
    """Return the wait for frames through queues and calls in threads."""
    ends: list[asyncio.Queue[Array]]
    ends = [asyncio.Queue(_IN_FLIGHT) for _ in range(STAGES + 1)]

    async def work(taken: asyncio.Queue[Array], given: asyncio.Queue[Array]) -> None:
        while True:
            frame = await taken.get()
            await given.put(await asyncio.to_thread(nothing, frame))

    for taken, given in pairwise(ends):
        stack.callback(asyncio.create_task(work(taken, given)).cancel)

    async def feed() -> None:
        for _ in range(FRAMES):
            await ends[0].put(_FRAME)

    async def run() -> Array:
        feeding = asyncio.create_task(feed())
        for _ in range(FRAMES):
            frame = await ends[-1].get()
        await feeding
        return frame

    return run
