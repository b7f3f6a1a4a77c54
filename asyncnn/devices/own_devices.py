"""The devices of this floor by name, and which is opened where none is named.

Drivers of one's own publish them, and the registry has them beside devices of higher
floors. None is imported before it is opened.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedError,
)

if TYPE_CHECKING:
    from asyncnn.devices.reference import InProcessDevice

logger = logging.getLogger(__name__)

CPU = "reference"
"""Name of the device that is the last resort."""

AUTO = "auto"
"""Name of the device that has every engine which is installed."""

OWN_DEVICES: dict[str, str] = {
    CPU: "asyncnn.devices.reference:ReferenceDevice",
    AUTO: "asyncnn.devices.accelerated:AutoDevice",
    "accelerated": "asyncnn.devices.accelerated:AcceleratedDevice",
    "onnxruntime": "asyncnn.devices.onnxruntime.onnx_device:OnnxRuntimeDevice",
}
"""Each as ``module:attribute``; `own_device` knows those on providers as well."""

IN_AUTO = frozenset({"accelerated", "onnxruntime"})
"""Devices of one engine, all of which ``auto`` has."""

ON_PROVIDERS = "onnxruntime-"
"""What the names of devices begin with on which ONNX Runtime is not on the CPU."""


def own_device(name: str) -> tuple[str, dict[str, str]] | None:
    """Return what opens a device, as ``module:attribute``, and what it is given.

    None if there is none of that name. A provider need not be there.
    """
    if name in OWN_DEVICES:
        return OWN_DEVICES[name], {}
    from asyncnn.devices.onnxruntime.providers import NO_PROVIDERS

    provider = name.removeprefix(ON_PROVIDERS)
    if provider in ("", name, *NO_PROVIDERS):
        return None
    return f"{OWN_DEVICES['onnxruntime']}.on_provider", {"provider": provider}


def imported(place: str) -> Any:
    """Import what ``module:attribute`` names.

    :raises Exception: what importing the module raises.
    """
    module, _, attribute = place.partition(":")
    found: object = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


DEVICE_VARIABLE = "ASYNCNN_DEVICE"
"""Environment variable that names the device to open where no other name is given."""


def default_device_name(*, exact: bool = False) -> str:
    """Return the name of the device to open where none is given.

    It is what `DEVICE_VARIABLE` says; else empty, which stands for the fastest that
    works and is what `default_device` opens. What is compared with ``exact`` results
    is computed by ``reference`` then, whose rounding is stated.
    """
    return os.environ.get(DEVICE_VARIABLE) or ("reference" if exact else "")


async def usual_device_name() -> str:
    """Return the same, with the name of the fastest device in place of none."""
    return default_device_name() or await _fastest_device_name()


async def _fastest_device_name() -> str:
    """Return ``auto``, or the device of the only engine there is, or ``reference``."""
    from asyncnn.devices.accelerated import load_litert
    from asyncnn.devices.onnxruntime.onnx_device import (
        found_onnx_runtime,
        load_onnx_runtime,
    )

    has_litert = await _works("LiteRT", load_litert)
    has_onnx_runtime = bool(found_onnx_runtime())
    if has_litert:
        return AUTO if has_onnx_runtime else "accelerated"
    return "onnxruntime" if await _works("ONNX Runtime", load_onnx_runtime) else CPU


async def _works(name: str, load: Callable[[], object]) -> bool:
    from asyncnn.devices.engine_device import loaded

    try:
        await loaded(name, load)
    except GeneralFailureError as error:
        logger.info("%s is not used: %s", name, error)
        return False
    except ResourceExhaustedError as error:
        # Which may be over in a moment, but the device was asked for now.
        logger.warning("%s is not used this time: %s", name, error)
        return False
    return True


@asynccontextmanager
async def default_device(
    settings: DeviceSettings, name: str = ""
) -> AsyncIterator["InProcessDevice"]:
    """Open a device of this package by its name; the fastest that works without one.

    :raises InvalidArgumentError: if ``name`` is none of them, nor empty.
    :raises GeneralFailureError: if it names a device whose engine does not work here.
    """
    own = own_device(name or await _fastest_device_name())
    if own is None:
        known = ", ".join(OWN_DEVICES)
        named = f"{DEVICE_VARIABLE} names it; " if name == default_device_name() else ""
        raise InvalidArgumentError(
            f"there is no device {name!r} for a driver of one's own to publish",
            hint=f"{named}known: {known}; asyncnn serve --device has more",
        )
    place, given = own
    async with imported(place)(settings, **given) as device:
        yield device
