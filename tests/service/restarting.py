"""A driver in this process that comes and goes, and clients that wait for it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import DeviceStatus
from asyncnn.runtime.device import Device
from asyncnn.service import Server, ServiceLimits, Supervision
from tests.waits import until

BRIEFLY = Supervision(first_delay=0.005, max_delay=0.02, wait=5.0, give_up_after=5.0)


class Driver:
    """Serves ``path``, once it is started and until it is stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.limits = ServiceLimits()
        self._open = AsyncExitStack()

    async def start(self) -> None:
        device = await self._open.enter_async_context(ReferenceDevice())
        server = Server(device, self.path, limits=self.limits)
        await self._open.enter_async_context(server)

    async def stop(self) -> None:
        await self._open.aclose()

    async def restart(self, *devices: Device) -> None:
        """Come back as soon as ``devices`` have noticed."""
        await self.stop()
        for device in devices:
            await lost(device)
        await self.start()


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Driver]:
    driver = Driver(path)
    await driver.start()
    try:
        yield driver
    finally:
        await driver.stop()


async def lost(device: Device) -> None:
    await until(lambda: device.hal.get_status() is DeviceStatus.OFFLINE)


async def back(device: Device) -> None:
    await until(lambda: device.hal.get_status() is DeviceStatus.AVAILABLE)
