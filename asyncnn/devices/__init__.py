"""Floor 4: implementations of `IDevice`. Know nothing of sockets.

`ReferenceDevice` runs every operation with the NumPy kernels, in this process.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.devices.device_settings import OWN_PROCESS, DeviceSettings
    from asyncnn.devices.reference import ReferenceDevice
    from asyncnn.devices.statistics import (
        ClientStatistics,
        DeviceStatistics,
        IMeasured,
        ModelStatistics,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "asyncnn.devices.reference": ("ReferenceDevice",),
            "asyncnn.devices.device_settings": ("OWN_PROCESS", "DeviceSettings"),
            "asyncnn.devices.statistics": (
                "ClientStatistics",
                "DeviceStatistics",
                "IMeasured",
                "ModelStatistics",
            ),
        },
    )

__all__ = (
    "OWN_PROCESS",
    "ClientStatistics",
    "DeviceSettings",
    "DeviceStatistics",
    "IMeasured",
    "ModelStatistics",
    "ReferenceDevice",
)
