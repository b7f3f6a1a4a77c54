"""The process that runs one client's regions, apart from the driver and all others.

Engines read regions as they are, and end their process over some that nobody has
foreseen. So the driver's own device has none of them (`DeviceSettings.runs_regions`):
a client's are prepared, and run, by a device in a process of its own, which is started
for the first of them and ends with the connection. What is prepared there is to the
driver a model like any other, that of a device beyond a socket. If the process ends
before, calls end with DEVICE_UNAVAILABLE, and the next region has another one started.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeAlias
from weakref import WeakKeyDictionary

from asyncnn.burst.server import OpenBursts
from asyncnn.hal.errors import DeviceClosedError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import DeviceStatus

OpenIsolated: TypeAlias = Callable[[], AbstractAsyncContextManager[IDevice]]
"""Opens the driver's device in another process, until the context ends."""


class Isolated:
    """The device of one client's regions. Belongs to the event loop.

    Queues of ``bursts`` are read by the driver, which has mapped the client's memory.
    """

    def __init__(self, opening: OpenIsolated, max_bursts: int) -> None:
        self._opening = opening
        self._changing = asyncio.Lock()
        self._process = AsyncExitStack()
        self._device: IDevice | None = None
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._devices: WeakKeyDictionary[IPreparedModel, IDevice] = WeakKeyDictionary()
        self.bursts = OpenBursts(max_bursts)

    async def device(self) -> IDevice:
        """Return the device, which is opened first if there is none, or no more.

        :raises DeviceUnavailableError: if it cannot be opened, or the client has gone.
        :raises ResourceExhaustedError: if the driver has no room for another process.
        """
        async with self._changing:  # one process, however many ask at once
            if self._is_closed:
                raise DeviceClosedError("the client has gone")
            device = self._device
            if device is None or device.get_status() is DeviceStatus.OFFLINE:
                self._device = None
                await self._process.aclose()
                device = await self._process.enter_async_context(self._opening())
                self._device = device
            return device

    def adopt(self, prepared: IPreparedModel, device: IDevice) -> None:
        """Note which device has prepared a model."""
        self._devices[prepared] = device

    def device_of(self, models: Sequence[IPreparedModel | None]) -> IDevice | None:
        """Return the device that has prepared any of these; None if none has."""
        found = (self._devices.get(each) for each in models if each is not None)
        return next((device for device in found if device is not None), None)

    def close(self) -> None:
        """Begin to end the process: the client is gone."""
        if not self._is_closed:
            self._is_closed = True
            self.bursts.close()
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def wait_ended(self) -> None:
        """Wait until there is no process any more, once it is closed."""
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._changing:
            await self._process.aclose()
