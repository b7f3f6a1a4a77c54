# ruff: noqa: ASYNC240 - files of a test do not keep anybody waiting

import asyncio
import errno
import logging
import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError, GeneralFailureError
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import RemoteDevice, Server
from asyncnn.service.driver import server
from asyncnn.service.process import Peer, can_connect
from tests.networks import chain
from tests.service.conftest import Connect, Service, is_served
from tests.service.raw import RawClient
from tests.waits import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.sock"


async def test_only_the_user_may_connect(service: Service) -> None:
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o600


async def test_others_may_connect_if_some_are_allowed(path: Path) -> None:
    async with ReferenceDevice() as device, Server(device, path, allowed_uids=[12345]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert await is_served(path)


@pytest.mark.parametrize("measured", [False, True])
async def test_clients_learn_whether_capabilities_were_measured(
    path: Path, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceDevice, "has_measured_capabilities", measured)
    async with (
        ReferenceDevice() as device,
        Server(device, path),
        RemoteDevice(path) as remote,
    ):
        assert remote.has_measured_capabilities is measured


@pytest.mark.parametrize(("uid", "is_allowed"), [(12345, True), (12346, False)])
async def test_users_are_distinguished_by_their_credentials(
    path: Path, uid: int, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "peer_of", lambda _: Peer(1, uid))
    async with (
        ReferenceDevice() as device,
        Server(device, path, allowed_uids=[12345]) as served,
    ):
        if is_allowed:
            assert await is_served(path)
        else:
            with pytest.raises(DeviceUnavailableError):
                await is_served(path)
        assert served.connections <= is_allowed


def test_a_peer_is_known_by_its_process_and_user() -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert server.peer_of(ends[0]) == (os.getpid(), os.getuid())
    for end in ends:
        end.close()


async def test_the_socket_is_gone_when_the_server_is(path: Path) -> None:
    async with ReferenceDevice() as device:
        async with Server(device, path):
            assert can_connect(path)
        assert not path.exists()


async def test_a_socket_that_a_dead_driver_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    async with ReferenceDevice() as device, Server(device, path):
        assert await is_served(path)


async def test_a_live_driver_keeps_its_socket(service: Service) -> None:
    async with ReferenceDevice() as device:
        with pytest.raises(DeviceUnavailableError, match=r"serves .* already"):
            async with Server(device, service.path):
                pass
    assert await is_served(service.path)


async def test_a_driver_that_is_about_to_listen_keeps_its_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))
        starting = Server(ReferenceDevice(), path)
        opening = asyncio.create_task(starting.__aenter__())
        await asyncio.sleep(server._NEW_S / 10)
        other.listen()
        with pytest.raises(DeviceUnavailableError, match=r"serves .* already"):
            await opening
        assert can_connect(path)


async def test_a_file_in_the_way_is_not_removed(path: Path) -> None:
    path.write_text("precious")
    async with ReferenceDevice() as device:
        with pytest.raises(GeneralFailureError, match="Address already in use"):
            async with Server(device, path):
                pass
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["missing/driver.sock", "x" * 200])
async def test_a_path_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    async with ReferenceDevice() as device:
        with pytest.raises(GeneralFailureError, match="cannot serve"):
            async with Server(device, tmp_path / name):
                pass


async def test_a_socket_that_has_become_another_drivers_is_left_alone(
    path: Path,
) -> None:
    async with ReferenceDevice() as device:
        async with Server(device, path):
            path.unlink()
            other = Server(device, path)
            await other.__aenter__()
        assert await is_served(path)
        await other.__aexit__(None, None, None)
    assert not path.exists()


async def test_leaving_hangs_up_on_clients(path: Path) -> None:
    async with ReferenceDevice() as device:
        async with Server(device, path):
            raw = RawClient.connect(path)
            await raw.greet()
            idle = RawClient.connect(path)
        assert await raw.is_hung_up_on()
        assert await idle.is_hung_up_on()
        raw.close()
        idle.close()


async def test_clients_beyond_the_limit_are_hung_up_on(path: Path) -> None:
    async with (
        ReferenceDevice() as device,
        Server(device, path, max_connections=2) as served,
    ):
        first, second, third = (RawClient.connect(path) for _ in range(3))
        assert await third.is_hung_up_on()
        await first.greet()
        await second.greet()
        assert served.connections == 2
        first.close()
        await until(lambda: served.connections == 1)
        assert await is_served(path)
        second.close()
        third.close()


async def test_running_out_of_descriptors_only_delays_clients(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, 0

    def fail_twice(listener: socket.socket) -> object:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr("asyncnn.service.process._PAUSE_S", 0.001)
    monkeypatch.setattr(socket.socket, "accept", fail_twice)
    with caplog.at_level(logging.WARNING):
        assert await is_served(service.path)
    assert failures > 2
    assert caplog.text.count("Too many open files") == 1  # not one for each


async def test_nobody_serves_a_path_that_is_not_there(path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="no driver"):
        async with RemoteDevice(path):
            pass


async def test_a_flood_of_connections_leaves_room_for_honest_clients(
    service: Service, attach: Connect
) -> None:
    flood = [attach() for _ in range(100)]
    assert await is_served(service.path)
    for client in flood:
        client.close()
    await service.all_have_gone()


async def test_a_client_that_leaves_before_it_is_accepted_does_not_matter(
    service: Service, attach: Connect
) -> None:
    for _ in range(50):
        attach().close()
    await service.all_have_gone()


@pytest.mark.usefixtures("as_processes")
async def test_a_client_does_not_wait_for_all_that_another_one_has_queued(
    path: Path,
) -> None:
    settings = DeviceSettings(inline_below_us=0)
    async with (
        ReferenceDevice(settings) as device,
        Server(device, path),
        connect(path) as greedy,
        connect(path) as modest,
    ):
        x = np.zeros((64, 64), np.float32)
        models = [await each.prepare(chain(1000, 64, 64)) for each in (greedy, modest)]
        queued = [asyncio.create_task(models[0].run({"x": x})) for _ in range(100)]
        await until(lambda: device.statistics().executions.queued > 50)
        await models[1].run({"x": x})
        assert sum(not run.done() for run in queued) > 50
        await asyncio.gather(*queued)
