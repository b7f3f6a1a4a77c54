"""Floor 2: message queues in memory that two processes share.

Knows bytes and descriptors, nothing of what a burst is. `MessageQueue` is one end of a
queue for exactly one writer and one reader; `LoopPoller` serves many queues by
callbacks on one event loop.

==============  ======================================================================
``layout``      what lies where in the shared memory
``ring``        moves the bytes, and argues why that needs no locks; ``_ring.c`` is
                the same, compiled
``memory_regions`` packets written and read in place
``doorbell``    wakes the end that sleeps
``spin``        how long not to sleep
``queue``       all that put together, with ways to wait
``poller``      serves the queues of one event loop
==============  ======================================================================
"""

from asyncnn.fmq.memory_regions import Spans
from asyncnn.fmq.poller import LoopPoller, Served
from asyncnn.fmq.queue import MessageQueue
from asyncnn.fmq.queue_errors import (
    MemoryOrderError,
    QueueBrokenError,
    QueueBusyError,
    QueueClosedError,
)
from asyncnn.fmq.ring import IS_COMPILED

__all__ = (
    "IS_COMPILED",
    "LoopPoller",
    "MemoryOrderError",
    "MessageQueue",
    "QueueBrokenError",
    "QueueBusyError",
    "QueueClosedError",
    "Served",
    "Spans",
)
