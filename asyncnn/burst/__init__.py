"""Floor 4: executions whose requests and results travel through shared memory.

A burst is the HAL's way to the least latency: two message queues between application
and driver carry a packet for each request and each result, where an ordinary execution
takes a call and a callback. Applications have it from `asyncnn.PreparedModel.burst`,
and need nothing of this package; it is for drivers, and for callers of the HAL itself.

`BurstController`
    the application's end: await `BurstController.open`, then `BurstController.execute`
`OpenBursts`
    the driver's ends: `OpenBursts.configure` opens one, for any `IPreparedModel`
`BurstStatistics`
    what went through the queues, what did not, and why

A burst executes one request at a time, and belongs to the event loop that opened it. A
pool is made known to the driver with the first request that has it, and stays mapped
there until `BurstController.free_memory`, or until the pool is gone. The controller is
a context manager: leaving it stops what runs and closes both queues. A driver closes
its ends with `OpenBursts.close`, or when the application's is gone; it trusts no packet
and answers a malformed one with GENERAL_FAILURE.

Deadlines are absolute nanoseconds of `time.monotonic_ns`. Packets have no room for
them: the controller keeps a deadline by cancelling, and gives a driver that does not
answer ``deadline_grace`` seconds more.

`BurstController.open` raises the `AsyncnnError` of a driver that refuses. An execution
raises nothing: its result has the status, and ``result.raise_for_status()`` turns that
into an exception. If the driver ends the burst, the execution under way fails, and the
next one opens it anew.

>>> import asyncio
>>> import numpy as np
>>> from asyncnn import ModelBuilder, hal, memory, open_device
>>> from asyncnn.burst import BurstController
>>> FLOATS = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (4,))
>>> builder = ModelBuilder()
>>> x = builder.input("x", FLOATS.type, FLOATS.dimensions)
>>> builder.output(builder.operation(hal.OperationType.ABS, [x], FLOATS), "y")
>>> async def main():
...     pool = memory.allocate(32)
...     x, y = memory.as_array(pool, np.float32, (2, 4))
...     x[:] = -1, 2, -3, 4
...     at_x, at_y = hal.DataLocation(0, 0, 16), hal.DataLocation(0, 16, 16)
...     request = hal.Request(
...         (hal.RequestArgument(False, at_x),),
...         (hal.RequestArgument(False, at_y),),
...         (pool,),
...     )
...     async with open_device() as device:
...         prepared = await device.prepare(builder.build())
...         with await BurstController.open(prepared.hal) as burst:
...             result = await burst.execute(request)
...             result.raise_for_status()
...             return y.tolist(), burst.statistics().sent
>>> asyncio.run(main())
([1.0, 2.0, 3.0, 4.0], 1)
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.burst.controller import BurstController as BurstController
    from asyncnn.burst.controller import BurstStatistics as BurstStatistics
    from asyncnn.burst.server import BurstServer as BurstServer
    from asyncnn.burst.server import OpenBursts as OpenBursts
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.burst.controller": "BurstController BurstStatistics",
            "asyncnn.burst.server": "BurstServer OpenBursts",
        },
    )
