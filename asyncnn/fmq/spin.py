"""Waiting without sleeping, for as long as that pays.

A wake-up by the system takes tens of microseconds, many times what a peer on another
core needs to answer. So a waiter first looks at the counter again and again and yields
its core in between: on a core of its own that costs little, on a shared one the peer
gets to run. How long a yield takes says which it is. A core that does not come back
for long is busy with something else. There yielding is wrong, as the system prefers
threads that have slept: a waiter looks on for a moment without yielding, in case the
peer runs on another core just now, and sleeps if nothing comes of it.
"""

import os
import time
from collections.abc import Callable
from functools import partial

BUDGET_NS = 50_000
"""Nanoseconds of spinning at most; longer waits are better slept through."""

UNYIELDING_NS = 25_000
"""Nanoseconds of looking on without yielding the core."""

SHARED_YIELD_NS = 1_500
"""A yield that takes longer shows that something else ran, perhaps the peer."""

SLOW_YIELD_NS = 100_000
"""A yield that takes longer shows that others want this core."""

LOST_YIELD_NS = 1_000_000
"""A yield that takes longer shows that one of them never sleeps."""

FEW_LOOKS, MANY_LOOKS = 1, 256
"""Looks between two yields, where the core is shared and where it is not."""

_MAX_SKIPPED_YIELDS = 8192
_MAX_SKIPPED_STARES = 1024
_ENOUGH_HITS = 64
_SKIPS_AFTER_MISS = 2

clock = time.perf_counter_ns
yield_core = os.sched_yield


class AdaptiveSpinner:
    """Decides from how spinning went lately whether it pays now.

    ``looks`` is how often to look at a counter between two yields; ``hits`` counts what
    came after yields that were not slow. `may_yield` says no while ``yielding`` skips.
    """

    def __init__(self) -> None:
        self.looks = MANY_LOOKS
        self.hits = 0
        self._is_crowded = False
        self.yielding = _Backoff(_MAX_SKIPPED_YIELDS, skipped=1)
        self._unyielding = _Backoff(_MAX_SKIPPED_STARES)
        self.may_yield = self.yielding.is_due
        """Says whether to spin on after a first look; False skips one wait."""

    def yielded(self, took_ns: int) -> bool:
        """Note a yield; return whether it was fast enough to spin on."""
        if took_ns > SLOW_YIELD_NS:
            return False
        self.looks = FEW_LOOKS if took_ns > SHARED_YIELD_NS else MANY_LOOKS
        return True

    def note_late(self, took_ns: int) -> None:
        """Note that something had to wait for a slow yield; maybe skip the next waits.

        Skips four times as many as the last time if spinning hardly paid since then.
        """
        if took_ns > LOST_YIELD_NS:
            if self.hits >= _ENOUGH_HITS:
                self.yielding.reset()
            self.yielding.grow()
            self.hits = 0
            self._is_crowded = True

    def note_miss(self) -> None:
        """Note that the budget was spent in vain: skip the next two waits."""
        self.yielding.skip(_SKIPS_AFTER_MISS)
        self._is_crowded = False

    def spin_without_yielding(self, came: Callable[[], bool]) -> bool:
        """Look on where the core is busy, as long as that pays; return what it found.

        ``came`` says whether what is waited for is there.
        """
        if not (self._is_crowded and self._unyielding.is_due()):
            return False
        end = clock() + UNYIELDING_NS
        while not came():
            if clock() > end:
                self._unyielding.grow()
                return False
        self._unyielding.reset()
        return True


def spin(
    has_moved: Callable[[int, int, int], bool],
    counter: int,
    seen: int,
    spinner: AdaptiveSpinner,
    between: Callable[[], object] | None = None,
) -> bool:
    """Spin until a counter differs from ``seen`` or the budget is spent.

    Returns whether it differs. ``has_moved(counter, seen, looks)`` looks at it so many
    times at most. ``between`` is called between looks and does what this thread owes to
    others, which may be just what it waits for.
    """
    if between is not None:
        between()
    if has_moved(counter, seen, 1):
        return True
    if not spinner.may_yield():
        came = partial(_look, has_moved, counter, seen, between)
        return spinner.spin_without_yielding(came)
    now = clock()
    end = now + BUDGET_NS
    while now < end:
        before = clock()
        yield_core()
        now = clock()
        took_ns = now - before
        if took_ns > SHARED_YIELD_NS and not spinner.yielded(took_ns):
            spinner.note_late(took_ns)
            return has_moved(counter, seen, 1)
        if between is not None:
            between()
        if has_moved(counter, seen, spinner.looks):
            spinner.hits += 1
            return True
    spinner.note_miss()
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


class _Backoff:
    """Exponential backoff, counted in chances that are skipped.

    Each failure skips four times as many as the one before, ``most`` at most; the first
    is taken to follow one that skipped ``skipped``. ``skips`` are left.
    """

    def __init__(self, most: int, skipped: int = 0) -> None:
        self._most = most
        self._growth = skipped
        self.skips = 0

    def is_due(self) -> bool:
        if self.skips:
            self.skips -= 1
            return False
        return True

    def skip(self, times: int) -> None:
        self.skips = times

    def reset(self) -> None:
        self._growth = 0

    def grow(self) -> None:
        self._growth = min(4 * self._growth or 1, self._most)
        self.skips = self._growth
