"""A forked child leaves what its parent has opened alone, and opens its own."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture, PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import ForkedError
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    DeviceStatus,
    ErrorStatus,
    ExecutionPreference,
    MeasureTiming,
    Priority,
    Request,
)
from asyncnn.memory.shared import allocate
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import RemoteDevice, Server
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import RemotePreparedModel
from asyncnn.service.process import can_connect, driver_process, running_driver
from tests.forks import in_child
from tests.networks import addition, chain
from tests.service.fake_driver import FakeDriver
from tests.service.restarting import running
from tests.waits import until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

X = np.arange(4, dtype=np.float32)
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE


async def works(model: PreparedModel) -> bool:
    result = await model.run({"x": X, "y": X})
    return np.array_equal(result["z"], 2 * X)


async def refusals(hal: Any, model: Any, buffer: Any) -> list[ErrorStatus]:
    """Return how every call of a device ends."""
    nothing = Request((), (), ())
    for large in (chain(1, 4).model, chain(100, 4).model):
        callback = PreparedModelFuture()
        options = ExecutionPreference.LOW_POWER, Priority.LOW, None, (), (), bytes(32)
        found = [hal.prepare_model_1_3(large, *options, callback)]
        with pytest.raises(Exception, match="fork"):
            await callback
        found.append((await hal.get_supported_operations_1_3(large))[0])
    callback = PreparedModelFuture()
    found.append(hal.prepare_model_from_cache_1_3(None, (), (), bytes(32), callback))
    model._rules.check = lambda *_, **__: None
    run = ExecutionFuture()
    found.append(model.execute_1_3(nothing, MeasureTiming.NO, None, None, run))
    fence = SyncFence.signalled()
    options = MeasureTiming.NO, None, None, None
    found.append(model.execute_fenced(nothing, [fence], *options)[0])
    if buffer is not None:
        found.append(await buffer.copy_to(allocate(16)))
    roles = [BufferRole(0, 0, 1.0)]
    found.append((await hal.allocate(BufferDesc(()), [model], roles, ()))[0])
    return found


class TestARemoteDevice:
    @pytest.mark.parametrize("is_supervised", [False, True])
    async def test_refuses_every_call_in_the_child_and_goes_on_in_the_parent(
        self, tmp_path: Path, is_supervised: bool
    ) -> None:
        async with (
            running(tmp_path / "driver.sock") as driver,
            connect(driver.path, supervised=is_supervised) as device,
        ):
            model = await device.prepare(addition(4))
            hal: Any = device.hal
            roles = [BufferRole(0, 0, 1.0)]
            _, buffer, _ = await hal.allocate(BufferDesc(()), [model.hal], roles, ())

            def child() -> tuple[list[str], object, list[object]]:
                found = asyncio.run(refusals(hal, model.hal, buffer))
                things: list[Any] = [hal, model.hal, buffer]
                causes = [type(thing.cause_of_death()) for thing in things]
                return [s.name for s in found], hal.get_status(), list(causes)

            names, status, causes = await in_child(child)
            assert set(names) == {UNAVAILABLE.name}
            assert status is DeviceStatus.OFFLINE
            assert causes == [ForkedError] * 3
            assert await works(model)

    async def test_sends_nothing_from_the_child_whatever_is_collected_there(
        self,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection, driver = Connection(ours), FakeDriver(theirs)
        held = [RemotePreparedModel(connection, 1, addition(2).model)]
        pools = [allocate(8)]
        connection.known.of_pools(pools)
        await driver.receive()

        def child() -> None:
            held.clear()
            pools.clear()
            gc.collect()
            connection.release_prepared(7)
            connection.close()

        await in_child(child)
        with pytest.raises(BlockingIOError):
            theirs.recv(10)
        connection.release_prepared(7)
        assert theirs.recv(100)
        held.clear()
        connection.close()
        driver.die()

    @pytest.mark.parametrize("is_supervised", [False, True])
    async def test_may_be_left_in_the_child(self, is_supervised: bool) -> None:
        manager = connect(supervised=is_supervised)
        device = await manager.__aenter__()
        try:
            model = await device.prepare(addition(4))
            await in_child(lambda: asyncio.run(_leave(manager)))
            assert await works(model)
        finally:
            await manager.__aexit__(None, None, None)

    async def test_one_of_the_childs_own_works_there(self, tmp_path: Path) -> None:
        async with (
            running(tmp_path / "driver.sock") as driver,
            connect(driver.path) as device,
        ):
            model = await device.prepare(addition(4))
            assert await in_child(lambda: asyncio.run(_own_devices(driver.path)))
            assert await works(model)

    async def test_multiprocessing_may_fork_beside_it(self, tmp_path: Path) -> None:
        async with (
            running(tmp_path / "driver.sock") as driver,
            connect(driver.path) as device,
        ):
            model = await device.prepare(addition(4))
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            process = context.Process(target=_report, args=(theirs, device, driver))
            process.start()
            while not ours.poll():
                assert await works(model)
            assert ours.recv() == ("ForkedError", True)
            while process.is_alive():
                assert await works(model)
            process.join()
            assert process.exitcode == 0
            process.close()


class TestADriver:
    async def test_of_the_parents_goes_on_when_the_child_leaves_or_kills_it(
        self,
    ) -> None:
        manager = running_driver()
        driver = await manager.__aenter__()

        def child() -> bool:
            asyncio.run(_leave(manager))
            driver.kill()
            gc.collect()
            return can_connect(driver.path)

        assert await in_child(child)
        assert driver.process.poll() is None
        assert can_connect(driver.path)
        await manager.__aexit__(None, None, None)
        assert not can_connect(driver.path)

    async def test_that_blocks_may_be_left_as_well(self) -> None:
        with driver_process() as driver:

            def child() -> None:
                with contextlib.suppress(KeyError), contextlib.ExitStack():
                    raise KeyError

            manager = driver_process()
            other = manager.__enter__()
            await in_child(lambda: manager.__exit__(None, None, None))
            await in_child(child)
            assert can_connect(other.path)
            assert can_connect(driver.path)
            manager.__exit__(None, None, None)

    async def test_in_the_parent_serves_on_when_the_child_leaves_it(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "driver.sock"
        async with ReferenceDevice() as hal, Server(hal, path) as server:
            async with RemoteDevice(path) as remote:
                await in_child(lambda: asyncio.run(server.__aexit__(None, None, None)))
                assert path.exists()
                await remote.get_statistics()
            async with RemoteDevice(path) as remote:
                await remote.get_statistics()

    async def test_notices_the_parents_end_though_the_child_lives_on(self) -> None:
        reader, writer = os.pipe()
        kept: list[object] = []

        def parent() -> tuple[int, str]:
            manager = driver_process()
            driver = manager.__enter__()
            device = RemoteDevice(driver.path)
            asyncio.run(device.__aenter__())  # type: ignore[arg-type]
            kept.extend((manager, device))  # it dies without closing them
            if not os.fork():
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
            return driver.pid, str(driver.path)

        pid, path = await in_child(parent)
        await until(lambda: not can_connect(path))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(writer)
        os.close(reader)


async def _leave(manager: Any) -> None:
    await manager.__aexit__(None, None, None)


async def _own_devices(path: Path) -> bool:
    async with connect(path) as mine:
        is_right = await works(await mine.prepare(addition(4)))
    async with connect() as mine:
        is_right &= await works(await mine.prepare(addition(4)))
    async with open_device() as mine:
        is_right &= await works(await mine.prepare(addition(4)))
    return is_right


def _report(pipe: Any, device: Device, driver: Any) -> None:
    hal: Any = device.hal
    cause = type(hal.cause_of_death()).__name__
    pipe.send((cause, asyncio.run(_own_devices(driver.path))))
