"""Timers that notice what does not happen: activity, and boundaries of operations."""

import time
from collections.abc import Callable

from asyncnn.qos.coarse import CoarseTimer
from asyncnn.qos.lane import Lanes
from asyncnn.qos.work import Pause, Work


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
