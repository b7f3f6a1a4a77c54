"""Floor 4: executions whose requests and results travel through shared memory.

A packet is a request or a result as a series of datums, byte by byte those of the HAL
(`datums`, `requests`, `results`). `BurstController` is the application's side of a
burst, `BurstServer` the driver's, which works with any `IPreparedModel`; `OpenBursts`
holds those of a device. Knows queues, but no sockets.
"""

from asyncnn.burst.controller import BurstController, BurstStatistics
from asyncnn.burst.server import BurstServer, OpenBursts

__all__ = ("BurstController", "BurstServer", "BurstStatistics", "OpenBursts")
