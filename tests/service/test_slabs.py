"""Small arrays of a client beside a driver: never used twice while it works on them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.memory.slabs import FIRST_SLAB_BYTES, Part, place_of, shared_array
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server, ServiceLimits
from asyncnn.service.driver.executions import Executions
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.process import Peer
from tests.networks import addition
from tests.places import served
from tests.waits import cancelled, until

T = TypeVar("T")

LIMITS = ServiceLimits(max_pools=6, max_bound_requests=4)
LARGE = 2**15
"""Elements of an array that lies in a file of its own."""


class Driver(NamedTuple):
    path: Path
    server: Server

    def part(self, kind: type[T]) -> T:
        """Return the part of that kind of the one session."""
        (session,) = self.server._sessions
        (part,) = [each for each in vars(session).values() if type(each) is kind]
        return part


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    path = tmp_path / "driver.sock"
    async with (
        ReferenceDevice() as device,
        Server(device, path, limits=LIMITS) as server,
    ):
        yield Driver(path, server)


@pytest.fixture
async def device(driver: Driver) -> AsyncIterator[Device]:
    async with connect(driver.path) as device:
        yield device


@pytest.fixture
async def model(device: Device) -> PreparedModel:
    return await device.prepare(addition(4))


def ones() -> np.ndarray:
    array = shared_array(4)
    array[:] = 1
    return array


def marked() -> list[np.ndarray]:
    """Return arrays that take the places of all that have been dropped."""
    arrays = [shared_array(4) for _ in range(100)]
    for array in arrays:
        array[:] = 7
    return arrays


class TestUnderWay:
    async def test_a_fenced_run_keeps_the_arrays_that_nobody_else_has(
        self, model: PreparedModel
    ) -> None:
        fence, source = SyncFence.pair()
        end = model.run_fenced([ones(), ones()], wait_for=[fence]).fence
        arrays = marked()
        source.signal()
        await end
        assert all((array == 7).all() for array in arrays)

    async def test_a_chain_keeps_what_goes_from_one_to_the_next(
        self, model: PreparedModel
    ) -> None:
        fence, source = SyncFence.pair()
        run = model.run_fenced([ones(), ones()], wait_for=[fence])
        for _ in range(20):
            run = model.run_fenced([run.outputs["z"], ones()], wait_for=[run])
            marked()
        source.signal()
        outputs = await run
        assert (outputs["z"] == 22).all()

    async def test_so_does_one_whose_caller_has_given_up(
        self, device: Device, model: PreparedModel
    ) -> None:
        slow = await device.prepare(addition(2**22))
        x = shared_array(2**22)
        busy = [asyncio.create_task(slow.run([x, x], out=[x])) for _ in range(3)]
        await asyncio.sleep(0)
        z: list[np.ndarray] = [shared_array(4)]
        task = asyncio.create_task(model.run([ones(), ones()], out=z))
        await asyncio.sleep(0)
        await cancelled(task)
        z.clear()
        del task
        arrays = marked()
        await asyncio.gather(*busy)
        await model.run([ones(), ones()])
        assert all((array == 7).all() for array in arrays)

    async def test_what_a_lost_driver_may_write_to_is_not_used_again(
        self, driver: Driver
    ) -> None:
        fence, _ = SyncFence.pair()
        async with connect(driver.path) as device:
            model = await device.prepare(addition(4))
            z = shared_array(4)
            place = place_of(z)
            assert place is not None
            assert isinstance(place[0], Part)
            run = model.run_fenced([ones(), ones()], out=[z], wait_for=[fence])
        with pytest.raises(DeviceUnavailableError):
            await run
        later = [place_of(array) for array in marked()]
        assert all(at and at[0].slab is not place[0].slab for at in later)  # type: ignore[attr-defined]


class TestBoundRequests:
    async def test_the_driver_forgets_them_with_their_arrays(
        self, driver: Driver, model: PreparedModel
    ) -> None:
        executions = driver.part(Executions)
        for _ in range(5 * LIMITS.max_bound_requests):
            x, y, z = ones(), ones(), shared_array(4)
            for _ in range(3):
                await model.run([x, y], out=[z])
            assert (z == 2).all()
        del x, y, z
        await until(lambda: not executions._kept)

    async def test_one_that_comes_again_is_bound_and_sees_new_contents(
        self, driver: Driver, model: PreparedModel
    ) -> None:
        x, y, z = ones(), ones(), shared_array(4)
        for k in range(5):
            x[:] = k
            await model.run([x, y], out=[z])
            assert (z == k + 1).all()
        executions = driver.part(Executions)
        assert len(executions._kept) == 1


class TestIdleMemory:
    async def test_it_makes_no_later_call_fail(self, device: Device) -> None:
        """Slabs of large requests are kept; there are more models than pools."""
        models = [await device.prepare(addition(LARGE)) for _ in range(8)]
        x = np.ones(LARGE, np.float32)
        for model in models * 2:
            outputs = await model.run([x, x])
            assert (outputs["z"] == 2).all()

    async def test_arrays_of_one_client_cost_the_driver_few_pools(
        self, driver: Driver, model: PreparedModel
    ) -> None:
        arrays = [ones() for _ in range(300)]
        for array in arrays:
            await model.run([array, array], out=[array])
        assert all((array == 2).all() for array in arrays)
        pools = driver.part(AnnouncedPools)
        assert len(pools._pools) == 1

    async def test_a_burst_that_exceeds_a_limit_has_not_done_wrong(
        self, tmp_path: Path
    ) -> None:
        """Bursts are of HAL 1.2, which has no status for exhausted resources."""
        path, limits = tmp_path / "small.sock", ServiceLimits(max_pool_bytes=2**20)
        async with served(path, limits=limits) as device:
            large = await device.prepare(addition(2**17))
            async with large.burst() as burst:
                with pytest.raises(GeneralFailureError):
                    await burst.run_in_place()


class TestDriversOfOthers:
    """A driver of another user gets no slab, as it would see other arrays there."""

    @pytest.fixture
    async def foreign(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Device]:
        euid = os.geteuid()
        monkeypatch.setattr(
            "asyncnn.service.client.remote_device.peer_of", lambda _: Peer(1, euid + 1)
        )
        async with connect(driver.path, driver_uids=[euid + 1]) as device:
            yield device

    async def test_small_shared_arrays_are_copied_for_it(
        self, driver: Driver, foreign: Device
    ) -> None:
        model = await foreign.prepare(addition(4))
        z = shared_array(4)
        for k in range(1, 4):
            await model.run([k * ones(), ones()], out=[z])
            assert (z == k + 1).all()
        pools = driver.part(AnnouncedPools)
        assert not any(pool.size == FIRST_SLAB_BYTES for pool in pools._pools.values())

    async def test_outputs_of_its_runs_go_from_one_to_the_next(
        self, foreign: Device
    ) -> None:
        model = await foreign.prepare(addition(4))
        first = model.run_fenced([ones(), ones()])
        second = model.run_fenced([first.outputs["z"], ones()], wait_for=[first])
        assert ((await second)["z"] == 3).all()

    async def test_bursts_work_on_memory_of_their_own(self, foreign: Device) -> None:
        model = await foreign.prepare(addition(4))
        async with model.burst() as burst:
            outputs = await burst.run([ones(), ones()])
            assert (outputs["z"] == 2).all()

    async def test_a_small_array_cannot_go_from_one_run_to_the_next(
        self, foreign: Device
    ) -> None:
        model = await foreign.prepare(addition(4))
        z = shared_array(4)
        first = model.run_fenced([ones(), ones()], out=[z])
        with pytest.raises(InvalidArgumentError) as refused:
            model.run_fenced([z, ones()], wait_for=[first])
        assert "shared_array" in str(refused.value)
        await first
