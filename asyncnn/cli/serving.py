"""The work behind ``asyncnn serve``: limits, weights, metrics, measuring."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncnn.cli.options import console
from asyncnn.devices import DeviceSettings, DeviceStatistics, IMeasured
from asyncnn.devices.engine_verdicts import environment_of_trials
from asyncnn.devices.own_devices import own_device
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import IDevice, has_measured_capabilities
from asyncnn.oip.admission import OipLimits
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.translation import translates
from asyncnn.service import RecordingSettings, ServiceLimits, UserLimits
from asyncnn.service.driver.isolating import Isolation
from asyncnn.service.driver.server import Server
from asyncnn.service.start import recorder_of

logger = logging.getLogger(__name__)

_LEAST_PRIORITY = 19
_LOOK_S, _END_S = 0.05, 1.0
"""Between two looks for work, and what a process that was killed may take to end."""

_KNOWN = [
    f"{limits.__name__}.{name}"
    for limits in (ServiceLimits, UserLimits, OipLimits)
    for name in limits.__struct_fields__
]


def limits_of(options: Iterable[str]) -> tuple[ServiceLimits, UserLimits, OipLimits]:
    """Return the limits of connections, of users and of the protocol's clients.

    :raises InvalidArgumentError: if one names no limit, or has a value that this cannot
        have.
    """
    kinds = ServiceLimits, UserLimits, OipLimits
    given: dict[str, dict[str, str]] = {kind.__name__: {} for kind in kinds}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals and name in _KNOWN:
            raise InvalidArgumentError(
                f"--limit {option} has no value", hint="write it as NAME=VALUE"
            )
        if name not in _KNOWN:
            close = [each for each in _KNOWN if each.endswith(f".{name}")]
            close = close or get_close_matches(name, _KNOWN, n=2)
            raise InvalidArgumentError(
                f"--limit {option}: there is no such limit",
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"known: {', '.join(_KNOWN)}",
            )
        whose, _, field = name.partition(".")
        given[whose][field] = value
    try:
        return (
            msgspec.convert(given["ServiceLimits"], ServiceLimits, strict=False),
            msgspec.convert(given["UserLimits"], UserLimits, strict=False),
            msgspec.convert(given["OipLimits"], OipLimits, strict=False),
        )
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"--limit: {error}") from error


def weight_of(text: str) -> tuple[int, float]:
    """Return the uid and the weight of an option.

    :raises InvalidArgumentError: if it has none.
    """
    uid, _, weight = text.partition("=")
    try:
        return int(uid), float(weight)
    except ValueError:
        raise InvalidArgumentError(
            f"--user-weight {text} is not a uid and a weight",
            hint="write it like 1000=2.5",
        ) from None


def recording_server(
    make: Callable[..., Server],
    noting: tuple[RecordingSettings, DeviceSettings, tuple[str, ...], str | None],
    device: IDevice,
    **settings: Any,
) -> Server:
    """Return what serves a device and notes calls; see `Server` and `recorder_of`."""
    return make(device, recorder=recorder_of(*noting, device), **settings)


@asynccontextmanager
async def published(
    path: Path,
    opened: AbstractAsyncContextManager[Device],
    publish: Callable[[IDevice], Server],
    besides: Sequence[Callable[[Device], AbstractAsyncContextManager[object]]],
) -> AsyncIterator[None]:
    """Publish the device that is opened, in contexts ``besides`` that begin then.

    :raises AsyncnnError: if the path cannot be had, or what is besides cannot.
    """
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened)
        await stack.enter_async_context(publish(device.hal))
        for other in besides:
            await stack.enter_async_context(other(device))
        console().print(f"serving {device.name} at {path}", soft_wrap=True)
        yield


@asynccontextmanager
async def measured_when_idle(
    hal: IDevice, apart: Sequence[IDevice], command: Sequence[str], idle_s: float = 30.0
) -> AsyncIterator[None]:
    """Have ``command`` measure capabilities in the block, if none are in force.

    It is a process of low priority, which begins after ``idle_s`` seconds without work
    for ``hal`` and all that is ``apart``, on a machine half of whose CPUs are idle. If
    work comes it is killed, and begins anew after as many. None does if there is no
    command.
    """
    if not command or has_measured_capabilities(hal) or not isinstance(hal, IMeasured):
        yield
        return
    measuring = asyncio.create_task(_measuring(hal, apart, command, idle_s))
    try:
        yield
    finally:
        measuring.cancel()
        await asyncio.wait([measuring])


def measuring_command(settings: DeviceSettings) -> list[str]:
    """Return what measures for devices of these settings, for 20 s at most."""
    # -P: a module of the same name in the current folder must not be imported.
    command = [sys.executable, "-P", "-m", "asyncnn.tools.capabilities.once"]
    return [*command, settings.capabilities_file, "20"]


async def _measuring(
    hal: IMeasured, apart: Sequence[IDevice], command: Sequence[str], idle_s: float
) -> None:
    async def work() -> tuple[int, int]:
        """Return how much is under way, and how much has ended."""
        counting = [hal, *(each for each in apart if isinstance(each, IMeasured))]
        seen = [await each.get_statistics() for each in counting]
        kinds = [kind for each in seen for kind in (each.executions, each.preparations)]
        return sum(k.queued + k.running for k in kinds), sum(k.ended for k in kinds)

    try:
        while True:
            before = await work()
            await asyncio.sleep(idle_s)
            # Others on the machine would be measured, too.
            is_quiet = 2 * os.getloadavg()[0] < (os.cpu_count() or 1)
            is_idle = is_quiet and not before[0] and await work() == before
            if is_idle and await _ended_without(work, before, command):
                return
    except (AsyncnnError, OSError) as error:
        logger.info("capabilities are not measured: %s", error)


async def _ended_without(
    work: Callable[[], Awaitable[object]], before: object, command: Sequence[str]
) -> bool:
    """Run ``command`` to its end, or kill it if there is other ``work`` than before."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment_of_trials(),
        start_new_session=True,  # an interrupt at the terminal is ours to handle
    )
    ending = asyncio.ensure_future(process.communicate())
    try:
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST_PRIORITY)
        while not ending.done():
            await asyncio.wait([ending], timeout=_LOOK_S)
            if await work() != before:
                return False
    finally:
        if process.returncode is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait([ending], timeout=_END_S)
        ending.cancel()
    if not process.returncode:
        logger.info("capabilities are measured, and in force from the next boot on")
        return True
    reason = ending.result()[1].decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode < 0:
        reason = signal.Signals(-process.returncode).name
    logger.info("capabilities are not measured: %s", reason)
    return True


def isolating(
    name: str | None,
    settings: DeviceSettings,
    extensions: Iterable[str],
    apart: list[IDevice],
) -> Isolation:
    """Return what opens a device like the driver's in a process of its own.

    While it is open, it is one of those that are ``apart``.

    Of other devices than asyncnn's own, regions run on the fastest of these. Those that
    can be translated, to outputs of the shapes that they declare, need no such process.
    """
    settings = replace(settings, extensions=(), isolated=True)
    own = name if name and own_device(name) else None
    given = partial(open_device, own, settings=settings, isolated=True)

    @asynccontextmanager
    async def isolated() -> AsyncIterator[IDevice]:
        async with given(extensions=tuple(extensions)) as device:
            apart.append(device.hal)
            try:
                yield device.hal
            finally:
                apart.remove(device.hal)

    return Isolation(isolated, translates)


def openmetrics(statistics: DeviceStatistics) -> str:
    """Return a record as the text of OpenMetrics.

    :raises InvalidArgumentError: if the package for that is not installed.
    """
    text: str = _metrics().openmetrics(statistics)
    return text


@asynccontextmanager
async def metrics_served(device: Device, port: int | None) -> AsyncIterator[None]:
    """Serve the metrics of ``device`` over HTTP for the block, unless port is None.

    :raises InvalidArgumentError: if the package for that is not installed.
    :raises GeneralFailureError: if the device keeps no statistics.
    """
    if port is None:
        yield
        return
    if not isinstance(device.hal, IMeasured):
        raise GeneralFailureError(f"{device.name} keeps no statistics")
    async with _metrics().MetricsEndpoint(device.hal, port) as endpoint:
        console().print(f"metrics at {endpoint.url}", soft_wrap=True)
        yield


def _metrics() -> ModuleType:
    try:
        import asyncnn.metrics
    except ImportError as error:
        raise InvalidArgumentError(
            f"metrics need the package prometheus-client: {error}",
            hint="install it with: pip install asyncnn[metrics]",
        ) from error
    return asyncnn.metrics
