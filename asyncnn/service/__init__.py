"""Floor 5: the process boundary.

Applications need none of this directly: `asyncnn.connect` reaches a driver, starting
one of its own if no path is given, and ``asyncnn serve`` is one. This package is for
those who run a driver in their own way, or speak the HAL to one.

`Server`
    publishes any `IDevice` on a Unix-domain socket
`RemoteDevice`
    an `IDevice` that talks to one, with the same methods and statuses as a local one
`ServiceLimits`, `UserLimits`
    what one connection, and all connections of one user, may use of a driver
`RecordingSettings`
    what a driver keeps of its last calls
`Supervision`
    how `asyncnn.connect` replaces a driver that is lost

Both are asynchronous context managers and belong to the loop that entered them.
Leaving the context of a `Server` hangs up on all clients and removes the socket; the
device behind it is closed by its owner. Leaving a `RemoteDevice`'s ends
what is pending. Memory is shared, not sent: pools travel as file descriptors, each end
closes its own, and a driver copies what a client could truncate. Only processes of the
same user may connect, unless ``allowed_uids`` names more. In a forked child neither can
be used. Times are seconds, sizes bytes; deadlines of calls are absolute nanoseconds of
`time.monotonic_ns`, on which all processes of a machine agree.

Entering a `RemoteDevice` raises `NoDriverError` if no driver that may be trusted serves
the path. When the driver dies, all that is pending and every later call ends with
DEVICE_UNAVAILABLE; `RemoteDevice.wait_lost` says why. Beyond a limit calls end with a
status of RESOURCE_EXHAUSTED. Entering a `Server` raises `DeviceUnavailableError` if
another driver has the path. `asyncnn.service.process` starts drivers for as long as a
context lasts, for instance in tests:

>>> import asyncio
>>> from asyncnn.service import RemoteDevice
>>> from asyncnn.service.process import driver_process
>>> async def main(path):
...     async with RemoteDevice(path) as device:
...         return device.get_type()
>>> with driver_process() as driver:
...     asyncio.run(main(driver.path))
(<ErrorStatus.NONE: 0>, <DeviceType.CPU: 2>)

The server is in ``driver``, the remote device in ``client``, and ``supervised`` has one
that outlives its driver. Messages are records of ``wire``, one to a packet of
``channel``, with file descriptors beside them. Knows nothing of kernels.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.service.client.remote_device import RemoteDevice as RemoteDevice
    from asyncnn.service.driver.server import Server as Server
    from asyncnn.service.limits import RecordingSettings as RecordingSettings
    from asyncnn.service.limits import ServiceLimits as ServiceLimits
    from asyncnn.service.limits import UserLimits as UserLimits
    from asyncnn.service.supervision import Supervision as Supervision
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.service.client.remote_device": "RemoteDevice",
            "asyncnn.service.driver.server": "Server",
            "asyncnn.service.limits": "RecordingSettings ServiceLimits UserLimits",
            "asyncnn.service.supervision": "Supervision",
        },
    )
