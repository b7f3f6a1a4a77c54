"""The HAL as callers and drivers of its older versions know it.

The canonical structures are the newest, and everything else in asyncnn knows only
those. This package says the same in HAL 1.0, 1.1 and 1.2.

`compliant_with`
    says whether a version can express a value without loss
`convert_to`
    says it in that version as well as it goes, and logs what is lost
`VersionedDevice`
    offers every method of HAL 1.0 to 1.3 on top of any canonical device; prepared
    models come from it as `VersionedPreparedModel`
`v1_0`, `v1_1`, `v1_2`
    the data, callbacks and interfaces of a version, for drivers that have no newer
    ones; frameworks take those, see `asyncnn.runtime.framework.older_drivers`

Models, requests, capabilities and statuses differ between versions; what does not is
the same object everywhere. Conversion works on immutable records, copies no data, and
may be done on any thread. The wrappers own nothing: the canonical device is closed by
whoever opened it, and they are used on the loop that it belongs to. Deadlines, which
only HAL 1.3 has, are absolute nanoseconds of `time.monotonic_ns`.

A model that comes through an older method has to be valid in the version of that
method, or the status is INVALID_ARGUMENT. Statuses that an older version lacks become
GENERAL_FAILURE. `noncompliant_operations` says which operations a version has not, so
that a runtime can leave those to another device. `convert_to` raises
`InvalidArgumentError` for a request with buffers of the device, for which older
versions have no word.

>>> from asyncnn import ModelBuilder, hal
>>> from asyncnn.hal.versions import (
...     VersionedDevice,
...     compliant_with,
...     convert_to,
...     noncompliant_operations,
... )
>>> FLOATS = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (4,))
>>> builder = ModelBuilder()
>>> x = builder.input("x", FLOATS.type, FLOATS.dimensions)
>>> builder.output(builder.operation(hal.OperationType.ABS, [x], FLOATS), "y")
>>> model = builder.build().model
>>> V1_0, V1_2 = hal.HalVersion.V1_0, hal.HalVersion.V1_2
>>> compliant_with(model, V1_2), compliant_with(model, V1_0)
(True, False)
>>> noncompliant_operations(model, V1_0)
frozenset({0})
>>> type(convert_to(model, V1_2)).__module__
'asyncnn.hal.versions.v1_2'
>>> convert_to(hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT, V1_2).name
'GENERAL_FAILURE'

A device for callers of any version:

>>> import asyncio
>>> from asyncnn import open_device
>>> async def main():
...     async with open_device() as device:
...         versioned = VersionedDevice(device.hal)
...         old = convert_to(model, V1_2)
...         return await versioned.get_supported_operations_1_2(old)
>>> asyncio.run(main())
(<ErrorStatus.NONE: 0>, (True,))

Imports only `asyncnn.hal`.
"""

from asyncnn.hal.versions.convert import (
    compliant_with,
    convert_to,
    noncompliant_operations,
)
from asyncnn.hal.versions.device import VersionedDevice, VersionedPreparedModel

__all__ = (
    "VersionedDevice",
    "VersionedPreparedModel",
    "compliant_with",
    "convert_to",
    "noncompliant_operations",
)
