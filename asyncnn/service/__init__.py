"""Floor 5: the process boundary.

`Server` publishes any `IDevice` on a Unix-domain socket (``driver``); `RemoteDevice` is
an `IDevice` that talks to one (``client``); ``supervised`` has one that outlives its
driver. Messages are records of ``wire``, one to a packet of ``channel``, with file
descriptors beside them. Memory is shared, not sent. Knows nothing of kernels.
"""

from asyncnn.service.client.device import RemoteDevice
from asyncnn.service.driver.server import Server
from asyncnn.service.limits import ServiceLimits, UserLimits
from asyncnn.service.supervised.supervision import Supervision

__all__ = ("RemoteDevice", "Server", "ServiceLimits", "Supervision", "UserLimits")
