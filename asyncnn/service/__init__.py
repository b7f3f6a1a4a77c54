"""Floor 5: the process boundary.

`Server` publishes any `IDevice` on a Unix-domain socket (``driver``); `RemoteDevice` is
an `IDevice` that talks to one (``client``); ``supervised_device`` outlives its
driver. Messages are records of ``wire``, one to a packet of ``channel``, with file
descriptors beside them. Memory is shared, not sent. Knows nothing of kernels.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.service.client.device import RemoteDevice
    from asyncnn.service.driver.server import Server
    from asyncnn.service.limits import ServiceLimits, UserLimits
    from asyncnn.service.supervision import Supervision
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "asyncnn.service.client.device": ("RemoteDevice",),
            "asyncnn.service.driver.server": ("Server",),
            "asyncnn.service.limits": ("ServiceLimits", "UserLimits"),
            "asyncnn.service.supervision": ("Supervision",),
        },
    )

__all__ = ("RemoteDevice", "Server", "ServiceLimits", "Supervision", "UserLimits")
