"""Frameworks over driver processes: all paths on one model, and drivers that die."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.service.driver.server import Server
from asyncnn.service.process import private_address, running_driver
from tests.runtime.framework.crippled import CrippledDevice, Fault
from tests.runtime.framework.mixed import (
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
    mixed,
)
from tests.service.restarting import BRIEFLY, running

PATHS = ("async", "sync", "burst", "fenced")
T = asyncnn.OperationType


def command_of(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@asynccontextmanager
async def with_driver(refuses: set[T]) -> AsyncIterator[tuple[Device, int]]:
    """Open a framework of a driver process and the CPU; yield the process's number."""
    async with running_driver() as driver, asyncnn.connect(driver.path) as remote:
        # What a driver supports is its own matter; this one pretends to be partial.
        partial = CrippledDevice(remote.hal, refuses)  # type: ignore[arg-type]
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("driver", partial, is_remote=True)],
            framework=WHEREVER_BETTER,
        ) as hal:
            yield (
                Device("framework", hal, make_array=asyncnn.shared_array),
                driver.process.pid,
            )
        partial.bursts.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_driver_a_sample_and_the_cpu_work_on_one_model(path: str) -> None:
    given = inputs((32, 32))
    wanted = await expected(given, mixed((32, 32)))
    async with (
        running_driver() as driver,
        asyncnn.connect(driver.path) as remote,
        asyncnn.open_device("sample-float-fast") as sample,
    ):
        driven = CrippledDevice(remote.hal, set(T) - {T.QUANTIZE, T.RELU6}, figure=0.7)
        async with open_framework(
            DeviceSettings(),
            devices=[
                OpenDevice("driver", driven, is_remote=True),
                OpenDevice("sample", sample.hal),
            ],
            framework=WHEREVER_BETTER,
        ) as hal:
            device = Device("framework", hal, make_array=asyncnn.shared_array)
            prepared = await device.prepare(mixed((32, 32)))
            async with prepared.runner(path) as run:
                for _ in range(3):
                    outputs = await run(given)
                    assert_same(outputs, wanted)
            assert outputs.route.devices == ("sample", "driver", "reference", "sample")
        driven.bursts.close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("refuses", [set(), {T.QUANTIZE, T.RELU6}], ids=["all", "part"])
async def test_a_driver_that_is_killed_is_made_up_for(
    refuses: set[T], path: str
) -> None:
    given = inputs()
    wanted = await expected(given)
    async with with_driver(refuses) as (device, pid):
        prepared = await device.prepare(mixed())
        assert "driver" in prepared.hal.usual_route.devices
        async with prepared.runner(path) as run:
            for number in range(4):
                if number == 2:
                    os.kill(pid, signal.SIGKILL)
                outputs = await run(given)
                assert_same(outputs, wanted)
                assert outputs.route.fell_back == (number >= 2), number
        assert "DEVICE_UNAVAILABLE" in str(outputs.route)
        counts = (await device.statistics()).fallbacks
        assert {count.instead_of for count in counts} == {"driver"}
        # What is prepared now has no part on it.
        again = await (await device.prepare(mixed())).run(given)
        assert again.route.devices == ("reference",)


@pytest.mark.parametrize("path", ["async", "fenced"])
async def test_a_driver_is_killed_in_the_midst_of_a_partition(path: str) -> None:
    shape = (2000, 2000)
    given = inputs(shape)
    wanted = await expected(given, mixed(shape))
    async with with_driver({T.QUANTIZE, T.RELU6, T.DEQUANTIZE}) as (device, pid):
        prepared = await device.prepare(mixed(shape))
        task = asyncio.create_task(prepared.run(given, path=path))
        await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        outputs = await task
        assert_same(outputs, wanted)
        assert outputs.route.fell_back


@pytest.mark.parametrize("path", ["async", "fenced"])
@pytest.mark.parametrize("are_shared", [False, True])
async def test_a_driver_that_is_stopped_misses_the_deadline(
    path: str, are_shared: bool
) -> None:
    given = inputs()
    wanted = await expected(given)
    async with with_driver(set()) as (device, pid):
        out = None
        if are_shared:
            out = {n: asyncnn.shared_array(z.shape, z.dtype) for n, z in wanted.items()}
        prepared = await device.prepare(mixed())
        os.kill(pid, signal.SIGSTOP)
        try:
            if are_shared:  # it may write to them when it goes on: nobody else does
                with pytest.raises(TimeoutError, match="has not answered"):
                    await prepared.run(given, out=out, timeout=0.05, path=path)
                return
            outputs = await prepared.run(given, timeout=0.05, path=path)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert_same(outputs, wanted)
        assert "MISSED_DEADLINE_TRANSIENT" in outputs.route.steps[0].reason


async def test_a_supervised_driver_comes_back(tmp_path: Path) -> None:
    given = inputs()
    wanted = await expected(given)
    path = tmp_path / "driver.sock"
    async with (
        running(path) as driver,
        asyncnn.connect(path, supervised=replace(BRIEFLY, wait=0.0)) as remote,
    ):
        devices = [OpenDevice("driver", CrippledDevice(remote.hal), is_remote=True)]  # type: ignore[arg-type]
        async with open_framework(
            DeviceSettings(), devices=devices, framework=WHEREVER_BETTER
        ) as hal:
            prepared = await Device("framework", hal).prepare(mixed())
            assert prepared.hal.usual_route.devices == ("driver",)
            assert not (await prepared.run(given)).route.fell_back
            await driver.stop()
            outputs = await prepared.run(given)
            assert_same(outputs, wanted)
            assert outputs.route.fell_back
            await driver.start()
            for _ in range(200):
                outputs = await prepared.run(given)
                assert_same(outputs, wanted)
                if not outputs.route.fell_back:
                    break
                await asyncio.sleep(0.02)
            assert not outputs.route.fell_back, "it never was tried again"


@pytest.mark.parametrize("path", PATHS)
async def test_a_driver_serves_a_framework(path: str) -> None:
    given = inputs()
    wanted = await expected(given)
    async with ReferenceDevice() as inner:
        odd = CrippledDevice(inner, {T.RELU6}, Fault.EXECUTING_LATER, healthy=2)
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("odd", odd)],
            framework=WHEREVER_BETTER,
        ) as hal:
            address = private_address()
            async with Server(hal, address), asyncnn.connect(address) as remote:
                prepared = await remote.prepare(mixed())
                assert prepared.hal.usual_route.devices == ("odd", "reference", "odd")
                async with prepared.runner(path) as run:
                    for number in range(3):
                        outputs = await run(given)
                        assert_same(outputs, wanted)
                        if path == "burst":
                            assert outputs.route is None  # packets have no room
                            continue
                        assert outputs.route.fell_back == (number > 0)
                        if number:
                            assert outputs.route.steps[0].instead_of == "odd"
                            assert "GENERAL_FAILURE" in str(outputs.route)
                assert (await remote.statistics()).fallbacks
        odd.bursts.close()


async def test_a_supervised_client_knows_the_route_too() -> None:
    given = inputs()
    async with open_framework(
        DeviceSettings(), ["sample-float-fast"], framework=WHEREVER_BETTER
    ) as hal:
        address = private_address()
        async with (
            Server(hal, address),
            asyncnn.connect(address, supervised=BRIEFLY) as remote,
        ):
            prepared = await remote.prepare(mixed())
            outputs = await prepared.run(given)
    fast = "sample-float-fast"
    assert outputs.route.devices == (fast, "reference", fast)


async def test_two_drivers_of_ones_own_join_one_framework() -> None:
    given = inputs()
    wanted = await expected(given)
    async with (
        asyncnn.connect() as one,
        asyncnn.connect(supervised=True) as other,
        asyncnn.open_devices(one, other, framework=WHEREVER_BETTER) as device,
    ):
        names = [member.name for member in device.hal.members[:2]]
        assert names == [one.name, other.name]
        for name in names:
            scope, _, pid = name.rpartition("-")
            assert scope == "remote:reference"
            assert "asyncnn.service.start" in command_of(pid)
        assert_same(await (await device.prepare(mixed())).run(given), wanted)


async def test_names_and_open_devices_may_be_given_together() -> None:
    async with (
        asyncnn.connect() as remote,
        asyncnn.open_devices(
            remote, "sample-quant", "reference", framework=WHEREVER_BETTER
        ) as device,
    ):
        assert [m.name for m in device.hal.members] == [
            remote.name,
            "sample-quant",
            "reference",
        ]
        assert device.is_remote
        outputs = await (await device.prepare(mixed())).run(inputs())
        np.testing.assert_array_equal(outputs["y"], (await expected(inputs()))["y"])
        with pytest.raises(asyncnn.InvalidArgumentError, match="have the name"):
            async with asyncnn.open_devices(remote, remote):
                pass
