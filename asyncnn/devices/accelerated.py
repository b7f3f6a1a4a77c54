"""The accelerated device, by LiteRT, and the device with all engines.

Which operations LiteRT is fast at is decided when a model is prepared; the NumPy
kernels of the reference device compute the other operations of the same plan.
Everything else, from priorities to caches, is the reference device's. A model that is a
region goes to the engine that its file is for.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.devices.private_files import state_folder
from asyncnn.engine.delegation import Delegate
from asyncnn.hal.errors import EngineUnavailableError
from asyncnn.memory.pages import os_errors

if TYPE_CHECKING:
    from asyncnn.devices.litert.engine import Engine


def load_litert() -> "Engine":
    """Return LiteRT; see `asyncnn.devices.litert.engine.load_engine`.

    :raises EngineUnavailableError: if it does not work here.
    """
    # A process that has no use for the engine does not import it.
    from asyncnn.devices.litert.engine import load_engine

    return load_engine()


class AcceleratedDevice(EngineDevice):
    """An `IDevice` for every operation that has a kernel. Use as a context manager.

    LiteRT computes the operations that `asyncnn.devices.litert` claims, kernels the
    others. Otherwise it is like `EngineDevice`. It says by which API LiteRT is called:
    ``c_api`` or, where that does not work, ``interpreter``.

    :raises EngineUnavailableError: on entering the context, if ``ai-edge-litert`` is
        missing or does not work here.
    :raises ResourceExhaustedError: on entering, if it cannot be loaded for want of
        memory, descriptors or threads.
    """

    name = "asyncnn-accelerated"
    unused_settings: tuple[str, ...] = ()

    async def load_delegate(self) -> Delegate | None:
        """Load LiteRT, and return what gives it segments of plans.

        :raises EngineUnavailableError: if it does not work here.
        """
        engine = await loaded("LiteRT", load_litert)
        with os_errors("LiteRT cannot be loaded"):
            from asyncnn.devices.litert.delegate import LiteRtDelegate
            from asyncnn.devices.litert.region_kernels import LiteRtRegions

        self._add(
            f"LiteRT {engine.version}, {engine.name}", LiteRtRegions(engine).extension()
        )
        self._delegate = LiteRtDelegate(engine, _weights_folder(self._settings))
        return self._delegate


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


def _weights_folder(settings: DeviceSettings) -> Path | None:
    if not settings.maps_cache_files:
        return None
    if settings.packed_weights_dir:
        return Path(settings.packed_weights_dir)
    try:
        return state_folder() / "packed-weights"
    except RuntimeError:  # there is no home
        return None
