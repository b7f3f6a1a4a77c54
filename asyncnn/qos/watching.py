"""Timers that notice what does not happen: activity, and boundaries of operations."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

from asyncnn.qos.accounting import Tally, WorkStatistics
from asyncnn.qos.lanes import CoarseTimer, Lanes
from asyncnn.qos.run_queue import Roster
from asyncnn.qos.work import Client, JobState, Pause, Work


class Survey:
    """The state of so much ``pending`` work at the moment, by its tallies.

    ``tally`` is the one of all work of the scheduler.
    """

    def __init__(
        self, pending: Iterable[Work], tally: Tally, roster: Roster[Work]
    ) -> None:
        self._tally = tally
        self._roster = roster
        self._queued: Counter[Tally | None] = Counter()
        self._running: Counter[Tally | None] = Counter()
        for work in pending:
            is_queued = work.state is JobState.WAITING
            counter = self._queued if is_queued else self._running
            for each in (tally, work.account.tally, work.tally):
                counter[each] += 1

    def of_all(self) -> WorkStatistics:
        """Return what became of all work."""
        return self.of(self._tally)

    def of_client(self, client: Client) -> WorkStatistics:
        """Return what became of the work of a client."""
        return self.of(self._roster.account(client).tally)

    def of(self, tally: Tally) -> WorkStatistics:
        """Return what became of the work that has ``tally`` in common."""
        return tally.statistics(self._queued[tally], self._running[tally])


class IdleTimer:
    """Calls ``rest`` when nothing has stirred for ``after_s`` seconds.

    Sleeps without a timer until something stirs again. Belongs to the running loop.
    """

    def __init__(self, after_s: float, rest: Callable[[], None]) -> None:
        self._after_s = after_s
        self._rest = rest
        self._stirred_at = 0.0
        self._timer: CoarseTimer | None = None

    def stir(self) -> None:
        """Note that something happens."""
        self._stirred_at = time.monotonic()
        if self._timer is None:
            self._timer = CoarseTimer(self._after_s, self._look)

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Rest, or wait for as long as the latest activity is too recent."""
        left = self._stirred_at + self._after_s - time.monotonic()
        if left > 0:
            self._timer = CoarseTimer(left, self._look)
        else:
            self._timer = None
            self._rest()


class StuckWatch:
    """Gives up lanes on which no boundary comes within ``limit_s`` seconds.

    Every so often all running work is asked to pause, which it does at its next
    boundary, to go on at once. What has not done so by the next time is stuck, and
    ``report`` gets it. Works for as long as ``is_idle`` is not true.
    """

    def __init__(
        self,
        limit_s: float,
        lanes: Lanes,
        is_idle: Callable[[], bool],
        report: Callable[[Work], None],
    ) -> None:
        self._limit_s = limit_s
        self._lanes = lanes
        self._is_idle = is_idle
        self._report = report
        self._asked: list[Pause] = []
        self._timer: CoarseTimer | None = None

    def watch(self) -> None:
        """Look in a while; does nothing if that is planned already."""
        if self._timer is None:
            self._timer = CoarseTimer(self._limit_s, self._look)

    def close(self) -> None:
        """Stop watching, until `watch`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asked = []

    def _look(self) -> None:
        self._timer = None
        for pause in self._asked:
            stuck = self._lanes.give_up(pause)
            if stuck is not None:
                self._report(stuck)
        self._asked = self._lanes.pauses()
        for pause in self._asked:
            pause.requested = True
        if not self._is_idle():
            self.watch()
