"""What `get_status` answers, in this process and behind a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture, PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    DeviceStatus,
    ExecutionPreference,
    MeasureTiming,
    Priority,
)
from asyncnn.service import RemoteDevice, Server, Supervision
from asyncnn.service.supervised_device import supervised
from tests.devices.test_execution import request_for
from tests.engine.test_control_flow import while_model
from tests.waits import until

PENDING = 3
ENDLESS = while_model((3,), endless=True)
LOOP_TIMEOUT_NS = 10 * 10**9
TOKEN = bytes(BYTE_SIZE_OF_CACHE_TOKEN)


@pytest.fixture(params=["inprocess", "remote", "supervised"])
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[IDevice]:
    settings = DeviceSettings(max_pending=PENDING, inline_below_us=0)
    async with ReferenceDevice(settings) as device:
        if request.param == "inprocess":
            yield device
            return
        path = tmp_path / "driver.sock"
        async with Server(device, path):
            if request.param == "remote":
                async with RemoteDevice(path) as remote:
                    yield remote
            else:
                async with supervised(
                    lambda: RemoteDevice(path), Supervision()
                ) as outliving:
                    yield outliving


def launch(prepared: IPreparedModel) -> ExecutionFuture:
    future = ExecutionFuture()
    x, count = np.zeros(3, np.float32), np.zeros(1, np.int32)
    request = request_for([count + 1, x, count], [count.copy(), x.copy()])
    prepared.execute_1_3(request, MeasureTiming.NO, None, LOOP_TIMEOUT_NS, future)
    return future


async def test_a_device_is_busy_while_its_queue_is_full(device: IDevice) -> None:
    assert device.get_status() is DeviceStatus.AVAILABLE
    future = PreparedModelFuture()
    options = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM, None, (), ()
    device.prepare_model_1_3(ENDLESS, *options, TOKEN, future)
    prepared = await future
    pending = [launch(prepared) for _ in range(PENDING)]
    await until(lambda: device.get_status() is DeviceStatus.BUSY)
    with pytest.raises(ResourceExhaustedTransientError):
        (await launch(prepared)).raise_for_status()
    for execution in pending:
        execution.die()
    await until(lambda: device.get_status() is DeviceStatus.AVAILABLE)


async def test_it_is_told_again_of_a_device_that_is_entered_again() -> None:
    device = ReferenceDevice(DeviceSettings(max_pending=1, inline_below_us=0))
    for _ in range(2):
        told: list[DeviceStatus] = []
        async with device:
            device.watch_status(told.append)
            future = PreparedModelFuture()
            options = (ExecutionPreference.LOW_POWER, Priority.MEDIUM, None, (), ())
            device.prepare_model_1_3(ENDLESS, *options, TOKEN, future)
            prepared = await future
            told.clear()
            execution = launch(prepared)
            await until(lambda: told == [DeviceStatus.BUSY])  # noqa: B023
            ended = device.watch_status(lambda _: pytest.fail("it was ended"))
            ended()
            execution.die()
            await until(lambda: told == [DeviceStatus.BUSY, DeviceStatus.AVAILABLE])  # noqa: B023


async def test_a_client_that_comes_to_a_busy_driver_learns_of_it(
    tmp_path: Path,
) -> None:
    settings = DeviceSettings(max_pending=1, inline_below_us=0)
    path = tmp_path / "driver.sock"
    async with ReferenceDevice(settings) as device, Server(device, path):
        future = PreparedModelFuture()
        options = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM, None, (), ()
        device.prepare_model_1_3(ENDLESS, *options, TOKEN, future)
        execution = launch(await future)
        async with RemoteDevice(path) as remote:
            await until(lambda: remote.get_status() is DeviceStatus.BUSY)
            execution.die()
            await until(lambda: remote.get_status() is DeviceStatus.AVAILABLE)
        assert remote.get_status() is DeviceStatus.OFFLINE
