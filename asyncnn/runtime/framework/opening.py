"""Opens a framework over devices by name, or over devices that are open already."""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from msgspec.structs import replace

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.own_devices import AUTO, CPU, IN_AUTO
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.hal.errors import failure_of
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import DeviceType
from asyncnn.runtime.framework import FRAMEWORK, FrameworkSettings, chosen_partitioning
from asyncnn.runtime.framework.device_registry import (
    SAMPLE,
    opener_of,
    registered_devices,
)
from asyncnn.runtime.framework.fallback import Clock, Member
from asyncnn.runtime.framework.older_drivers import newest
from asyncnn.runtime.framework.whole_device import FrameworkDevice

logger = logging.getLogger(__name__)


class OpenDevice(msgspec.Struct, frozen=True):
    """A device of a framework that the application opens and closes.

    One that ``is_remote`` lies in another process; one that ``copies`` is of another
    user, and does not see slabs of memory where they are.
    """

    name: str
    hal: IDevice
    is_remote: bool = False
    copies: bool = False


@asynccontextmanager
async def open_framework(
    settings: DeviceSettings,
    names: Sequence[str] = (),
    *,
    devices: Sequence[OpenDevice] = (),
    framework: FrameworkSettings | None = None,
    clock: Clock = time.monotonic,
) -> AsyncIterator[FrameworkDevice]:
    """Open a framework over ``devices`` and the devices of ``names``, in this order.

    Without either, it is over all devices that are registered, but for samples, and
    for devices of one engine beside ``auto``, which has them all; one that cannot be
    opened is left out, and logged. The CPU is always the last.

    :raises InvalidArgumentError: if a name is unknown or occurs twice.
    :raises AsyncnnError: if a device that is named cannot be opened.
    """
    if framework is None:
        framework = FrameworkSettings(partition=chosen_partitioning(None))
    async with AsyncExitStack() as opened:
        members = []
        for device in devices:
            hal = await opened.enter_async_context(newest(device.hal, settings))
            members.append(_member(replace(device, hal=hal), framework, clock))
        for name in names:
            if name != CPU:
                hal = await opened.enter_async_context(opener_of(name)(settings))
                members.append(_member(OpenDevice(name, hal), framework, clock))
        if not members and not names:
            members = await _all(opened, settings, framework, clock)
        if not any(member.is_cpu for member in members):
            cpu = await opened.enter_async_context(
                ReferenceDevice(settings, runtime_only_features=True)
            )
            members.append(Member(CPU, cpu, framework, is_cpu=True, clock=clock))
        members.sort(key=lambda member: member.is_cpu)
        async with FrameworkDevice(members, framework, settings) as whole:
            yield whole


async def _all(
    opened: AsyncExitStack,
    settings: DeviceSettings,
    framework: FrameworkSettings,
    clock: Clock,
) -> list[Member]:
    """Open all devices that a user would want, as far as they can be."""
    members: list[Member] = []
    for name, registered in registered_devices().items():
        if name in (CPU, FRAMEWORK) or name.startswith(SAMPLE):
            continue
        if name in IN_AUTO and AUTO in [member.name for member in members]:
            continue
        try:
            hal = await opened.enter_async_context(registered.open(settings))
        except Exception as error:
            logger.warning("%s", failure_of(error))
            continue
        members.append(_member(OpenDevice(name, hal), framework, clock))
    return members


def _member(device: OpenDevice, framework: FrameworkSettings, clock: Clock) -> Member:
    is_cpu = device.name == CPU and device.hal.get_type()[1] is DeviceType.CPU
    return Member(
        device.name,
        device.hal,
        framework,
        is_cpu=is_cpu and not device.is_remote,
        is_remote=device.is_remote,
        copies=device.copies,
        clock=clock,
    )
