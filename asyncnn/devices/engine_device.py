"""What devices have in common that have an engine: lanes, versions, capabilities."""

import os
from collections.abc import Callable
from typing import TypeVar

from asyncnn import __version__
from asyncnn.devices.measured_capabilities import sped_up
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.hal.types import Capabilities, ErrorStatus
from asyncnn.input_files import in_one, offload_abandonable
from asyncnn.memory.pages import os_errors

_FLOAT_SHARE, _INTEGER_SHARE = 0.3, 0.1
"""Time for MobileNets and ResNets, divided by what the kernels take for them."""

T = TypeVar("T")


class EngineDevice(ReferenceDevice):
    """A `ReferenceDevice` with an engine, whose name and version ``_engine`` says.

    Plans run on as many worker threads as there are CPUs for this process.
    """

    _engine = ""

    @property
    def usual_lanes(self) -> int:
        """One for each CPU that this process may use."""
        return len(os.sched_getaffinity(0))

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return those of the reference device, better by what the engine gains.

        That was measured by reference models, or else is what is usual.
        """
        status, capabilities = super().get_capabilities_1_3()
        floats = integers = None
        if self._measured is not None:
            floats = self._measured.engine_share(quantized=False)
            integers = self._measured.engine_share(quantized=True)
        return status, sped_up(
            capabilities, floats or _FLOAT_SHARE, integers or _INTEGER_SHARE
        )

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the versions of asyncnn and of the engine, and how it is called."""
        return ErrorStatus.NONE, f"{__version__} ({self._engine})"


async def loaded(name: str, load: Callable[[], T]) -> T:
    """Load an engine on a thread, which takes a while.

    :raises ResourceExhaustedError: if memory, descriptors or threads have run out.
    """

    def loading() -> T:
        with os_errors(f"{name} cannot be loaded"):
            return load()

    return await offload_abandonable(f"loading {name}", in_one(loading))
