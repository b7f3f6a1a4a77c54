"""Watches the work of a scheduler: what is pending, idleness, and stuck lanes.

`PendingSnapshot` counts what has not ended. `IdleTimer` notices that nothing happens,
`Watchdog` that a lane comes to no boundary.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from asyncnn.pacing import Pause
from asyncnn.qos.accounting import WorkAccounting, WorkStatistics
from asyncnn.qos.alarms import Alarm, loop_alarms
from asyncnn.qos.lanes import Lanes
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import Client, JobState, Work

logger = logging.getLogger(__name__)

_THREAD_POLL_S = 0.0002
"""Between two looks whether a thread that is about to end has ended."""


_FOR_EVER_S = 2**31


class PendingSnapshot:
    """The numbers of pieces of work that are queued and running at one moment.

    ``pending`` is all work of a scheduler that has not ended, ``accounting`` is of
    the scheduler, ``run_queue`` has each client's. Taken once, it serves for the
    statistics of any number of clients and models.
    """

    def __init__(
        self,
        pending: Iterable[Work],
        accounting: WorkAccounting,
        run_queue: RunQueue[Work],
    ) -> None:
        self._accounting = accounting
        self._run_queue = run_queue
        self._queued: Counter[WorkAccounting | None] = Counter()
        self._running: Counter[WorkAccounting | None] = Counter()
        for work in pending:
            if work.members:  # these are what was asked for
                continue
            is_queued = work.state is JobState.WAITING
            counter = self._queued if is_queued else self._running
            counter.update((accounting, work.account.accounting, work.accounting))

    def of_all(self) -> WorkStatistics:
        """Return the statistics of all work."""
        return self.of(self._accounting)

    def of_client(self, client: Client) -> WorkStatistics:
        """Return the statistics of the work of a client."""
        return self.of(self._run_queue.account(client).accounting)

    def of(self, accounting: WorkAccounting) -> WorkStatistics:
        """Return the statistics of the work that is counted by ``accounting``."""
        queued, running = self._queued[accounting], self._running[accounting]
        return accounting.statistics(queued, running)


class IdleTimer:
    """Calls ``on_idle`` when there was no activity for ``after_s`` seconds.

    Has no timer from then on until there is activity again: while it ``is_waiting``, to
    set ``active_ns`` to the time notes that, from any thread. Belongs to the running
    loop.
    """

    def __init__(self, after_s: float, on_idle: Callable[[], None]) -> None:
        self._after_ns = round(min(after_s, _FOR_EVER_S) * 1e9)
        self._on_idle = on_idle
        self._timer: Alarm | None = None
        self.active_ns = 0
        self.is_waiting = False

    def note_activity(self) -> None:
        """Begin to wait anew."""
        # One timer serves for any number of calls: `_check` extends it.
        self.active_ns = time.monotonic_ns()
        if not self.is_waiting:
            self.is_waiting = True
            due_ns = self.active_ns + self._after_ns
            self._timer = loop_alarms().call_at(due_ns, self._check)

    def close(self) -> None:
        """Stop waiting."""
        self.is_waiting = False
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        due_ns = self.active_ns + self._after_ns
        self.is_waiting = due_ns > time.monotonic_ns()
        if self.is_waiting:
            self._timer = loop_alarms().call_at(due_ns, self._check)
        else:
            self._on_idle()


class Watchdog:
    """Gives up lanes on which no boundary comes within ``limit_s`` seconds.

    Each time that passes, all running work is asked to pause, which it does at its next
    boundary, to go on at once. What has not done so the next time is stuck: it is given
    to ``report``. It ``is_watching`` until nothing pends, or there is no limit to watch
    for.
    """

    def __init__(
        self, limit_s: float, lanes: Lanes, report: Callable[[Work], None]
    ) -> None:
        self._limit_s = limit_s
        self._lanes = lanes
        self._report = report
        self._asked: list[Pause] = []
        self._timer: Alarm | None = None
        self.is_watching = not limit_s

    def watch(self) -> None:
        """Check the lanes in a while; nothing happens if that is planned already."""
        if not self.is_watching:
            self.is_watching = True
            due_ns = time.monotonic_ns() + round(min(self._limit_s, _FOR_EVER_S) * 1e9)
            self._timer = loop_alarms().call_at(due_ns, self._check)

    def close(self) -> None:
        """Stop watching, until `watch`."""
        if self._timer is not None:
            self._timer.cancel()
        self._asked = []
        self.is_watching = not self._limit_s

    def rest(self) -> None:
        """Stop watching, unless another thread has brought work meanwhile."""
        self.close()
        if self._lanes.run_queue.pending:
            self.watch()

    def _check(self) -> None:
        self.is_watching = False
        # What has come back while the loop was busy is not stuck.
        self._lanes._deliver()
        # Lanes resume with a new pause: one that still has the old one is stuck.
        for stuck in self._lanes._dismiss(self._asked):
            logger.error(
                "lane %s is stuck: no boundary came for %g s (stuck_after_s); its "
                "work fails and another takes its place",
                self._lanes.name,
                self._limit_s,
                extra={"fields": {"client": stuck.client.name}},
            )
            self._report(stuck)
        self._asked = self._lanes._pauses()
        for pause in self._asked:
            pause.request()
        # Behind the flag: another thread leaves it to this one, or asks for it.
        if self._lanes.run_queue.pending:
            self.watch()


async def end_of_threads(lanes: Lanes) -> None:
    """Wait until the threads of closed lanes have ended.

    To join them would block the loop, and their last act is not to be seen.
    """
    while not lanes._have_ended:  # noqa: ASYNC110
        await asyncio.sleep(_THREAD_POLL_S)
