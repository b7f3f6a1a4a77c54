"""Waiting without sleeping, for as long as that is worth while.

A wake-up by the system takes tens of microseconds, many times what a peer on another
core needs to answer. So a waiter first looks at the counter again and again and gives
its core away in between: on a core of its own that costs little, on a shared one the
peer gets to run. How long that takes tells the two apart. A core that does not come
back for long is busy with something else. There giving it away is wrong: the system
prefers whoever has slept. So one looks on for a moment without, in case the peer has
another core and runs just now, and sleeps if nothing comes of it.
"""

import os
import time
from collections.abc import Callable
from functools import partial

BUDGET_NS = 50_000
"""Nanoseconds of spinning at most; longer waits are better slept through."""

STARE_NS = 25_000
"""Nanoseconds of looking on without giving the core away."""

SLOW_YIELD_NS = 100_000
"""A yield that takes longer tells that others want this core."""

LOST_YIELD_NS = 1_000_000
"""A yield that takes longer tells that one of them never sleeps."""

SHARED_YIELD_NS = 1_500
"""A yield that takes longer tells that somebody else ran, perhaps the peer."""

FEW_LOOKS, MANY_LOOKS = 1, 256
"""Looks between two yields, where the core is shared and where it is not."""

_MAX_SKIPS = 8192
_MAX_VAIN = 1024
_ENOUGH_HITS = 64
_SKIPS_AFTER_NOTHING = 2

clock = time.perf_counter_ns
give_way = os.sched_yield


class Patience:
    """Knows how spinning went lately.

    ``looks`` is how often to look at a counter between two yields.
    """

    __slots__ = ("_hits", "_is_crowded", "_stares", "_yields", "looks")

    def __init__(self) -> None:
        self.looks = MANY_LOOKS
        self._hits = 0
        self._is_crowded = False
        self._yields = _Habit(_MAX_SKIPS, growth=1)
        self._stares = _Habit(_MAX_VAIN)

    def may_give_way(self) -> bool:
        """Tell whether to spin on after a first look; a no is one wait skipped."""
        return self._yields.is_due()

    def gave_way(self, took_ns: int) -> bool:
        """Note a yield; return whether it was fast enough to spin on."""
        if took_ns > SLOW_YIELD_NS:
            return False
        self.looks = FEW_LOOKS if took_ns > SHARED_YIELD_NS else MANY_LOOKS
        return True

    def paid(self) -> None:
        """Note that something came after yields that were not slow."""
        self._hits += 1

    def cost(self, took_ns: int) -> None:
        """Note that somebody had to wait for a slow yield; maybe skip the next waits.

        Skip four times as many as the last time if spinning hardly paid since then.
        """
        if took_ns > LOST_YIELD_NS:
            if self._hits >= _ENOUGH_HITS:
                self._yields.was_of_use()
            self._yields.was_in_vain()
            self._hits = 0
            self._is_crowded = True

    def came_to_nothing(self) -> None:
        """Note that the budget was spent in vain: skip the next two waits."""
        self._yields.skip(_SKIPS_AFTER_NOTHING)
        self._is_crowded = False

    def stare(self, came: Callable[[], bool]) -> bool:
        """Look on without giving way, where the core is busy and while it is of use.

        Returns whether anything came.
        """
        if not (self._is_crowded and self._stares.is_due()):
            return False
        end = clock() + STARE_NS
        while not came():
            if clock() > end:
                self._stares.was_in_vain()
                return False
        self._stares.was_of_use()
        return True


class _Habit:
    """What is done less and less often while it is of no use.

    Each time in vain skips four times as many as the one before, ``most`` at most.
    ``growth`` stands for what the time before the first one skipped.
    """

    __slots__ = ("_growth", "_most", "_skips")

    def __init__(self, most: int, growth: int = 0) -> None:
        self._most = most
        self._growth = growth
        self._skips = 0

    def is_due(self) -> bool:
        """Tell whether to do it this time; a no is one time skipped."""
        if self._skips:
            self._skips -= 1
            return False
        return True

    def skip(self, times: int) -> None:
        """Skip it so many times, whatever was to be skipped."""
        self._skips = times

    def was_of_use(self) -> None:
        """Note that it was worth while: the next time in vain skips one."""
        self._growth = 0

    def was_in_vain(self) -> None:
        """Note that it was not: skip ever more of the next times."""
        self._growth = min(4 * self._growth or 1, self._most)
        self._skips = self._growth


def spin(
    has_moved: Callable[[int, int, int], bool],
    counter: int,
    seen: int,
    patience: Patience,
    between: Callable[[], object] | None = None,
) -> bool:
    """Wait until a counter is not ``seen`` or the budget is spent.

    Returns whether it is not. ``has_moved`` tells that of a counter after so many looks
    at most. ``between`` is called between looks: what this thread owes to others, lest
    it wait for itself.
    """
    if between is not None:
        between()
    if has_moved(counter, seen, 1):
        return True
    if not patience.may_give_way():
        return patience.stare(partial(_look, has_moved, counter, seen, between))
    now = clock()
    end = now + BUDGET_NS
    while now < end:
        before = clock()
        give_way()
        now = clock()
        if not patience.gave_way(now - before):
            patience.cost(now - before)
            return has_moved(counter, seen, 1)
        if between is not None:
            between()
        if has_moved(counter, seen, patience.looks):
            patience.paid()
            return True
    patience.came_to_nothing()
    return False


def _look(
    has_moved: Callable[[int, int, int], bool],
    counter: int,
    seen: int,
    between: Callable[[], object] | None,
) -> bool:
    if between is not None:
        between()
    return has_moved(counter, seen, MANY_LOOKS)
