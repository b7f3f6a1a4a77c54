"""Drivers of HAL 1.0 to 1.2 whose calls are recorded, and may be scripted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    MeasureTiming,
    Model,
    Priority,
)
from asyncnn.hal.versions import VersionedDevice, v1_0, v1_1, v1_2
from asyncnn.runtime.framework.older_drivers import OlderDriver
from asyncnn.runtime.requests import RequestBuilder
from tests.networks import addition
from tests.preparing import prepared_by

V1_0, V1_1, V1_2, V1_3 = list(HalVersion)[:4]
OLDER = (V1_0, V1_1, V1_2)
MODELS = {V1_0: v1_0.Model, V1_1: v1_1.Model, V1_2: v1_2.Model}
NONE, FAILED = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE
INVALID = ErrorStatus.INVALID_ARGUMENT
CLOSED = ErrorStatus.DEVICE_UNAVAILABLE
LATE = ErrorStatus.MISSED_DEADLINE_TRANSIENT
FAST = ExecutionPreference.FAST_SINGLE_ANSWER
NO, YES = MeasureTiming.NO, MeasureTiming.YES


INTERFACES = {
    V1_0: (v1_0.IDevice, v1_0.IPreparedModel),
    V1_1: (v1_1.IDevice, v1_0.IPreparedModel),
    V1_2: (v1_2.IDevice, v1_2.IPreparedModel),
}


class Driver:
    """A driver that has the calls of ``version`` alone, those of ``inner`` if it can.

    ``scripted`` calls take the place of others. ``calls`` are those that were made, of
    the device and of what it has prepared, with their arguments.
    """

    def __init__(
        self,
        inner: object,
        version: HalVersion,
        interface: type | None = None,
        calls: list[tuple[str, tuple]] | None = None,
        **scripted: Callable,
    ) -> None:
        self.inner = inner
        self.version = version
        self.interface = interface or INTERFACES[version][0]
        self.calls = [] if calls is None else calls
        self.scripted = scripted

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.interface, name):
            raise AttributeError(name)
        call = self.scripted.get(name) or getattr(self.inner, name)

        def recorded(*args: Any) -> Any:
            self.calls.append((name, args))
            if name.startswith("prepare_model") and name not in self.scripted:
                kind = Recording1_2 if self.version is V1_2 else Recording1_0
                return call(*args[:-1], kind(self, args[-1]))
            return call(*args)

        return recorded

    def names(self) -> set[str]:
        return {name for name, _ in self.calls}


class Recording1_0(v1_0.IPreparedModelCallback):  # noqa: N801 - named like the version
    """Gives a callback a model whose calls are recorded as well."""

    def __init__(self, driver: Driver, callback: Any) -> None:
        super().__init__()
        self.driver, self.callback = driver, callback
        callback.link_to_death(self.die)

    def notify(self, status: ErrorStatus, prepared_model: object) -> None:
        self.callback.reason = self.reason
        driver, given = self.driver, prepared_model
        if given is not None:
            interface = INTERFACES[driver.version][1]
            calls, scripted = driver.calls, driver.scripted
            given = Driver(given, driver.version, interface, calls, **scripted)
        self.callback.notify(status, given)


class Recording1_2(v1_2.IPreparedModelCallback):  # noqa: N801
    def __init__(self, driver: Driver, callback: Any) -> None:
        super().__init__()
        self.driver, self.callback = driver, callback
        callback.link_to_death(self.die)

    notify_1_2 = Recording1_0.notify


@asynccontextmanager
async def adapted(
    version: HalVersion, **scripted: Callable
) -> AsyncIterator[tuple[OlderDriver, Driver]]:
    async with ReferenceDevice(DeviceSettings(inline_below_us=0)) as device:
        driver = Driver(VersionedDevice(device), version, **scripted)
        async with OlderDriver(driver) as older:
            yield older, driver


async def prepare(
    device: Any, model: Model, deadline: int | None = None
) -> IPreparedModel:
    return await prepared_by(device, model, priority=Priority.HIGH, deadline=deadline)


def sums(*shape: int) -> tuple[Any, np.ndarray]:
    """Return a request for `addition`, and the array that gets its result."""
    named = addition(*shape)
    x, y, z = (np.full(shape, value, np.float32) for value in (1, 2, 0))
    return RequestBuilder(named.inputs, named.outputs)([x, y], [z]), z


async def execute(
    prepared: IPreparedModel,
    request: Any,
    measure: MeasureTiming = NO,
    deadline: int | None = None,
) -> tuple[ErrorStatus, Any]:
    """Return what the call returned, and what the callback was told."""
    callback = ExecutionFuture()
    launched = prepared.execute_1_3(request, measure, deadline, None, callback)
    async with asyncio.timeout(20):
        return launched, await callback


def soon(seconds: float = 0.02) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)
