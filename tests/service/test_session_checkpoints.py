"""Sessions whose driver dies: what is lost, and how they go on."""

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn import Device, DriverDiedError, PreparedModel, connect
from asyncnn.service import Server, ServiceLimits, UserLimits
from tests.conftest import one_in
from tests.runtime.stateful import X, counting
from tests.service.restarting import Driver, lost
from tests.waits import until

PATHS = ("async", "sync", "fenced", "burst")


@pytest.fixture
async def prepared(device: Device) -> PreparedModel:
    return await device.prepare(counting())


async def back(prepared: PreparedModel) -> None:
    """Wait until there is a driver that has the model."""
    await prepared.run(X)


@pytest.mark.parametrize("path", PATHS)
class TestWithoutCheckpoints:
    async def test_a_death_ends_the_session_until_it_is_reset(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path) as session:
            await session.run(X)
            await driver.restart(device)
            for _ in range(2):
                with pytest.raises(DriverDiedError, match="reset the session"):
                    await session.run(X)
                with pytest.raises(DriverDiedError, match="reset the session"):
                    await session.state()
            await back(prepared)
            await session.reset()
            np.testing.assert_array_equal((await session.run(X))["y"], 2 * X)

    async def test_nothing_is_lost_before_the_first_step(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path) as session:
            await driver.restart(device)
            await back(prepared)
            np.testing.assert_array_equal((await session.run(X))["y"], 2 * X)

    async def test_a_state_that_was_saved_goes_on(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path) as session:
            await session.run(X)
            saved = await session.state()
            await session.run(X)
            await driver.restart(device)
            await back(prepared)
            await session.load_state(saved)
            np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)


@pytest.mark.parametrize("path", PATHS)
class TestCheckpoints:
    async def test_after_each_step_lose_nothing(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path, checkpoint=1) as session:
            for step in range(1, 10):
                outputs = await session.run(X)
                np.testing.assert_array_equal(outputs["y"], 2 * step * X)
                if step % 3 == 0:
                    await driver.restart(device)
                    await back(prepared)
            assert session.steps == 9
            np.testing.assert_array_equal((await session.state())["total"], 9 * X)

    async def test_after_some_steps_lose_those_since(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path, checkpoint=4) as session:
            for _ in range(7):
                await session.run(X)
            await driver.restart(device)
            with pytest.raises(DriverDiedError, match="after step 4, the 3 after that"):
                await session.run(X)
            assert session.steps == 4
            await back(prepared)
            while session.steps < 7:
                await session.run(X)
            np.testing.assert_array_equal((await session.state())["total"], 7 * X)

    async def test_the_state_at_the_last_one_can_be_read_without_a_driver(
        self, driver: Driver, device: Device, prepared: PreparedModel, path: Any
    ) -> None:
        async with prepared.session(path=path, checkpoint=1) as session:
            await session.run(X)
            await driver.stop()
            await lost(device)
            np.testing.assert_array_equal((await session.state())["total"], X)
            async with asyncio.TaskGroup() as tasks:
                run = tasks.create_task(session.run(X))
                await asyncio.sleep(0)
                await driver.start()
            np.testing.assert_array_equal(run.result()["y"], 4 * X)


@pytest.mark.parametrize("path", one_in(4, PATHS))
async def test_a_process_that_is_killed_in_the_middle_of_steps(path: Any) -> None:
    async with connect(supervised=asyncnn.Supervision(wait=20.0)) as device:
        prepared = await device.prepare(counting())
        async with prepared.session(path=path, checkpoint=1) as session:
            done, deaths = 0, 0
            while done < 30:
                run = asyncio.create_task(session.run(X))
                if done in (5, 12, 19) and deaths <= (5, 12, 19).index(done):
                    deaths += 1
                    await asyncio.sleep(0)
                    os.kill(_driver_pid(), signal.SIGKILL)
                (outcome,) = await asyncio.gather(run, return_exceptions=True)
                if isinstance(outcome, BaseException):
                    assert isinstance(outcome, asyncnn.DeviceUnavailableError), outcome
                    await back(prepared)
                else:
                    done += 1
                    np.testing.assert_array_equal(outcome["y"], 2 * done * X)
                assert session.steps == done
            np.testing.assert_array_equal((await session.state())["total"], 30 * X)


def _driver_pid() -> int:
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(path, encoding="ascii") as file:
        pids = [int(each) for each in file.read().split()]
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            if b"asyncnn.service.start" in command.read():
                return pid
    raise AssertionError("there is no driver")


class TestQuotas:
    """Each state takes two buffers of the client's share."""

    async def test_a_session_beyond_them_is_refused_and_takes_nothing(
        self, tmp_path: Path
    ) -> None:
        limits = ServiceLimits(max_buffers=6)
        path = tmp_path / "driver.sock"
        async with (
            asyncnn.devices.ReferenceDevice() as hal,
            Server(hal, path, limits=limits),
            connect(path) as device,
        ):
            prepared = await device.prepare(counting())
            async with prepared.session() as session:
                await session.run(X)
                with pytest.raises(asyncnn.ResourceExhaustedTransientError):
                    await prepared.session().__aenter__()
                gc.collect()  # what the error's frames hold
                np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)
            await until(lambda: not hal._buffers._known)
            async with prepared.session() as session:
                np.testing.assert_array_equal((await session.run(X))["y"], 2 * X)

    async def test_a_hundred_sessions_of_many_states_fit_the_usual_ones(self) -> None:
        states = 12  # more than wake words have
        assert ServiceLimits().max_buffers >= 100 * 2 * states
        assert UserLimits().max_buffers >= ServiceLimits().max_buffers
