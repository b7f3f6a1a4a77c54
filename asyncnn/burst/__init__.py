"""Floor 4: executions whose requests and results travel through shared memory.

``packets`` encodes and decodes requests and results, byte by byte as the HAL does;
``slots`` names the pools in them. `BurstController` is the application's side of a
burst, `BurstServer` the driver's, which works with any `IPreparedModel`; `OpenBursts`
holds those of a device. Knows queues, but no sockets.
"""

from asyncnn.burst.controller import BurstController, BurstStatistics
from asyncnn.burst.server import BurstServer, OpenBursts

__all__ = ("BurstController", "BurstServer", "BurstStatistics", "OpenBursts")
