import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import IPreparedModelCallback, PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import DeviceStatus, ErrorStatus
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import RemoteDevice, Server, wire
from asyncnn.service.process import MAX_PATH_BYTES, Peer
from tests.networks import addition
from tests.places import served
from tests.preparing import launch_preparation
from tests.service.fake_driver import accept, listening, welcome
from tests.waits import cancelled, until

X = np.array([1, 2], np.float32)
NO_DEVICE = pytest.raises(DeviceUnavailableError)


class _Watching(IPreparedModelCallback):
    def __init__(
        self, told: IPreparedModelCallback, alive: "weakref.WeakSet[IPreparedModel]"
    ) -> None:
        super().__init__()
        self._told = told
        self._alive = alive

    def notify_1_3(self, status: ErrorStatus, prepared: IPreparedModel | None) -> None:
        if prepared is not None:
            self._alive.add(prepared)
        self._told.notify_1_3(status, prepared)


class WatchedDevice(ReferenceDevice):
    """Knows which of its prepared models are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet[IPreparedModel] = weakref.WeakSet()

    def prepare_model_1_3(self, *arguments: object) -> ErrorStatus:
        *others, callback = arguments
        return super().prepare_model_1_3(*others, _Watching(callback, self.alive))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.sock"


@pytest.fixture
async def driver(path: Path) -> AsyncIterator[WatchedDevice]:
    async with WatchedDevice() as device, Server(device, path):
        yield device


async def fails_to_connect(path: str | Path, **options: float) -> str:
    with NO_DEVICE as raised:
        async with RemoteDevice(path, **options):
            pytest.fail("connected")
    return str(raised.value)


class TestConnecting:
    async def test_a_socket_that_is_missing(self, path: Path) -> None:
        assert "asyncnn serve" in await fails_to_connect(path)

    async def test_a_socket_that_a_dead_driver_left(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET):
            pass
        assert "refused" in await fails_to_connect(path)

    async def test_a_socket_of_another_kind(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_STREAM):
            assert str(path) in await fails_to_connect(path)

    async def test_a_file_that_is_no_socket(self) -> None:
        path = Path(__file__)
        assert "refused" in await fails_to_connect(path)

    @pytest.mark.parametrize("path", ["", "a\0b", "x" * 108, "ü" * 54])
    async def test_a_path_that_no_socket_can_have(self, path: str) -> None:
        with pytest.raises(InvalidArgumentError, match="path"):
            async with RemoteDevice(path):
                pytest.fail("connected")

    async def test_the_longest_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = "x" * MAX_PATH_BYTES
        async with (
            ReferenceDevice() as device,
            Server(device, path),
            RemoteDevice(path) as remote,
        ):
            assert remote.get_status() is DeviceStatus.AVAILABLE

    async def test_a_driver_that_never_greets(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET):
            reason = await fails_to_connect(path, greeting_timeout=0.05)
        assert "does not answer" in reason

    async def test_a_driver_that_accepts_nobody(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET) as listener:
            listener.listen(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
                first.connect(str(path))
                reason = await fails_to_connect(path, greeting_timeout=0.05)
        assert "does not answer" in reason

    async def test_a_driver_that_accepts_late(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET) as listener:
            listener.listen(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
                first.connect(str(path))
                entered = asyncio.create_task(_version(path))
                await asyncio.sleep(0.02)
                (await accept(listener)).die()
                driver = await accept(listener)
                driver.send(welcome())
                assert await entered == "fake"
                driver.die()

    async def test_a_driver_that_hangs_up(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET) as listener:
            failing = asyncio.create_task(fails_to_connect(path))
            (await accept(listener)).die()
            assert "DEAD_OBJECT" in await failing

    async def test_a_driver_of_another_version(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET) as listener:
            failing = asyncio.create_task(fails_to_connect(path))
            driver = await accept(listener)
            assert await driver.receive() == wire.Hello(wire.PROTOCOL_VERSION)
            driver.send(welcome(version=wire.PROTOCOL_VERSION + 1))
            assert "version" in await failing
            driver.die()

    async def test_a_driver_of_another_user(
        self, driver: WatchedDevice, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "asyncnn.service.client.remote_device.peer_of", lambda _: Peer(1, 4711)
        )
        assert "user 4711" in await fails_to_connect(path)
        async with RemoteDevice(path, driver_uids=[4711]) as remote:
            assert not remote.is_lost

    async def test_giving_up_in_the_middle_leaves_no_socket(self, path: Path) -> None:
        with listening(str(path), socket.SOCK_SEQPACKET) as listener:
            entering = asyncio.create_task(_version(path))
            driver = await accept(listener)
            await driver.receive()
            await cancelled(entering)
            assert driver.end.recv(1) == b""
            driver.die()


async def _version(path: Path) -> str:
    async with RemoteDevice(path) as remote:
        return remote.get_version_string()[1]


class TestLifetimes:
    async def test_the_last_reference_releases_the_model_in_the_driver(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            first = await device.prepare(addition(2))
            second = await device.prepare(addition(2))
            assert len(driver.alive) == 2
            del first
            await until(lambda: len(driver.alive) == 1)
            outputs = await second.run({"x": X, "y": X})
            assert np.array_equal(outputs["z"], 2 * X)

    async def test_so_it_does_when_dropped_on_another_thread(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            kept = [await device.prepare(addition(2))]
            thread = threading.Thread(target=kept.clear)
            thread.start()
            thread.join()
            await until(lambda: not driver.alive)

    async def test_so_it_does_when_found_in_a_cycle(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            cycle: list[object] = [await device.prepare(addition(2))]
            cycle.append(cycle)
            del cycle
            gc.collect()
            await until(lambda: not driver.alive)

    async def test_closing_the_client_releases_everything(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            kept = [await device.prepare(addition(2)) for _ in range(3)]
            assert len(driver.alive) == 3
        await until(lambda: not driver.alive)
        assert len(kept) == 3

    async def test_a_reference_that_outlives_the_loop_is_harmless(
        self, path: Path
    ) -> None:
        def in_another_loop() -> object:
            async def prepare() -> object:
                async with served(path) as remote:
                    return await remote.prepare(addition(2))

            return asyncio.run(prepare())

        kept = [await asyncio.to_thread(in_another_loop)]
        kept.clear()

    async def test_a_cancelled_preparation_leaves_nothing(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            preparing = asyncio.create_task(device.prepare(addition(2)))
            await asyncio.sleep(0)
            await cancelled(preparing)
            await device.prepare(addition(2))
            await until(lambda: not driver.alive)


class TestClosing:
    async def test_what_is_pending_ends(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            model = await device.prepare(addition(2))
            running = asyncio.create_task(model.run({"x": X, "y": X}))
            preparing = asyncio.create_task(device.prepare(addition(2)))
            await asyncio.sleep(0)
        for task in (running, preparing):
            with pytest.raises(DeviceUnavailableError, match="is closed"):
                await task

    async def test_later_calls_fail(self, driver: WatchedDevice, path: Path) -> None:
        async with connect(path) as device:
            model = await device.prepare(addition(2))
        with NO_DEVICE:
            await model.run({"x": X, "y": X})
        with NO_DEVICE:
            await device.prepare(addition(2))
        status, supported = await device.hal.get_supported_operations_1_3(
            addition(2).model
        )
        assert (status, supported) == (ErrorStatus.DEVICE_UNAVAILABLE, ())
        assert device.hal.get_status() is DeviceStatus.OFFLINE

    async def test_a_launch_error_is_returned_and_notified(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with RemoteDevice(path) as remote:
            pass
        callback = PreparedModelFuture()
        assert _prepare(remote, callback, None) is ErrorStatus.DEVICE_UNAVAILABLE
        with NO_DEVICE:
            await callback


class TestDeadlines:
    async def test_one_that_has_passed_is_missed(
        self, driver: WatchedDevice, path: Path
    ) -> None:
        async with connect(path) as device:
            model = await device.prepare(addition(2))
            with pytest.raises(AsyncnnError) as raised:
                await model.run({"x": X, "y": X}, timeout=-1.0)
            assert raised.value.status.name.startswith("MISSED_DEADLINE")
            callback = PreparedModelFuture()
            _prepare(device.hal, callback, time.monotonic_ns() - 1)
            with pytest.raises(AsyncnnError) as raised:
                await callback
            assert raised.value.status.name.startswith("MISSED_DEADLINE")


def _prepare(
    device: RemoteDevice, callback: IPreparedModelCallback, deadline: int | None
) -> ErrorStatus:
    return launch_preparation(device, addition(2).model, callback, deadline=deadline)
