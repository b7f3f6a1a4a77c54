"""Floor 3: who runs next, on which thread, and until when.

`RunQueue` decides and does nothing else: a state machine without clock or thread, with
the constants of `Policy`. `Lanes` are the worker threads that do as it says;
`Scheduler` ties them to an event loop, with deadlines, bounds, statistics and a
watchdog. Work is done for a `Client` of a `User`. Knows nothing of models or
transports.
"""

from asyncnn.qos.accounting import (
    BOUNDS_NS,
    LatencyHistogram,
    WorkAccounting,
    WorkStatistics,
)
from asyncnn.qos.run_queue import Policy
from asyncnn.qos.scheduler import Scheduler
from asyncnn.qos.watching import PendingSnapshot
from asyncnn.qos.work import (
    LOCAL,
    OWN_USER,
    Client,
    Pause,
    User,
    Work,
    acting_for,
    calling_client,
)

__all__ = (
    "BOUNDS_NS",
    "LOCAL",
    "OWN_USER",
    "Client",
    "LatencyHistogram",
    "Pause",
    "PendingSnapshot",
    "Policy",
    "Scheduler",
    "User",
    "Work",
    "WorkAccounting",
    "WorkStatistics",
    "acting_for",
    "calling_client",
)
