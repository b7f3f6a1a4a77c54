"""The device with all engines, and which device is opened where none is named.

A model that is a region goes to the engine that its file is for, and every other model
is divided between LiteRT and the kernels.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asyncnn.devices.accelerated import AcceleratedDevice, load_litert
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.engine_device import loaded
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.engine.delegation import Delegate
from asyncnn.hal.errors import (
    EngineUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedError,
)

logger = logging.getLogger(__name__)

CPU = "reference"

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
    from asyncnn.devices.onnxruntime.onnx_device import (
        found_onnx_runtime,
        load_onnx_runtime,
    )

    has_litert = await _works("LiteRT", load_litert)
    has_onnx_runtime = bool(found_onnx_runtime())
    if has_litert:
        return "auto" if has_onnx_runtime else "accelerated"
    return "onnxruntime" if await _works("ONNX Runtime", load_onnx_runtime) else CPU


async def _works(name: str, load: Callable[[], object]) -> bool:
    """Tell whether an engine can be loaded."""
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
) -> AsyncIterator[ReferenceDevice]:
    """Open a device of this package by its name; the fastest that works without one.

    :raises InvalidArgumentError: if ``name`` is none of them, nor empty.
    :raises GeneralFailureError: if it names a device whose engine does not work here.
    """
    if name and name not in OWN_DEVICES:
        known = ", ".join(OWN_DEVICES)
        named = f"{DEVICE_VARIABLE} names it; " if name == default_device_name() else ""
        raise InvalidArgumentError(
            f"there is no device {name!r} for a driver of one's own to publish",
            hint=f"{named}known: {known}; asyncnn serve --device has more",
        )
    kind = OWN_DEVICES[name or await _fastest_device_name()]()
    async with kind(settings) as device:
        yield device


class AutoDevice(AcceleratedDevice):
    """An `IDevice` with every engine that is installed. Use as a context manager.

    It is like `AcceleratedDevice` and `OnnxRuntimeDevice` in one. ONNX Runtime is
    loaded when the first model needs it; one that does not work refuses that model.

    :raises EngineUnavailableError: on entering the context, if there is no engine.
    :raises ResourceExhaustedError: on entering, as `AcceleratedDevice`.
    """

    name = "asyncnn-auto"

    async def load_delegate(self) -> Delegate | None:
        """Load LiteRT, and look for ONNX Runtime.

        :raises EngineUnavailableError: if there is neither.
        """
        from asyncnn.devices.onnxruntime.onnx_device import (
            found_onnx_runtime,
            onnx_extension,
        )

        version = found_onnx_runtime()
        try:
            delegate: Delegate | None = await super().load_delegate()
        except EngineUnavailableError:
            if not version:
                raise
            delegate = None
        if version:
            self._add(f"ONNX Runtime {version}", onnx_extension(version))
        return delegate


def _onnx_runtime_device() -> type[ReferenceDevice]:
    from asyncnn.devices.onnxruntime.onnx_device import OnnxRuntimeDevice

    return OnnxRuntimeDevice


# A driver of one device does not import the engines of the others.
OWN_DEVICES: dict[str, Callable[[], type[ReferenceDevice]]] = {
    "auto": lambda: AutoDevice,
    "accelerated": lambda: AcceleratedDevice,
    "onnxruntime": _onnx_runtime_device,
    "reference": lambda: ReferenceDevice,
}
"""What a driver of one's own publishes, by names."""
