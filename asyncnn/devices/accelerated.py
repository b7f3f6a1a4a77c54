"""The device that has LiteRT compute what that does well, in this process.

What LiteRT computes is decided operation by operation when a model is prepared; the
NumPy kernels of the reference device compute the rest of the same plan. Everything
else, from priorities to caches, is the reference device's.
"""

import os
from pathlib import Path

from asyncnn import __version__
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.private_files import state_folder
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.engine.delegation import Delegate
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import offload


class AcceleratedDevice(ReferenceDevice):
    """An `IDevice` for every operation that has a kernel, as fast as LiteRT.

    Use as a context manager, which loads the engine. Otherwise like `ReferenceDevice`,
    but plans run on as many worker threads as there are CPUs for this process.

    :raises EngineUnavailableError: by the context, if ``ai-edge-litert`` is missing or
        does not work here.
    """

    name = "asyncnn-accelerated"

    def __init__(self, settings: DeviceSettings | None = None) -> None:
        super().__init__(settings)
        self._engine = ""

    @property
    def usual_lanes(self) -> int:
        """One for each CPU that this process may use."""
        return len(os.sched_getaffinity(0))

    async def load_delegate(self) -> Delegate:
        """Return what has LiteRT compute.

        :raises EngineUnavailableError: if it does not work here.
        """
        engine = await offload(load_engine)
        self._engine = f"{engine.name} {engine.version}"
        return LiteRtDelegate(engine, _weights_folder(self._settings))

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the versions of asyncnn and of the engine."""
        return ErrorStatus.NONE, f"{__version__} ({self._engine})"


def _weights_folder(settings: DeviceSettings) -> Path | None:
    if settings.packed_weights_dir:
        return Path(settings.packed_weights_dir)
    try:
        return state_folder() / "packed-weights"
    except RuntimeError:  # there is no home
        return None
