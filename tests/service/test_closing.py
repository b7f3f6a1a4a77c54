"""Servers, connections and drivers close whole, whoever is cancelled meanwhile."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import DeviceClosedError, NoDriverError
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Model, Priority
from asyncnn.service import RemoteDevice, Server
from asyncnn.service.client import asking as client_preparations
from asyncnn.service.driver import preparations
from asyncnn.service.driver.session import ClientSession
from asyncnn.service.process import running_driver
from asyncnn.service.supervised_device import SupervisedDevice, supervised
from tests.networks import addition, chain
from tests.service.restarting import BRIEFLY, running
from tests.waits import cancelled, until

LARGE = chain(200, 2).model
X = np.ones(4, np.float32)


def prepare(device: RemoteDevice) -> PreparedModelFuture:
    callback = PreparedModelFuture()
    options = ExecutionPreference.LOW_POWER, Priority.LOW, None, (), (), bytes(32)
    assert device.prepare_model_1_3(LARGE, *options, callback) is ErrorStatus.NONE
    return callback


async def cancelled_at_once(closing: Any) -> None:
    """Begin to close, and be cancelled at the first wait."""
    task = asyncio.ensure_future(closing)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    await cancelled(task)


class TestServers:
    async def test_one_goes_on_closing_when_its_exit_is_cancelled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_go, checking = threading.Event(), threading.Event()

        def validate(_: Model) -> None:
            checking.set()
            assert may_go.wait(20)

        monkeypatch.setattr(preparations, "validate_model", validate)
        path = tmp_path / "driver.sock"
        async with ReferenceDevice() as hal:
            server = Server(hal, path)
            await server.__aenter__()
            async with RemoteDevice(path) as device:
                callback = prepare(device)
                await until(checking.is_set)
                await cancelled_at_once(server.__aexit__(None, None, None))
                await until(lambda: not path.exists())
                second = asyncio.create_task(server.aclose())
                third = asyncio.create_task(server.aclose())
                with pytest.raises(Exception, match="DEAD_OBJECT"):
                    await callback
                assert not second.done()
                may_go.set()
                await asyncio.gather(second, third)
            assert server.connections == 0

    async def test_one_closes_every_session_though_some_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[ClientSession] = []
        close = ClientSession.close

        def fail(session: ClientSession) -> None:
            close(session)
            closed.append(session)
            raise ValueError("a session's own failure")

        monkeypatch.setattr(ClientSession, "close", fail)
        path = tmp_path / "driver.sock"
        async with ReferenceDevice() as hal:
            server = Server(hal, path)
            await server.__aenter__()
            async with RemoteDevice(path), RemoteDevice(path):
                with pytest.raises(ValueError, match="own failure"):
                    await server.__aexit__(None, None, None)
                assert len(closed) == 2
            assert not path.exists()

    async def test_a_session_closes_every_part_though_one_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("a part's own failure")

        path = tmp_path / "driver.sock"
        async with (
            ReferenceDevice() as hal,
            Server(hal, path) as server,
            RemoteDevice(path),
        ):
            (session,) = server._sessions
            monkeypatch.setattr(session._executions, "close", fail)
            with pytest.raises(ValueError, match="own failure"):
                session.close()
            assert session._pools._mapper._is_closed
            server._sessions.clear()

    async def test_what_a_client_had_goes_without_a_collection(
        self, tmp_path: Path
    ) -> None:
        def sessions() -> list[object]:
            return [x for x in gc.get_objects() if type(x) is ClientSession]

        path = tmp_path / "driver.sock"
        async with ReferenceDevice() as hal, Server(hal, path):
            gc.collect()
            gc.disable()
            try:
                async with asyncnn.connect(path) as client:
                    prepared = await client.prepare(addition(4))
                    async with prepared.burst() as burst:
                        await burst.run([X, X])
                    await prepared.run([X, X])
                    assert len(sessions()) == 1
                await until(lambda: not sessions())
            finally:
                gc.enable()


class TestConnections:
    async def test_one_is_closed_though_its_exit_is_cancelled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_go, encoding = threading.Event(), threading.Event()
        encoded = client_preparations._encoded

        def encode(message: Any) -> object:
            encoding.set()
            assert may_go.wait(20)
            return encoded(message)

        monkeypatch.setattr(client_preparations, "_encoded", encode)
        async with running(tmp_path / "driver.sock") as driver:
            device = RemoteDevice(driver.path)
            await device.__aenter__()
            callback = prepare(device)
            await until(encoding.is_set)
            await cancelled_at_once(device.__aexit__(None, None, None))
            assert isinstance(device.cause_of_death(), DeviceClosedError)
            with pytest.raises(Exception, match="is closed"):
                await callback
            may_go.set()
            await device.__aexit__(None, None, None)
            await until(lambda: threading.active_count() < 5)

    async def test_a_supervised_one_goes_on_closing_when_that_is_cancelled(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path / "driver.sock") as driver:
            manager = supervised(lambda: RemoteDevice(driver.path), BRIEFLY)
            device: SupervisedDevice = await manager.__aenter__()
            await cancelled_at_once(manager.__aexit__(None, None, None))
            await asyncio.gather(device.aclose(), device.aclose())
            assert isinstance(device.cause_of_death(), DeviceClosedError)

    async def test_a_supervision_that_fails_says_so(self) -> None:
        def fail() -> Any:
            raise ValueError("a bug")

        with pytest.raises(ValueError, match="a bug"):
            async with supervised(fail, BRIEFLY):
                pytest.fail("connected")

    async def test_a_supervision_that_fails_later_ends_the_device(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path / "driver.sock") as driver:
            remotes = iter([RemoteDevice(driver.path)])
            async with supervised(lambda: next(remotes), BRIEFLY) as device:
                await driver.stop()
                await until(lambda: isinstance(device.cause_of_death(), NoDriverError))


class TestDrivers:
    async def test_one_ends_though_the_exit_is_cancelled_and_keeps_no_loop(
        self,
    ) -> None:
        manager = running_driver()
        driver = await manager.__aenter__()
        os.kill(driver.pid, 19)  # it does not end before it is killed
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("asyncnn.service.process._STOP_TIMEOUT_S", 0.1)
            await cancelled_at_once(manager.__aexit__(None, None, None))
            assert driver.process.poll() is None
            await until(lambda: driver.process.poll() is not None)
        assert driver.process.returncode == -9

    @pytest.mark.started_anew
    async def test_one_that_does_not_start_is_ended_when_that_is_cancelled(
        self,
    ) -> None:
        starting = asyncio.ensure_future(running_driver().__aenter__())
        await asyncio.sleep(0.05)
        await cancelled(starting)
