"""All devices by name: built in, or brought by packages as entry points.

An entry point of group `ENTRY_POINTS` names a function of `DeviceSettings` that returns
an asynchronous context manager of an `IDevice`, or of a driver of HAL 1.0 to 1.2::

    [project.entry-points."asyncnn.devices"]
    my-device = "my_package:MyDevice"

What is built in stands in the same form in `BUILT_IN`, and there is a device for each
execution provider of ONNX Runtime. Nothing is imported before a device is opened; a
device that cannot be opened does not keep others from being opened.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeAlias

import msgspec

from asyncnn import hal
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.own_devices import ON_PROVIDERS, OWN_DEVICES, imported, own_device
from asyncnn.extensions.extension import entry_points_in
from asyncnn.hal.errors import WrongTypeError, shortage_of
from asyncnn.runtime.cluster_settings import CLUSTER
from asyncnn.runtime.framework import FRAMEWORK

logger = logging.getLogger(__name__)

ENTRY_POINTS = "asyncnn.devices"
"""Group of the entry points by which distributions bring devices."""

Opened: TypeAlias = AbstractAsyncContextManager[hal.IDevice]
Opener: TypeAlias = Callable[[DeviceSettings], Opened]

SAMPLE = "sample-"
"""What the names of sample devices begin with."""

_FRAMEWORK = "asyncnn.runtime.framework"
_HERE = "asyncnn"

BUILT_IN: dict[str, str] = {
    **OWN_DEVICES,
    FRAMEWORK: f"{_FRAMEWORK}.opening:open_framework",
    "sample-float-fast": f"{_FRAMEWORK}.sample_devices:FloatFast",
    "sample-float-slow": f"{_FRAMEWORK}.sample_devices:FloatSlow",
    "sample-quant": f"{_FRAMEWORK}.sample_devices:Quant",
    "sample-minimal": f"{_FRAMEWORK}.sample_devices:Minimal",
    "sample-all": f"{_FRAMEWORK}.sample_devices:Everything",
    "sample-hal-1.0": f"{_FRAMEWORK}.sample_devices:hal_1_0",
    "sample-hal-1.1": f"{_FRAMEWORK}.sample_devices:hal_1_1",
    "sample-hal-1.2": f"{_FRAMEWORK}.sample_devices:hal_1_2",
}
"""Devices of this package, each as ``module:attribute``."""


class Registered(msgspec.Struct, frozen=True):
    """A device by name. ``place`` is ``module:attribute`` of what opens it.

    That is given ``options``. ``origin`` is the distribution that brings it.
    """

    name: str
    place: str
    origin: str
    options: dict[str, str] = {}

    def opener(self) -> Callable[..., Opened]:
        """Import what opens the device.

        :raises GeneralFailureError: if that fails, or it cannot be called.
        """
        try:
            found: object = imported(self.place)
        except Exception as error:  # another distribution's module raises anything
            raise self._broken(error) from error
        if not callable(found):
            raise self._broken(TypeError(f"{self.place} cannot be called"))
        return found

    def open(self, settings: DeviceSettings, **options: object) -> Opened:
        """Return the context of the device, which is not entered yet.

        Only devices of this package have options.

        :raises GeneralFailureError: if what opens it is broken.
        """
        opener = self.opener()
        try:
            opened = opener(settings, **self.options, **options)
        except hal.InvalidArgumentError:
            raise
        except Exception as error:
            raise self._broken(error) from error
        if not isinstance(opened, AbstractAsyncContextManager):
            raise self._broken(TypeError("it is no asynchronous context manager"))
        return opened if self.origin == _HERE else _newest(opened, settings)

    def _broken(self, error: Exception) -> hal.AsyncnnError:
        what = f"device {self.name!r} of {self.origin} cannot be used"
        if shortage_of(error) is not None:
            return hal.failure_of(error, what)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return hal.GeneralFailureError(f"{what}: {reason}")


@asynccontextmanager
async def _newest(
    opened: Opened, settings: DeviceSettings
) -> AsyncIterator[hal.IDevice]:
    """Open a package's device, which may be a driver of an older version."""
    # Imported for them alone: applications seldom have any.
    from asyncnn.runtime.framework.older_drivers import newest

    async with opened as device, newest(device, settings) as adapted:
        yield adapted


def registered_devices() -> dict[str, Registered]:
    """Return all devices by name: asyncnn's own, then other packages'.

    A package's device is not used, and logged, if its name is taken, or has a comma or
    a colon in it, which separate the names of a framework.
    """
    from asyncnn.devices.onnxruntime import found_providers

    found = {name: Registered(name, place, _HERE) for name, place in BUILT_IN.items()}
    for provider in found_providers():
        found |= _on_provider(ON_PROVIDERS + provider)
    points = entry_points_in(ENTRY_POINTS)
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        origin = getattr(point.dist, "name", None) or point.value
        reason = _reason_against(point.name, found)
        if reason:
            logger.warning(
                "device %r of %s is not used: %s", point.name, origin, reason
            )
            continue
        found[point.name] = Registered(point.name, point.value, origin)
    return found


def device_names() -> tuple[str, ...]:
    """Return the names that `open_device` knows: asyncnn's own, then packages'.

    A device may be listed and yet fail to open: ``asyncnn devices`` says which do.
    ``framework:NAME,NAME`` is known as well: a framework of the devices named.
    """
    return tuple(registered_devices())


def opener_of(name: str) -> Opener:
    """Return what opens the device of a name.

    :raises InvalidArgumentError: if there is none.
    """
    if not isinstance(name, str):
        raise WrongTypeError(
            f"{name!r} is no name of a device", hint=f"known: {', '.join(BUILT_IN)}"
        )
    if name in BUILT_IN:
        return Registered(name, BUILT_IN[name], _HERE).open
    if name.startswith(CLUSTER):
        place = "asyncnn.cluster.cluster_device:open_cluster"
        return Registered(name, place, _HERE, {"address": name}).open
    known = registered_devices()
    scope, colon, parts = name.partition(":")
    names = [part.strip() for part in parts.split(",") if part.strip()]
    for each in (name, *names):
        if each not in known:
            known |= _on_provider(each)
    if colon and scope == FRAMEWORK:
        for part in names or [parts]:
            if part not in known or part == FRAMEWORK:
                raise _unknown(part, known)
        return partial(known[FRAMEWORK].open, names=tuple(names))
    if name not in known:
        raise _unknown(name, known)
    return known[name].open


def _on_provider(name: str) -> dict[str, Registered]:
    own = own_device(name)
    return {} if own is None else {name: Registered(name, own[0], _HERE, own[1])}


def _unknown(name: str, known: Iterable[str]) -> hal.InvalidArgumentError:
    hint = f"known: {', '.join(known)}"
    if "/" in name:
        hint = "a driver at a path is reached by asyncnn.connect(path)"
    return hal.InvalidArgumentError(f"there is no device {name!r}", hint=hint)


def _reason_against(name: str, found: Mapping[str, Registered]) -> str:
    if name in found:
        return f"{found[name].origin} has a device of that name"
    if "," in name or ":" in name:
        return "a name has no comma and no colon"
    return ""
