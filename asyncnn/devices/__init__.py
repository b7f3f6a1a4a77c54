"""Floor 4: implementations of `IDevice`. Know nothing of sockets.

`ReferenceDevice` runs every operation with the NumPy kernels, in this process.
"""

from asyncnn.devices.reference import ReferenceDevice
from asyncnn.devices.settings import DeviceSettings

__all__ = ("DeviceSettings", "ReferenceDevice")
