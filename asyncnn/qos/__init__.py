"""Floor 3: who runs next, on which thread, and until when.

`Roster` decides and does nothing else: a state machine without clock or thread, with
the constants of `Policy`. `Lanes` are the worker threads that do as it says;
`Scheduler` ties them to an event loop, with deadlines, bounds, statistics and
watching. Work is done for a `Client` of a `User`. Knows nothing of models or
transports.
"""

from asyncnn.qos.client import (
    LOCAL,
    OWN_USER,
    Client,
    User,
    acting_for,
    calling_client,
)
from asyncnn.qos.policy import Policy
from asyncnn.qos.scheduler import Scheduler
from asyncnn.qos.survey import Survey
from asyncnn.qos.tally import BOUNDS_NS, LatencyHistogram, Tally, WorkStatistics
from asyncnn.qos.work import Pause, Work

__all__ = (
    "BOUNDS_NS",
    "LOCAL",
    "OWN_USER",
    "Client",
    "LatencyHistogram",
    "Pause",
    "Policy",
    "Scheduler",
    "Survey",
    "Tally",
    "User",
    "Work",
    "WorkStatistics",
    "acting_for",
    "calling_client",
)
