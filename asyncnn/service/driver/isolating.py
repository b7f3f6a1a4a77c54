"""The process that runs one client's regions, apart from the driver and all others.

Engines read regions as they are, and end their process over some that nobody has
foreseen. Those that the HAL's operations can say were checked by its rules, operator by
operator: the driver's device runs them. All others of a client are prepared, and run,
by a device in a process of its own, which is started for the first of them and ends
with the connection. What is prepared there is to the driver a model like any other,
of a device beyond a socket. If the process ends before, calls end with
DEVICE_UNAVAILABLE, and the next region has another one started.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from asyncnn.burst.server import OpenBursts
from asyncnn.hal.errors import DeviceClosedError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import DeviceStatus, Memory, Model, Subgraph
from asyncnn.memory.handles import is_immutable, seals_of
from asyncnn.memory.pools import from_buffer, view
from asyncnn.offload import offload, offload_steps
from asyncnn.pacing import Steps
from asyncnn.service.driver.quotas import CountedTable, Quota


class Isolation(msgspec.Struct, frozen=True):
    """Which regions run apart, and what opens the device in another process.

    ``may_stay`` checks a model of regions whose bytes cannot change any more: whether
    the driver's device may run it.
    """

    opening: Callable[[], AbstractAsyncContextManager[IDevice]]
    may_stay: Callable[[Model], Steps[bool]]


class Isolated:
    """The device of one client's regions. Belongs to the event loop.

    Queues of ``bursts`` are read by the driver, which has mapped the client's memory.
    Its process is one of the ``processes`` that its user may have.
    """

    def __init__(self, isolation: Isolation, max_bursts: int, processes: Quota) -> None:
        self._isolation = isolation
        self._quota = processes
        self._processes: CountedTable[IDevice | None] = processes.table()
        self._checked: WeakKeyDictionary[Memory, tuple[Subgraph, bytes, bool]]
        self._checked = WeakKeyDictionary()
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
                self._quota.check(self._processes)
                self._processes[0] = None
                self._process.callback(self._processes.clear)
                device = await self._process.enter_async_context(
                    self._isolation.opening()
                )
                self._device = device
            return device

    async def place(self, model: Model, own: IDevice) -> tuple[Model, IDevice]:
        """Return a model of regions, and what runs it: ``own``, or `device`.

        What the client could change between the check and the engine is copied.

        :raises DeviceUnavailableError: as `device`.
        :raises ResourceExhaustedError: as `device`, or if no thread can be started.
        """
        if not all(map(_is_fixed, model.pools)):
            model = replace(model, pools=await offload(_copies, model.pools))
        return model, await self.device() if await self.has_to_run(model) else own

    async def has_to_run(self, model: Model) -> bool:
        """Return whether a model of regions must not run in the driver.

        It is checked on a thread; a client that asks whether it runs has it prepared
        next, as a rule.
        """
        if len(model.pools) != 1:
            return True
        (pool,) = model.pools
        *known, may_stay = self._checked.get(pool, (None, None, False))
        if known != [model.main, model.operand_values]:
            may_stay = await offload_steps(self._isolation.may_stay(model))
            self._checked[pool] = model.main, model.operand_values, may_stay
        return not may_stay

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


def _is_fixed(pool: Memory) -> bool:
    fds = pool.handle.fds
    return bool(fds) and is_immutable(seals_of(fds[0]))


def _copies(pools: Sequence[Memory]) -> tuple[Memory, ...]:
    return tuple(from_buffer(bytes(view(pool))) for pool in pools)
