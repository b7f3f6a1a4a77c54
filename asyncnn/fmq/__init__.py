"""Floor 2: message queues in memory that two processes share.

Knows bytes and descriptors, nothing of what a burst is. `MessageQueue` is one end of a
queue for exactly one writer and one reader; `LoopPoller` serves many queues by
callbacks on one event loop. ``ring`` is what moves the bytes, in Python and, where that
was built, in C. ``ordering`` argues why no locks are needed, ``layout``
says what lies where, ``bells`` who wakes whom, ``spin`` how long not to sleep.
"""

from asyncnn.fmq.layout import (
    MemoryOrderError,
    QueueBrokenError,
    QueueBusyError,
    QueueClosedError,
)
from asyncnn.fmq.poller import LoopPoller, Served
from asyncnn.fmq.queue import MessageQueue
from asyncnn.fmq.ring import IS_COMPILED
from asyncnn.fmq.spans import Spans

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
