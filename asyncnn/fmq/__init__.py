"""Floor 2: message queues in memory that two processes share.

A queue carries packets of whole elements from one writer to one reader. Nothing is
overwritten, and a packet is written and read whole or not at all. It knows bytes and
descriptors, nothing of what a burst is.

`MessageQueue`
    one end of a queue; `MessageQueue.create` makes a queue, `MessageQueue.open` takes
    its ``descriptor`` and returns the other end, in this process or another
`Spans`
    a packet that is written or read in place, without a copy
`LoopPoller`
    serves many queues by callbacks on one event loop; each is a `Served`

Each end is for one task or thread at a time. `MessageQueue.read` and
`MessageQueue.write` wait on the running loop, for ``timeout`` seconds at most, and
cancelling them leaves the queue as it was. ``read_nowait`` and ``write_nowait`` never
wait; ``read_blocking`` and ``write_blocking`` block a thread. A task spins for some
tens of microseconds before it sleeps, unless ``spins=False`` says that the
peer is slow.

Close both ends, as their contexts do. The descriptors in ``descriptor`` belong to the
end that created the queue, and are valid until that is closed; `MessageQueue.open`
leaves them alone. The other process may be malicious: it can spoil the data and leave
this end waiting, but no more. A forked child refuses to use the ends that it inherits.

`QueueClosedError` says that this end is closed, `QueueBrokenError` that the peer wrote
what cannot be, which closes it. `QueueBusyError` refuses a second waiter at one end,
and `MemoryOrderError` a platform on which queues cannot be had. `InvalidArgumentError`
stands for sizes that never fit; waiting in vain is a `TimeoutError`.

==================  ===================================================================
``layout``          what lies where in the shared memory
``ring``            moves the bytes, and argues why that needs no locks; ``_ring.c`` is
                    the same, compiled (`IS_COMPILED` says whether it is used)
``doorbell``        wakes the end that sleeps
``spin``            how long not to sleep
``queue``           all that put together, with ways to wait
``poller``          serves the queues of one event loop
==================  ===================================================================

>>> import asyncio
>>> from asyncnn.fmq import MessageQueue
>>> async def main():
...     with (
...         MessageQueue.create(quantum=4, count=16) as writer,
...         MessageQueue.open(writer.descriptor) as reader,
...     ):
...         reading = asyncio.create_task(reader.read(count=2, timeout=5))
...         await writer.write(b"abcdefgh")
...         return await reading, reader.read_nowait()
>>> asyncio.run(main())
(b'abcdefgh', None)
"""

from asyncnn.fmq.layout import RING_OFFSET as RING_OFFSET
from asyncnn.fmq.layout import Geometry as Geometry
from asyncnn.fmq.layout import MemoryOrderError as MemoryOrderError
from asyncnn.fmq.layout import Pages as Pages
from asyncnn.fmq.layout import QueueBrokenError as QueueBrokenError
from asyncnn.fmq.layout import QueueBusyError as QueueBusyError
from asyncnn.fmq.layout import QueueClosedError as QueueClosedError
from asyncnn.fmq.poller import LoopPoller as LoopPoller
from asyncnn.fmq.poller import Served as Served
from asyncnn.fmq.queue import MessageQueue as MessageQueue
from asyncnn.fmq.ring import IS_COMPILED as IS_COMPILED
from asyncnn.fmq.ring import OpenRing as OpenRing
from asyncnn.fmq.ring import PythonRing as PythonRing
from asyncnn.fmq.ring import Spans as Spans
from asyncnn.lazy import exported as _exported

__all__ = _exported(__name__)
