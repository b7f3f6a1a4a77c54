"""Devices that compute like the reference device, as far as they are not crippled.

Each refuses some types of operations, and may fail in one way: at answering, at
preparing, or from some execution on.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from asyncnn.burst import OpenBursts
from asyncnn.callbacks import FencedOutcome, OneShot, SynchronousByCallback
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import DeviceUnavailableError, DriverDiedError
from asyncnn.hal.interfaces import cause_of_death
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import (
    NO_TIMING,
    BufferToken,
    Capabilities,
    DeviceType,
    ErrorStatus,
    Model,
    PerformanceInfo,
)

LATE = ErrorStatus.MISSED_DEADLINE_TRANSIENT
DEAD = ErrorStatus.DEVICE_UNAVAILABLE
FAILED = ErrorStatus.GENERAL_FAILURE
BUSY = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class Fault(Enum):
    """How a device fails."""

    NONE = "none"
    ANSWERING = "answering"
    ANSWERS_NONSENSE = "answers nonsense"
    RAISES_AT_ANSWERING = "raises at answering"
    PREPARING = "preparing"
    PREPARING_LATER = "preparing later"
    RAISES_AT_PREPARING = "raises at preparing"
    EXECUTING = "executing"
    EXECUTING_LATER = "executing later"
    RAISES_AT_EXECUTING = "raises at executing"
    LATE = "late"
    BUSY = "busy"
    DYING = "dying"
    SILENT = "silent"


EXECUTING = {
    Fault.EXECUTING: FAILED,
    Fault.EXECUTING_LATER: FAILED,
    Fault.RAISES_AT_EXECUTING: FAILED,
    Fault.LATE: LATE,
    Fault.BUSY: BUSY,
    Fault.DYING: DEAD,
}


class CrippledDevice:
    """An `IDevice` that refuses operations of some types, and fails by ``fault``.

    Faults of executions begin after some, ``healthy`` of them. All else goes to
    ``inner``, a reference device. ``figure`` is what it declares to cost. One that
    ``has_memory`` declares so, and has buffers. ``in_buffers`` counts executions there.
    Executions that do not fail wait for ``gate``, if there is one.
    """

    def __init__(
        self,
        inner: ReferenceDevice,
        refuses: Collection[int] = (),
        fault: Fault = Fault.NONE,
        healthy: int = 0,
        figure: float = 0.5,
        has_fences: bool = True,
        has_memory: bool = False,
    ) -> None:
        self.inner = inner
        self.refuses = refuses
        self.fault = fault
        self.healthy = healthy
        self.figure = figure
        self.has_fences = has_fences
        self.has_memory = has_memory
        self.allocated = 0
        self.in_buffers = 0
        self.executions = 0
        self.preparations = 0
        self.fenced = 0
        self.loadings = 0
        self.is_dead = False
        self.gate: SyncFence | None = None
        self.bursts = OpenBursts(64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def cause_of_death(self) -> DeviceUnavailableError | None:
        if self.is_dead:
            return DriverDiedError("its driver died")
        return self.inner.cause_of_death()

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        info = PerformanceInfo(self.figure, self.figure)
        return ErrorStatus.NONE, Capabilities(
            info, info, uniform_performance(info), info, info
        )

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        match self.fault:
            case Fault.ANSWERING:
                return FAILED, ()
            case Fault.ANSWERS_NONSENSE:
                return ErrorStatus.NONE, (True,) * 99
            case Fault.RAISES_AT_ANSWERING:
                raise ZeroDivisionError
        if self.is_dead:
            return DEAD, ()
        status, supports = await self.inner.get_supported_operations_1_3(model)
        return status, tuple(
            can and operation.type not in self.refuses
            for can, operation in zip(supports, model.main.operations, strict=True)
        )

    def prepare_model_from_cache_1_3(self, *arguments: Any) -> ErrorStatus:
        self.loadings += 1
        adoption = _Adoption(self, arguments[-1])
        return self.inner.prepare_model_from_cache_1_3(*arguments[:-1], adoption)

    def prepare_model_1_3(self, model: Model, *arguments: Any) -> ErrorStatus:
        callback = arguments[-1]
        self.preparations += 1
        match self.fault:
            case Fault.PREPARING:
                OneShot(callback.notify_1_3)(FAILED, None)
                return FAILED
            case Fault.PREPARING_LATER:
                asyncio.get_running_loop().call_soon(callback.notify_1_3, LATE, None)
                return ErrorStatus.NONE
            case Fault.RAISES_AT_PREPARING:
                raise ZeroDivisionError
        if self.is_dead:
            OneShot(callback.notify_1_3)(DEAD, None)
            return DEAD
        adoption = _Adoption(self, callback)
        return self.inner.prepare_model_1_3(model, *arguments[:-1], adoption)

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        if self.has_memory:
            return ErrorStatus.NONE, DeviceType.ACCELERATOR
        return self.inner.get_type()

    async def allocate(self, desc: Any, models: Any, inputs: Any, outputs: Any) -> Any:
        if not self.has_memory:
            return FAILED, None, 0
        self.allocated += 1
        inner = [each.inner for each in models]
        return await self.inner.allocate(desc, inner, inputs, outputs)

    def fails_now(self) -> bool:
        """Count an execution; tell whether it fails."""
        self.executions += 1
        if self.fault is Fault.DYING and self.executions > self.healthy:
            self.is_dead = True
        return self.fault in EXECUTING and self.executions > self.healthy


def _Adoption(device: CrippledDevice, callback: Any) -> Any:  # noqa: N802
    plain = callback.notify_1_3

    class Adopting(type(callback)):  # type: ignore[misc]
        def notify_1_3(self, status: ErrorStatus, prepared: Any) -> None:
            callback.reason = self.reason
            if prepared is not None:
                prepared = CrippledModel(device, prepared)
            plain(status, prepared)

    adopting = Adopting()
    callback.link_to_death(adopting.die)
    return adopting


class CrippledModel(SynchronousByCallback):
    """A prepared model of a `CrippledDevice`."""

    def __init__(self, device: CrippledDevice, inner: Any) -> None:
        self.device = device
        self.inner = inner
        self.refusal = ""

    def cause_of_death(self) -> DeviceUnavailableError | None:
        return cause_of_death(self.device) or cause_of_death(self.inner)

    def execute_1_3(self, *arguments: Any) -> ErrorStatus:
        device, callback = self.device, arguments[-1]
        pools = arguments[0].pools
        device.in_buffers += any(isinstance(pool, BufferToken) for pool in pools)
        if device.fault is Fault.SILENT:
            return ErrorStatus.NONE
        if not device.fails_now():
            if device.gate is not None:
                device.gate.add_done_callback(
                    lambda _: self.inner.execute_1_3(*arguments)
                )
                return ErrorStatus.NONE
            return self.inner.execute_1_3(*arguments)
        status = EXECUTING[device.fault]
        if device.fault is Fault.RAISES_AT_EXECUTING:
            raise ZeroDivisionError
        callback.reason = "it is crippled"
        if device.fault is Fault.EXECUTING:
            OneShot(callback.notify_1_3)(status, (), NO_TIMING)
            return status
        loop = asyncio.get_running_loop()
        loop.call_soon(OneShot(callback.notify_1_3), status, (), NO_TIMING)
        return ErrorStatus.NONE

    def execute_fenced(self, *arguments: Any) -> Any:
        device = self.device
        if not device.has_fences:
            return FAILED, None, None
        device.fenced += 1
        if not device.fails_now():
            return self.inner.execute_fenced(*arguments)
        status = EXECUTING[device.fault]
        if device.fault is Fault.RAISES_AT_EXECUTING:
            raise ZeroDivisionError
        if device.fault is Fault.EXECUTING:
            self.refusal = "it is crippled"
            return status, None, None
        fence, source = SyncFence.pair()
        outcome = FencedOutcome()
        outcome.complete(status, NO_TIMING, NO_TIMING)
        loop = asyncio.get_running_loop()
        loop.call_soon(source.fail, status, "it is crippled")
        return ErrorStatus.NONE, fence, outcome

    async def configure_execution_burst(self, *arguments: Any) -> Any:
        return self.device.bursts.configure(self, *arguments)


@asynccontextmanager
async def crippled_devices(
    choice: random.Random, types: Sequence[int], faults: Sequence[Fault]
) -> AsyncIterator[list[CrippledDevice]]:
    """Open devices that are crippled at random, each of which refuses some types."""
    async with ReferenceDevice(DeviceSettings(idle_after_s=0.2)) as inner:
        devices = []
        for fault in faults:
            refuses = {type_ for type_ in types if choice.random() < 0.5}
            devices.append(
                CrippledDevice(
                    inner,
                    refuses,
                    fault,
                    healthy=choice.choice((0, 0, 1, 3)),
                    figure=choice.choice((0.3, 0.5, 0.9)),
                    has_fences=choice.random() < 0.7,
                    has_memory=choice.random() < 0.3,
                )
            )
        yield devices
        for device in devices:
            device.bursts.close()
