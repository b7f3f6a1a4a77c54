"""The HAL as callers of its older versions know it.

The canonical structures are the newest. `compliant_with` tells whether an older version
can say the same, `convert_to` says it there as well as it goes, and logs what was lost.
`VersionedDevice` offers every method of HAL 1.0 to 1.3 on top of any canonical device.

Imports only `asyncnn.hal`, `asyncnn.callbacks` and `asyncnn.hal.errors`.
"""

from asyncnn.hal.versions.convert import (
    compliant_with,
    convert_to,
    noncompliant_operations,
)
from asyncnn.hal.versions.device import VersionedDevice
from asyncnn.hal.versions.prepared import VersionedPreparedModel

__all__ = (
    "VersionedDevice",
    "VersionedPreparedModel",
    "compliant_with",
    "convert_to",
    "noncompliant_operations",
)
