"""Whom a driver's statistics tell of, and whom they are told to."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from asyncnn import Device
from asyncnn.devices import ClientStatistics, DeviceStatistics, ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError, GeneralFailureError
from asyncnn.hal.types import DeviceStatus, ErrorStatus
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server, wire
from asyncnn.service.client.asking import ConnectionQueries
from asyncnn.service.driver import server
from asyncnn.service.limits import PendingAnswers
from asyncnn.service.process import Peer, driver_process
from tests.networks import chain
from tests.service.conftest import LIMITS
from tests.service.raw import RawClient
from tests.waits import cancelled, until

X = np.zeros(8, np.float32)
OTHER_UID = 4711
RunOnce = Callable[[Device], Awaitable[None]]


@pytest.fixture
async def hal() -> AsyncIterator[ReferenceDevice]:
    async with ReferenceDevice() as device:
        yield device


@pytest.fixture
async def path(hal: ReferenceDevice, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "driver.sock"
    async with Server(hal, path, allowed_uids=[OTHER_UID]):
        yield path


def of_clients(statistics: DeviceStatistics) -> list[ClientStatistics]:
    """Return those that came over a socket."""
    return [each for each in statistics.clients if each.name.startswith("pid")]


@pytest.fixture
def run_once() -> RunOnce:
    """Prepares a model, runs it, and keeps it until the test is over."""
    kept = []

    async def run_once(device: Device) -> None:
        kept.append(await device.prepare(chain(2, 8)))
        await kept[-1].run({"x": X})

    return run_once


async def test_all_connections_of_a_process_are_one_client(
    path: Path, run_once: RunOnce, hal: ReferenceDevice
) -> None:
    async with connect(path) as first:
        async with connect(path) as second:
            for device in (first, second, second):
                await run_once(device)
        (client,) = of_clients(await first.statistics())
        assert client.name == f"pid {os.getpid()}"
        assert client.executions.ended == 3
        await run_once(first)
        (client,) = of_clients(await first.statistics())
        assert client.executions.ended == 4
    await until(lambda: not of_clients(hal.statistics()))


@pytest.mark.usefixtures("as_processes")
async def test_each_process_is_a_client_called_after_its_number(
    path: Path, run_once: RunOnce
) -> None:
    async with connect(path) as first, connect(path) as second:
        for device in (first, second, second):
            await run_once(device)
        statistics = await first.statistics()
        clients = of_clients(statistics)
        assert [client.name for client in clients] == [f"pid {os.getpid()}"] * 2
        assert [client.executions.ended for client in clients] == [1, 2]
        one, two = (client.number for client in clients)
        assert [model.client for model in statistics.models] == [one, two, two]


@pytest.mark.usefixtures("as_processes")
@pytest.mark.parametrize("way", ["async", "sync", "fenced", "burst"])
async def test_work_of_every_kind_is_that_of_its_client(
    path: Path, run_once: RunOnce, way: str
) -> None:
    async with connect(path) as device, connect(path) as other:
        await run_once(other)
        prepared = await device.prepare(chain(2, 8))
        for _ in range(3):
            if way == "burst":
                async with prepared.burst() as burst:
                    await burst.run({"x": X})
            else:
                await prepared.run({"x": X}, path=way)
        clients = of_clients(await device.statistics())
        assert sorted(client.executions.ended for client in clients) == [1, 3]


async def test_another_user_is_shown_itself_and_totals(
    path: Path, run_once: RunOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(path) as own:
        await run_once(own)
        monkeypatch.setattr(server, "peer_of", lambda _: Peer(7, OTHER_UID))
        async with connect(path) as foreign:
            await run_once(foreign)
            told = await foreign.statistics()
            (client,) = told.clients
            assert client.name == "pid 7"
            assert [model.client for model in told.models] == [client.number]
            assert told.executions.ended == 2
            everything = await own.statistics()
            assert len(of_clients(everything)) == len(everything.models) == 2


async def test_root_is_told_everything(
    path: Path, run_once: RunOnce, hal: ReferenceDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(path) as own:
        await run_once(own)
        monkeypatch.setattr(server, "peer_of", lambda _: Peer(1, 0))
        monkeypatch.setattr(server.os, "geteuid", lambda: OTHER_UID)
        second = path.with_name("second")
        async with Server(hal, second, allowed_uids=[0]), connect(second) as root:
            assert len((await root.statistics()).models) == 1


async def test_a_client_that_has_gone_is_told_of_no_more(
    path: Path, run_once: RunOnce, hal: ReferenceDevice
) -> None:
    for _ in range(5):
        async with connect(path) as device:
            await run_once(device)
    await until(lambda: not of_clients(hal.statistics()))
    assert hal.statistics().models == ()
    assert hal.statistics().executions.ended == 5


class Unmeasured:
    """Any device, without its statistics."""

    def __init__(self, device: ReferenceDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> object:
        if name == "get_statistics":
            raise AttributeError(name)
        return getattr(self._device, name)


async def test_a_device_without_statistics_says_so(
    hal: ReferenceDevice, tmp_path: Path
) -> None:
    path = tmp_path / "driver.sock"
    async with Server(Unmeasured(hal), path), connect(path) as device:
        with pytest.raises(GeneralFailureError, match="reports no statistics"):
            await device.statistics()
    with pytest.raises(GeneralFailureError, match="keeps no statistics"):
        await Device("unmeasured", Unmeasured(hal)).statistics()


async def test_a_client_cannot_pile_up_queries(
    hal: ReferenceDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = asyncio.Event()
    monkeypatch.setattr(hal, "get_statistics", blocked.wait)
    path = tmp_path / "driver.sock"
    async with Server(hal, path, limits=LIMITS):
        client = await RawClient.connect(path).greet()
        for call in range(LIMITS.max_executions + 1):
            client.send(wire.GetStatistics(call))
        answer = await client.receive()
        exhausted = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        assert answer == wire.Statistics(LIMITS.max_executions, exhausted, None)
        client.close()


async def test_a_driver_that_is_killed_fails_the_query() -> None:
    with driver_process() as driver:
        async with connect(driver.path) as device:
            assert (await device.statistics()).executions.ended == 0
            driver.kill()
            with pytest.raises(DeviceUnavailableError):
                await device.statistics()


async def test_a_supervised_device_tells_what_its_driver_does_while_there_is_one(
    hal: ReferenceDevice, tmp_path: Path, run_once: RunOnce
) -> None:
    path = tmp_path / "driver.sock"
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(AsyncExitStack())
        await driver.enter_async_context(Server(hal, path))
        device = await stack.enter_async_context(connect(path, supervised=True))
        await run_once(device)
        assert (await device.statistics()).executions.ended == 1
        await driver.aclose()
        await until(lambda: device.hal.get_status() is DeviceStatus.OFFLINE)
        with pytest.raises(DeviceUnavailableError, match="DEAD_OBJECT"):
            await device.statistics()


class TestAnswers:
    """What `ConnectionQueries` makes of what a driver may say."""

    async def ask(self, answer: wire.Statistics | wire.SupportedOperations) -> None:
        answers = PendingAnswers()
        queries = ConnectionQueries(
            Mock(numbers=iter([answer.call]), answers=answers), Mock()
        )
        asking = asyncio.ensure_future(queries.statistics())
        await asyncio.sleep(0)
        answers.answered(answer.call, answer)
        await asking

    async def test_of_another_query(self) -> None:
        with pytest.raises(GeneralFailureError, match="SupportedOperations"):
            await self.ask(wire.SupportedOperations(3, 0, ()))

    async def test_with_a_failure(self) -> None:
        with pytest.raises(DeviceUnavailableError, match="reports no statistics"):
            await self.ask(wire.Statistics(3, ErrorStatus.DEVICE_UNAVAILABLE, None))

    async def test_with_nothing(self) -> None:
        with pytest.raises(GeneralFailureError, match="empty"):
            await self.ask(wire.Statistics(3, ErrorStatus.NONE, None))

    async def test_that_nobody_waits_for(self) -> None:
        answers = PendingAnswers()
        queries = ConnectionQueries(Mock(numbers=iter([1]), answers=answers), Mock())
        asking = asyncio.ensure_future(queries.statistics())
        await asyncio.sleep(0)
        await cancelled(asking)
        answers.answered(1, wire.Statistics(1, ErrorStatus.NONE, None))
