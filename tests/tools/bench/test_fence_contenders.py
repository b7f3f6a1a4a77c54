"""Waits, chains and pipelines end and deliver."""

import asyncio
import inspect
from contextlib import AsyncExitStack

import numpy as np
import pytest

from asyncnn.runtime.device import Device
from asyncnn.tools.bench.bench_fence import (
    SINGLE_WAITS,
    Wait,
    awaited_executions,
    fenced_chain,
    one_by_one,
    pipelined,
    queued,
)
from asyncnn.tools.bench.noop import NoOpDevice


class TestContenders:
    @pytest.mark.parametrize("wait", SINGLE_WAITS.values(), ids=SINGLE_WAITS)
    async def test_each_wait_ends(self, wait: Wait) -> None:
        for _ in range(3):
            awaited = wait()
            assert inspect.isawaitable(awaited)
            async with asyncio.timeout(20):
                await awaited

    @pytest.mark.parametrize("contender", [fenced_chain, awaited_executions])
    async def test_each_chain_ends(self, contender: Wait) -> None:
        async with NoOpDevice() as hal:
            wait = await contender(Device("no-op", hal))
            for _ in range(2):
                async with asyncio.timeout(20):
                    await wait()

    async def test_each_way_of_streaming_delivers_the_frames(self) -> None:
        async with AsyncExitStack() as stack:
            hal = await stack.enter_async_context(NoOpDevice())
            device = Device("no-op", hal)
            for wait in (
                await pipelined(device, stack),
                await one_by_one(device),
                await queued(stack),
            ):
                for _ in range(2):
                    async with asyncio.timeout(10):
                        frame = await wait()
                    assert isinstance(frame, np.ndarray)
                    assert frame.shape == (4,)
