"""Floor 3: who runs next, on which thread, and until when.

Knows nothing of models or transports. Applications meet it as the priorities and
deadlines of runs, as `asyncnn.DeviceSettings.policy`, and in statistics.

`Scheduler`
    runs work on worker threads, its lanes, and finishes it on the event loop; with
    deadlines, bounds, statistics and a watchdog
`Work`
    what is scheduled: subclasses compute in `Work.advance`, report in `Work.finish`
`Client`, `User`
    whom work is done for; lane time is shared by weight between users, and within one
    between its clients. `acting_for` says for whom the calls of a block are
`Policy`
    the constants: length of a slice, starvation limit, how far deadlines count

Work that was accepted is finished exactly once, whatever becomes of it: on the loop
that made the scheduler, or where it ends if it came by `Scheduler.submit_threadsafe`.
Of the scheduler's methods, only those whose names end so are for other threads.
`Work.advance` runs on a lane, and stops at its next boundary when its `Pause` asks for
that: nothing is interrupted from outside. Work with a ``decision`` is reported as it is
cancelled or its deadline passes, and another lane takes the place of one that goes on
with it for more than a moment. If ``stuck_after_s`` is set, work that comes
to no boundary for so long fails, and its thread is replaced. `Scheduler.aclose` aborts
all work with DEVICE_UNAVAILABLE and ends the threads: await it. In a forked child a
scheduler refuses work with `ForkedError`.

Deadlines are absolute nanoseconds of `time.monotonic_ns`; durations are nanoseconds
where names end in ``_ns`` and seconds where they end in ``_s``.

`Scheduler.submit` raises `ResourceExhaustedTransientError` if too much is pending,
`MissedDeadlinePersistentError` if the deadline cannot be met any more, and
`DeviceUnavailableError` once the scheduler is closed. What `Work.advance` raises is no
error of the scheduler's: it becomes the status that the work ends with.

>>> import asyncio
>>> from asyncnn.hal import ErrorStatus, Priority
>>> from asyncnn.qos import Scheduler, Work
>>> class Sum(Work):
...     def __init__(self, numbers, done):
...         super().__init__(Priority.MEDIUM)
...         self.numbers, self.done = numbers, done
...         self.total, self.status = 0, ErrorStatus.NONE
...
...     def advance(self, pause):
...         while self.numbers and self.status is ErrorStatus.NONE:
...             self.total += self.numbers.pop()
...             if pause.requested:
...                 return False
...         return True
...
...     def abort(self, status):
...         self.status = status
...
...     def finish(self):
...         self.done.set_result(self.status)
...         return self.status
>>> async def main():
...     scheduler = Scheduler("sums", max_pending=8)
...     work = Sum([1, 2, 3], asyncio.get_running_loop().create_future())
...     scheduler.submit(work)
...     status = await work.done
...     await scheduler.aclose()
...     return status.name, work.total, scheduler.statistics().ended
>>> asyncio.run(main())
('NONE', 6, 1)
"""

from asyncnn.lazy import exported as _exported
from asyncnn.pacing import Pause as Pause
from asyncnn.qos.accounting import BOUNDS_NS as BOUNDS_NS
from asyncnn.qos.accounting import LatencyHistogram as LatencyHistogram
from asyncnn.qos.accounting import WorkAccounting as WorkAccounting
from asyncnn.qos.accounting import WorkStatistics as WorkStatistics
from asyncnn.qos.scheduler import Scheduler as Scheduler
from asyncnn.qos.virtual_time import Policy as Policy
from asyncnn.qos.watching import PendingSnapshot as PendingSnapshot
from asyncnn.qos.work import LOCAL as LOCAL
from asyncnn.qos.work import OWN_USER as OWN_USER
from asyncnn.qos.work import Client as Client
from asyncnn.qos.work import User as User
from asyncnn.qos.work import Work as Work
from asyncnn.qos.work import acting_for as acting_for
from asyncnn.qos.work import calling_client as calling_client

__all__ = _exported(__name__)
