"""Floor 3: who runs next, on which thread, and until when.

`ReadyQueue` decides the order and does nothing else; `Lane` is a worker thread;
`Scheduler` ties them to an event loop. Knows nothing of models or transports.
"""

from asyncnn.qos.scheduler import Scheduler
from asyncnn.qos.work import Work

__all__ = ("Scheduler", "Work")
