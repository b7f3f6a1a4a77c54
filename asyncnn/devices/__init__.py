"""Floor 4: implementations of `IDevice`. Know nothing of sockets.

`ReferenceDevice` runs every operation with the NumPy kernels, in this process.
"""

from asyncnn.devices.device_settings import OWN_PROCESS, DeviceSettings
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.devices.statistics import (
    ClientStatistics,
    DeviceStatistics,
    IMeasured,
    ModelStatistics,
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
