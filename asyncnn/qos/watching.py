"""Watches the work of a scheduler: what is pending, idleness, and stuck lanes.

`PendingSnapshot` counts what has not ended. `IdleTimer` notices that nothing happens,
`Watchdog` that a lane comes to no boundary.

Both wait by `ThreadTimer`, which costs the event loop nothing until it fires. A loop
that has a timer of its own sets an alarm of the system each time it waits, and cancels
it when it wakes up: on a virtual machine that costs some microseconds, twice per
execution. Here one thread waits for all loops of the process.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.offload import start_thread
from asyncnn.qos.accounting import WorkAccounting, WorkStatistics
from asyncnn.qos.lanes import Lanes
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import Client, JobState, Pause, Work

logger = logging.getLogger(__name__)

_THREAD_POLL_S = 0.0002
"""Between two looks whether a thread that is about to end has ended."""


class PendingSnapshot:
    """The numbers of pieces of work that are queued and running at one moment.

    ``pending`` is all work of a scheduler that has not ended, ``accounting`` that of
    the scheduler, ``run_queue`` has that of each client. Taken once, it serves for the
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


class ThreadTimer:
    """Calls ``callback`` once on the running loop, ``delay_s`` seconds from now.

    The call may be some milliseconds late. If no thread can be started, the loop's own
    timer takes its place.
    """

    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = callback
        self._loop_timer: asyncio.TimerHandle | None = None
        try:
            _timer_thread.add(time.monotonic() + delay_s, self)
        except ResourceExhaustedTransientError:
            self._loop_timer = self._loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Do not call; nothing happens if it was called already."""
        if self._callback is not None:
            # Also holds if the thread has just expired it: `_fire` looks again.
            self._callback = None
            if self._loop_timer is None:
                _timer_thread.remove(self)
            else:
                self._loop_timer.cancel()

    def expire(self) -> None:
        """Hand the call to the loop; for the timer thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class IdleTimer:
    """Calls ``on_idle`` when there was no activity for ``after_s`` seconds.

    Has no timer from then on until there is activity again: while it ``is_waiting``, to
    set ``active_ns`` to the time notes that, from any thread. Belongs to the running
    loop.
    """

    def __init__(self, after_s: float, on_idle: Callable[[], None]) -> None:
        self._after_ns = round(after_s * 1e9)
        self._on_idle = on_idle
        self._timer: ThreadTimer | None = None
        self.active_ns = 0
        self.is_waiting = False

    def note_activity(self) -> None:
        """Begin to wait anew."""
        # One timer serves for any number of calls: `_check` extends it.
        self.active_ns = time.monotonic_ns()
        if not self.is_waiting:
            self.is_waiting = True
            self._timer = ThreadTimer(self._after_ns / 1e9, self._check)

    def close(self) -> None:
        """Stop waiting."""
        self.is_waiting = False
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        left_ns = self.active_ns + self._after_ns - time.monotonic_ns()
        self.is_waiting = left_ns > 0
        if self.is_waiting:
            self._timer = ThreadTimer(left_ns / 1e9, self._check)
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
        self._timer: ThreadTimer | None = None
        self.is_watching = not limit_s

    def watch(self) -> None:
        """Check the lanes in a while; nothing happens if that is planned already."""
        if not self.is_watching:
            self.is_watching = True
            self._timer = ThreadTimer(self._limit_s, self._check)

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
        # Lanes resume with a new pause: one that still has the old one is stuck.
        for stuck in self._lanes.give_up(self._asked):
            logger.error(
                "lane %s is stuck: no boundary came for %g s (stuck_after_s); its "
                "work fails and another takes its place",
                self._lanes.name,
                self._limit_s,
                extra={"fields": {"client": stuck.client.name}},
            )
            self._report(stuck)
        self._asked = self._lanes.pauses()
        for pause in self._asked:
            pause.request()
        # Behind the flag: another thread leaves it to this one, or asks for it.
        if self._lanes.run_queue.pending:
            self.watch()


async def end_of_threads(lanes: Lanes) -> None:
    """Wait until the threads of closed lanes, and of timers that are over, have ended.

    To join them would block the loop, and their last act is not to be seen.
    """
    while not (lanes.have_ended and _timer_thread.has_ended):  # noqa: ASYNC110
        await asyncio.sleep(_THREAD_POLL_S)


class _TimerThread:
    """The thread that waits for all `ThreadTimer` of the process, and their times.

    It is started by the first timer and ends with the last.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._due: dict[ThreadTimer, float] = {}
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the last thread that was not needed any more has ended."""
        ending = self._ending
        return ending is None or not ending.is_alive()

    def add(self, due: float, timer: ThreadTimer) -> None:
        with self._changed:
            self._due[timer] = due
            self._changed.notify_all()
            if self._thread is not None:
                return
            thread = threading.Thread(
                target=self._run, name="asyncnn-timer", daemon=True
            )
            # Before the start: the thread ends at once if it is not this one.
            self._thread = thread
            try:
                start_thread(thread)
            except ResourceExhaustedTransientError:
                self._thread = None
                self._due.clear()
                raise

    def remove(self, timer: ThreadTimer) -> None:
        with self._changed:
            self._due.pop(timer, None)
            if not self._due and self._thread is not None:
                self._ending, self._thread = self._thread, None
                self._changed.notify_all()

    def _run(self) -> None:
        me = threading.current_thread()
        with self._changed:
            # Another thread may have taken over while this one waited.
            while self._thread is me:
                timer = min(self._due, key=self._due.__getitem__)
                left = self._due[timer] - time.monotonic()
                if left > 0:
                    del timer  # whoever is called is freed by whoever cancels
                    self._changed.wait(left)
                    continue
                del self._due[timer]
                timer.expire()
                if not self._due:
                    self._ending, self._thread = me, None


_timer_thread = _TimerThread()


def _begin_anew() -> None:
    """Replace the timers in a forked child, which has not inherited their thread."""
    global _timer_thread
    _timer_thread = _TimerThread()


os.register_at_fork(after_in_child=_begin_anew)
