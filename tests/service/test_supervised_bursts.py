"""Bursts that outlive their driver."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn import (
    Burst,
    Device,
    DeviceUnavailableError,
    DriverDiedError,
    GeneralFailureError,
    Supervision,
    connect,
)
from asyncnn.service import ServiceLimits
from asyncnn.service.process import (
    DriverProcess,
    can_connect,
    driver_process,
    running_driver,
)
from tests.networks import addition, chain
from tests.service.restarting import Driver, lost
from tests.waits import cancelled, until

X = np.arange(4, dtype=np.float32)


@pytest.fixture
async def burst(device: Device) -> AsyncIterator[Burst]:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        yield burst


async def add(burst: Burst) -> None:
    outputs = await burst.run([X, X])
    assert np.array_equal(outputs["z"], 2 * X)


async def test_an_idle_burst_is_opened_anew(
    driver: Driver, device: Device, burst: Burst
) -> None:
    await add(burst)
    for restarts in (1, 2):
        await driver.restart(device)
        for _ in range(3):
            await add(burst)
        statistics = burst.statistics()
        assert statistics.reopened == restarts
        assert statistics.sent == 1 + 3 * restarts
        assert statistics.fallbacks == 0


async def test_arrays_and_reusable_executions_stay_as_they_are(
    driver: Driver, device: Device, burst: Burst
) -> None:
    execution = burst.reusable()
    for arrays, run in ((burst, burst.run_in_place), (execution, execution.run)):
        x, z = arrays.input("x"), arrays.output()
        x[...] = X
        outputs = await run()
        await driver.restart(device)
        x[...] += 1
        assert await run() is outputs
        assert arrays.output() is z
        assert np.array_equal(z, X + 1)


async def test_a_run_in_between_waits(
    driver: Driver, device: Device, burst: Burst
) -> None:
    await driver.stop()
    await lost(device)
    task = asyncio.create_task(add(burst))
    await asyncio.sleep(0.02)
    assert not task.done()
    with pytest.raises(GeneralFailureError, match="has not returned"):
        await burst.run_in_place()
    await driver.start()
    await task


async def test_waiting_for_a_driver_can_be_cancelled(
    driver: Driver, device: Device, burst: Burst
) -> None:
    await driver.stop()
    await lost(device)
    task = asyncio.create_task(add(burst))
    await asyncio.sleep(0)
    await cancelled(task)
    await driver.start()
    await add(burst)


async def test_opening_a_burst_in_between_waits_too(
    driver: Driver, device: Device
) -> None:
    prepared = await device.prepare(addition(4))
    await driver.stop()
    await lost(device)

    async def open_and_run() -> None:
        async with prepared.burst() as burst:
            await add(burst)

    task = asyncio.create_task(open_and_run())
    await asyncio.sleep(0.02)
    assert not task.done()
    await driver.start()
    await task


async def test_leaving_the_block_while_a_run_waits_ends_it(
    driver: Driver, device: Device
) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        await driver.stop()
        await lost(device)
        task = asyncio.create_task(add(burst))
        await asyncio.sleep(0)
    await driver.start()
    with pytest.raises(DeviceUnavailableError, match="closed"):
        await task


async def test_a_driver_that_takes_no_burst_says_so_again_and_again(
    driver: Driver, device: Device, burst: Burst
) -> None:
    driver.limits = ServiceLimits(max_prepared_models=0)
    await driver.restart(device)
    for _ in range(2):
        with pytest.raises(Exception, match="opening it anew failed"):
            await burst.run_in_place()
    driver.limits = ServiceLimits()
    await driver.restart(device)
    await add(burst)


async def test_without_supervision_there_is_no_other_driver(driver: Driver) -> None:
    async with connect(driver.path) as device:
        prepared = await device.prepare(addition(4))
        async with prepared.burst() as burst:
            await add(burst)
            await driver.restart(device)
            for _ in range(2):
                with pytest.raises(DriverDiedError, match="DEAD_OBJECT"):
                    await burst.run_in_place()


@contextmanager
def stopped(driver: DriverProcess) -> Iterator[None]:
    """Kill ``driver`` at the end of the block, in which it does nothing."""
    os.kill(driver.pid, signal.SIGSTOP)
    yield
    os.kill(driver.pid, signal.SIGKILL)


async def test_a_killed_driver_fails_the_run_under_way_and_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "driver.sock"
    with driver_process(path) as first:
        async with connect(path, supervised=Supervision(wait=20.0)) as device:
            prepared = await device.prepare(chain(3, 4))
            async with prepared.burst() as burst:
                await burst.run(X)
                with stopped(first):
                    task = asyncio.create_task(burst.run(X))
                    await asyncio.sleep(0.02)
                with pytest.raises(DriverDiedError, match="DEAD_OBJECT"):
                    await task
                later = asyncio.create_task(burst.run(X))
                # A process that dies may close its listener after its connections.
                await until(lambda: not can_connect(path))
                async with running_driver(path):
                    outputs = await later
                    assert np.array_equal(outputs["z"], X + 3)
                    assert burst.statistics().reopened == 1
