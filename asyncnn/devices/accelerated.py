"""The accelerated device, by LiteRT, and the device with all engines.

Which operations LiteRT is fast at is decided when a model is prepared; the reference
kernels compute the other operations of the same plan. Everything else, from priorities
to caches, is as on all devices in this process. A model that is a region goes to the
engine that its file is for.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from asyncnn.devices.device_buffers import RELAXED
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.devices.measured_capabilities import FLOAT16_GAINS
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
        self._delegate = LiteRtDelegate(
            engine,
            _weights_folder(self._settings),
            float16=self._decide_on_float16(engine),
        )
        return self._delegate

    def _decide_on_float16(self, engine: "Engine") -> bool:
        share = None if self._measured is None else self._measured.float16_share
        chosen = self._settings.relaxed_as_float16
        is_used = share is not None and share < FLOAT16_GAINS
        if chosen is not None:
            is_used, why = chosen, "by DeviceSettings.relaxed_as_float16"
        elif share is None:
            why = "not measured before this boot: asyncnn capabilities --measure"
        else:
            why = f"float16 takes {share:.2f} times as long as float32"
        if not engine.computes_float16:
            is_used, why = False, f"LiteRT's {engine.name} has float32 alone"
        self._float16_share = share if is_used and share is not None else 1.0
        use = f"{'used' if is_used else 'not used'}: {why}"
        self.hal_hints = {**self.hal_hints, RELAXED: use}
        return is_used


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
