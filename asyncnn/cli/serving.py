"""The work behind ``asyncnn serve``: limits, weights, metrics, and how it ends."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
from msgspec.structs import replace

from asyncnn.cli.options import console
from asyncnn.devices import DeviceSettings, DeviceStatistics, IMeasured
from asyncnn.devices.own_devices import own_device
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.translation import translates
from asyncnn.service import ServiceLimits, UserLimits
from asyncnn.service.driver.isolating import Isolation
from asyncnn.service.driver.server import Server

_KNOWN = [
    f"{limits.__name__}.{name}"
    for limits in (ServiceLimits, UserLimits)
    for name in limits.__struct_fields__
]


def limits_of(options: Iterable[str]) -> tuple[ServiceLimits, UserLimits]:
    """Return the limits of connections and of users that options ask for.

    :raises InvalidArgumentError: if one names no limit, or has a value that this cannot
        have.
    """
    given: dict[str, dict[str, str]] = {"ServiceLimits": {}, "UserLimits": {}}
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


@asynccontextmanager
async def published(
    path: Path,
    opened: AbstractAsyncContextManager[Device],
    publish: Callable[[IDevice], Server],
    metrics_port: int | None,
) -> AsyncIterator[None]:
    """Publish the device that is opened, and its metrics.

    :raises AsyncnnError: if the path or the port cannot be had, or metrics cannot.
    """
    async with (
        opened as device,
        publish(device.hal),
        metrics_served(device, metrics_port),
    ):
        console().print(f"serving {device.name} at {path}", soft_wrap=True)
        yield


def isolating(
    name: str | None, settings: DeviceSettings, extensions: Iterable[str]
) -> Isolation:
    """Return what opens a device like the driver's in a process of its own.

    Of other devices than asyncnn's own, regions run on the fastest of these. Those that
    can be translated, to outputs of the shapes that they declare, need no such process.
    """
    settings = replace(settings, extensions=(), isolated=True)
    own = name if name and own_device(name) else None
    given = partial(open_device, own, settings=settings, isolated=True)

    @asynccontextmanager
    async def isolated() -> AsyncIterator[IDevice]:
        async with given(extensions=tuple(extensions)) as device:
            yield device.hal

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
