"""Requests that are known from before, and have changed meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect, open_device
from tests.networks import addition
from tests.service.restarting import Driver, running


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Driver]:
    async with running(tmp_path / "driver.sock") as driver:
        yield driver


@contextlib.asynccontextmanager
async def sums_of_four(service: Driver, place: str) -> AsyncIterator[IPreparedModel]:
    opened = open_device() if place == "here" else connect(service.path)
    async with opened as device:
        prepared = await device.prepare(addition(4))
        yield prepared.hal


async def outcome(prepared: IPreparedModel, request: Request) -> ErrorStatus:
    callback = ExecutionFuture()
    status = prepared.execute_1_3(request, MeasureTiming.NO, None, None, callback)
    result = await asyncio.wait_for(callback, 20)
    assert result.status is status or status is ErrorStatus.NONE
    return result.status


def at(pool: int, offset: int) -> RequestArgument:
    return RequestArgument(location=DataLocation(pool, offset, 16))


@pytest.mark.parametrize("place", ["here", "in a driver"])
@pytest.mark.parametrize("shared", [False, True])
async def test_arguments_in_a_list_may_be_others_the_next_time(
    service: Driver, place: str, shared: bool
) -> None:
    async with sums_of_four(service, place) as prepared:
        make = allocate if shared else lambda size: from_buffer(bytearray(size))
        pools = make(32), make(16)
        x, z = (np.frombuffer(pool.buffer, np.float32) for pool in pools)
        x[:4], x[4:] = 1, 10
        inputs, outputs = [at(0, 0), at(0, 0)], [at(1, 0)]
        request = Request(inputs, outputs, pools)  # type: ignore[arg-type]
        for _ in range(4):
            assert await outcome(prepared, request) is ErrorStatus.NONE
            assert z[0] == 2
        inputs[1] = at(0, 16)
        assert await outcome(prepared, request) is ErrorStatus.NONE
        assert z[0] == 11
        inputs[1] = at(0, 20)
        assert await outcome(prepared, request) is ErrorStatus.INVALID_ARGUMENT


@pytest.mark.parametrize("place", ["here", "in a driver"])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_pool_that_was_released_fails_what_would_use_it_again(
    service: Driver, place: str, which: int
) -> None:
    async with sums_of_four(service, place) as prepared:
        pools = from_buffer(bytearray(16)), from_buffer(bytearray(16))
        request = Request((at(0, 0), at(0, 0)), (at(1, 0),), pools)
        for _ in range(4):
            assert await outcome(prepared, request) is ErrorStatus.NONE
        assert pools[which].buffer is not None
        pools[which].buffer.release()
        assert await outcome(prepared, request) is not ErrorStatus.NONE
