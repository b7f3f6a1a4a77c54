"""Where scenarios play: devices of each kind, and what every scenario needs of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import DeviceStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server
from asyncnn.service.process import DriverProcess
from tests.networks import chain
from tests.service.conftest import LIMITS
from tests.sweep.witness import POOL, Witness, traces_of
from tests.waits import until

LENGTH, SIZE = 20, 256
X = np.arange(SIZE, dtype=np.float32)
STEADY_S = 3600.0
"""Nothing rests meanwhile, so that threads and timers stay as they are."""

ON_LANES = DeviceSettings(inline_below_us=0, idle_after_s=STEADY_S)
INLINE = DeviceSettings(inline_below_us=1e9, idle_after_s=STEADY_S)


class Stage:
    """What a scenario plays on.

    ``folder`` is its own, ``path`` the socket of a driver. ``devices`` are those that
    it opens itself, to be closed in the end; ``given`` is what was made for it before.
    """

    def __init__(self, folder: Path, witness: Witness) -> None:
        self.folder = folder
        self.path = folder / "driver.sock"
        self.witness = witness
        self.devices: list[Device] = []
        self.given: Any = None
        self._device: Device | None = None
        self._model: PreparedModel | None = None

    @property
    def device(self) -> Device:
        """The device of the home."""
        assert self._device is not None
        return self._device

    @property
    def model(self) -> PreparedModel:
        """A chain of `LENGTH` additions on the device."""
        assert self._model is not None
        return self._model

    async def furnish(self, device: Device) -> None:
        """Prepare a model on ``device``, which is the home's."""
        self._device = device
        self._model = await device.prepare(chain(LENGTH, SIZE))

    async def check(self) -> None:
        """Check that the device computes, and that those of the scenario are closed."""
        if self._device is not None:
            check(await self.model.run(X))
        devices, self.devices = self.devices, []
        for device in devices:
            assert device.hal.get_status() is DeviceStatus.OFFLINE
            with pytest.raises(DeviceUnavailableError):
                await device.prepare(chain(1, 4))


def tended(task: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """Return ``task``, whose failure is nobody's business if it is not awaited."""
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


def check(outputs: Any, name: str = "z") -> None:
    """Check the results of the model of a stage, or another of its length."""
    np.testing.assert_array_equal(outputs[name], X + LENGTH)


Home: TypeAlias = Callable[
    [Path, DriverProcess | None], AbstractAsyncContextManager[Stage]
]


@asynccontextmanager
async def alone(folder: Path, _: DriverProcess | None) -> AsyncIterator[Stage]:
    """No device: the scenario opens its own."""
    yield Stage(folder, Witness())


@asynccontextmanager
async def lane(
    folder: Path, _: DriverProcess | None, settings: DeviceSettings = ON_LANES
) -> AsyncIterator[Stage]:
    """A device in this process, which executes on its lane."""
    async with open_device(settings=settings) as device:
        assert isinstance(device.hal, ReferenceDevice)
        stage = Stage(folder, Witness([device.hal]))
        await stage.furnish(device)
        yield stage


def inline(
    folder: Path, driver: DriverProcess | None
) -> AbstractAsyncContextManager[Stage]:
    """A device in this process, which executes on the loop."""
    return lane(folder, driver, INLINE)


@asynccontextmanager
async def served(folder: Path, _: DriverProcess | None) -> AsyncIterator[Stage]:
    """A driver on the same loop, for raw clients."""
    path = folder / "driver.sock"
    async with (
        ReferenceDevice(ON_LANES) as hal,
        Server(hal, path, limits=LIMITS) as server,
    ):
        yield Stage(folder, Witness([hal], [server]))


@asynccontextmanager
async def remote(folder: Path, _: DriverProcess | None) -> AsyncIterator[Stage]:
    """A driver on the same loop, and a client of it."""
    path = folder / "driver.sock"
    async with (
        ReferenceDevice(ON_LANES) as hal,
        Server(hal, path) as server,
        connect(path) as device,
    ):
        stage = Stage(folder, Witness([hal], [server], [device]))
        await stage.furnish(device)
        yield stage


@asynccontextmanager
async def process(folder: Path, driver: DriverProcess | None) -> AsyncIterator[Stage]:
    """A driver process, and a client of it, of whom nothing is left there."""
    assert driver is not None

    def pools() -> int:
        return sum(bool(POOL.search(what)) for what in traces_of(str(driver.pid)))

    async with connect(driver.path) as device:
        stage = Stage(folder, Witness(devices=[device], pids=[driver.pid]))
        await stage.furnish(device)
        yield stage
    await until(lambda: not pools())


HOMES: dict[str, Home] = {
    home.__name__: home for home in (alone, lane, inline, served, remote, process)
}
