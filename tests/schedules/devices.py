"""Schedules of a device and its users: here, and behind a driver's socket."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    MissedDeadlineError,
    ResourceExhaustedTransientError,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server, Supervision
from asyncnn.service.process import private_address
from tests.networks import chain
from tests.schedules.world import World

LENGTH, SIZE = 6, 4
X = np.arange(SIZE, dtype=np.float32)
GRACE_S = 0.1
PATIENCE_S = 30.0

ALLOWED = (DeviceUnavailableError, MissedDeadlineError, ResourceExhaustedTransientError)
"""How a call may end that is given up, late or left when its device is closed."""


class User:
    """One task that uses a model, by one path after the other, and notes faults."""

    def __init__(
        self, world: World, device: Device, model: PreparedModel, faults: list[str]
    ) -> None:
        self._world = world
        self._device = device
        self._model = model
        self._faults = faults
        self.may_fail = False

    async def use(self) -> None:
        """Make some calls; some are late, some cancelled."""
        chance = self._world.chance
        for _ in range(chance.randint(1, 4)):
            await asyncio.sleep(chance.random() * 0.003)
            way = chance.choice((self._run, self._fenced, self._burst, self._prepare))
            timeout = chance.choice((None, None, chance.random() * 0.004))
            call = asyncio.ensure_future(way(chance.random() * 100, timeout))
            if chance.random() < 0.25:
                await asyncio.sleep(chance.random() * 0.002)
                call.cancel()
            begun_ns = self._world.now_ns
            await asyncio.wait({call}, timeout=PATIENCE_S)
            took_s = (self._world.now_ns - begun_ns) / 1e9
            if not call.done():
                self._faults.append(f"{way.__name__} has no end")
                call.cancel()
            elif call.cancelled():
                continue
            elif (error := call.exception()) is not None:
                if not isinstance(error, ALLOWED):
                    self._faults.append(f"{way.__name__}: {error!r}")
                elif timeout is None and not self.may_fail:
                    self._faults.append(f"{way.__name__} fails: {error!r}")
            if timeout is not None and took_s > timeout + GRACE_S + 0.1:
                self._faults.append(f"{way.__name__} ends {took_s} s after {timeout}")

    def _check(self, outputs: object, expected: np.ndarray) -> None:
        found = outputs["z"]  # type: ignore[index]
        if not np.array_equal(found, expected):
            self._faults.append(f"{found} in place of {expected}")

    async def _run(self, add: float, limit_s: float | None) -> None:
        x = X + np.float32(add)
        path = self._world.chance.choice(("async", "sync", "fenced"))
        outputs = await self._model.run([x], path=path, timeout=limit_s)
        self._check(outputs, plus(x, LENGTH))

    async def _fenced(self, add: float, limit_s: float | None) -> None:
        x, model = X + np.float32(add), self._model
        first = model.run_fenced([x])
        then = model.run_fenced([first.outputs["z"]], wait_for=[first], timeout=limit_s)
        self._check(await then, plus(x, 2 * LENGTH))
        self._check(await first, plus(x, LENGTH))

    async def _prepare(self, add: float, limit_s: float | None) -> None:
        x, length = X + np.float32(add), self._world.chance.choice((1, 60))
        model = await self._device.prepare(chain(length, SIZE), timeout=limit_s)
        self._check(await model.run([x]), plus(x, length))

    async def _burst(self, add: float, limit_s: float | None) -> None:
        x = X + np.float32(add)
        async with self._model.burst(spins=self._world.chance.random() < 0.5) as burst:
            for _ in range(2):
                outputs = await burst.run([x], timeout=limit_s)
                self._check(outputs, plus(x, LENGTH))


def plus(x: np.ndarray, times: int) -> np.ndarray:
    """Return what a chain of so many additions of one gives."""
    for _ in range(times):
        x = x + np.float32(1)
    return x


async def here(world: World) -> list[str]:
    """Use a device of this process."""
    async with AsyncExitStack() as stack:
        opening = open_device("reference", settings=_settings(world))
        device = await stack.enter_async_context(opening)
        return await _used(world, [device], stack)


async def remote(world: World) -> list[str]:
    """Use a driver on the same loop, as one or two clients."""
    async with AsyncExitStack() as stack:
        hal = await stack.enter_async_context(ReferenceDevice(_settings(world)))
        path = private_address()
        await stack.enter_async_context(Server(hal, path))
        clients = [connect(path) for _ in range(world.chance.randint(1, 2))]
        devices = [await stack.enter_async_context(each) for each in clients]
        return await _used(world, devices, stack)


async def supervised(world: World) -> list[str]:
    """Use a driver that dies and comes back, as a client that is supervised."""
    async with AsyncExitStack() as stack:
        hal = await stack.enter_async_context(ReferenceDevice(_settings(world)))
        path, servers = private_address(), AsyncExitStack()
        await servers.enter_async_context(Server(hal, path))
        patience = Supervision(first_delay=0.001, max_delay=0.01, wait=5.0)
        client = connect(path, supervised=patience)
        device = await stack.enter_async_context(client)

        async def restart() -> None:
            for _ in range(world.chance.randint(1, 3)):
                await asyncio.sleep(world.chance.random() * 0.01)
                await servers.aclose()
                await asyncio.sleep(world.chance.random() * 0.005)
                await servers.enter_async_context(Server(hal, path))

        faults = await _used(world, [device], stack, restart)
        await servers.aclose()
        return faults


def _settings(world: World) -> DeviceSettings:
    return DeviceSettings(
        inline_below_us=world.chance.choice((0, 1e9)),
        lanes=world.chance.randint(1, 2),
        idle_after_s=3600.0,
    )


async def _used(
    world: World,
    devices: list[Device],
    stack: AsyncExitStack,
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> list[str]:
    chance, faults = world.chance, list[str]()
    users: list[User] = []
    for device in devices:
        model = await device.prepare(chain(LENGTH, SIZE))
        count = chance.randint(1, 3)
        users += [User(world, device, model, faults) for _ in range(count)]
    tasks = [asyncio.ensure_future(user.use()) for user in users]
    if meanwhile is not None:
        tasks.append(asyncio.ensure_future(meanwhile()))
        for user in users:
            user.may_fail = True
    if chance.random() < 0.3:
        await asyncio.sleep(chance.random() * 0.01)
        for user in users:
            user.may_fail = True
        await stack.aclose()
    await asyncio.wait(tasks)
    for task in tasks:
        if task.exception() is not None:
            faults.append(repr(task.exception()))
    return faults
