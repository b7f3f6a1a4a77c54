"""Waiting without sleeping, for as long as that is worth while.

A wake-up by the system takes tens of microseconds, many times what a peer on another
core needs to answer. So a waiter first looks at the counter again and again and gives
its core away in between: on a core of its own that costs little, on a shared one the
peer gets to run. How long that takes tells the two apart. A core that does not come
back for long is busy with something else; there sleeping is better, as the system
prefers whoever has slept.
"""

import os
import time
from collections.abc import Callable
from itertools import repeat

from asyncnn.fmq.ring import Words

BUDGET_NS = 50_000
"""Nanoseconds of spinning at most; longer waits are better slept through."""

SLOW_YIELD_NS = 100_000
"""A yield that takes longer tells that others want this core."""

LOST_YIELD_NS = 1_000_000
"""A yield that takes longer tells that one of them never sleeps."""

SHARED_YIELD_NS = 1_500
"""A yield that takes longer tells that somebody else ran, perhaps the peer."""

FEW_LOOKS, MANY_LOOKS = 1, 64
"""Looks between two yields, where the core is shared and where it is not."""

_MAX_SKIPS = 1024
_ENOUGH_HITS = 64
_SKIPS_AFTER_NOTHING = 2

clock = time.perf_counter_ns
give_way = os.sched_yield


class Patience:
    """Knows how spinning went lately.

    ``looks`` is how often to look at a counter between two yields.
    """

    __slots__ = ("_growth", "_hits", "_skips", "looks")

    def __init__(self) -> None:
        self.looks = MANY_LOOKS
        self._growth = 1
        self._hits = 0
        self._skips = 0

    def may_give_way(self) -> bool:
        """Tell whether to spin on after a first look; a no is one wait skipped."""
        if self._skips:
            self._skips -= 1
            return False
        return True

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
            rare = self._hits >= _ENOUGH_HITS
            self._growth = 1 if rare else min(4 * self._growth, _MAX_SKIPS)
            self._skips = self._growth
            self._hits = 0

    def came_to_nothing(self) -> None:
        """Note that the budget was spent in vain: skip the next two waits."""
        self._skips = _SKIPS_AFTER_NOTHING


def spin(
    words: Words,
    index: int,
    seen: int,
    patience: Patience,
    between: Callable[[], object] | None = None,
) -> bool:
    """Wait until ``words[index]`` is not ``seen`` or the budget is spent.

    Returns whether it is not. ``between`` is called between looks: what this thread
    owes to others, lest it wait for itself.
    """
    end = 0
    while True:
        if between is not None:
            between()
        for _ in repeat(None, patience.looks):
            if words[index] != seen:
                if end:
                    patience.paid()
                return True
        if not end:
            if not patience.may_give_way():
                return False
            end = clock() + BUDGET_NS
        before = clock()
        give_way()
        now = clock()
        if not patience.gave_way(now - before):
            patience.cost(now - before)
            return words[index] != seen
        if now > end:
            patience.came_to_nothing()
            return words[index] != seen
