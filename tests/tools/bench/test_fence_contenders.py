"""Waits, chains and pipelines end and deliver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest

from asyncnn.tools.bench.bench_waits import FENCE
from asyncnn.tools.bench.benches import Place
from asyncnn.tools.bench.environment import CpuPair
from tests.tools.bench.calling import CPU

STREAMS = ("pipeline", "one_by_one", "queues")


class TestContenders:
    @pytest.mark.parametrize("name", FENCE.contenders)
    async def test_each_wait_ends_and_delivers(self, name: str) -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            place = Place(stack, CpuPair(CPU, CPU))
            wait = await place.opened(FENCE.contenders[name](place))
            for _ in range(3):
                frame = await wait()
                if name in STREAMS:
                    assert isinstance(frame, np.ndarray)
                    assert frame.shape == (4,)

    async def test_a_device_is_opened_once_for_all(self) -> None:
        opened: list[int] = []

        @asynccontextmanager
        async def open_(cpu: int) -> AsyncIterator[list[int]]:
            opened.append(cpu)
            yield opened

        async with AsyncExitStack() as stack:
            place = Place(stack, CpuPair(CPU, CPU))
            for cpu in (CPU, CPU, CPU + 1):
                assert await place.shared(open_, cpu) is opened
        assert opened == [CPU, CPU + 1]
