"""Counts of work that has ended on other threads, for the event loop to make later.

Counters belong to the loop: no execution pays for a lock around them. What ends
elsewhere leaves here what there is to count, and nothing of the work itself. The loop
comes to that before it tells statistics, and when much has gathered.
"""

from collections import deque
from collections.abc import Callable, Iterable

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.accounting import WorkAccounting, count_end
from asyncnn.qos.work import Work

MOST = 256
"""Counts that may gather before the loop is woken for them."""


class LateCounts:
    """Counts that were not made yet. Thread-safe, but `settle` belongs to the loop."""

    def __init__(self) -> None:
        self._counts: deque[Callable[[], None]] = deque()

    @property
    def are_many(self) -> bool:
        """Whether it is time to `settle`."""
        return len(self._counts) > MOST

    def add(self, count: Callable[[], None]) -> None:
        """Have ``count`` called by the next `settle`."""
        self._counts.append(count)

    def add_end(
        self,
        work: Work,
        accountings: Iterable[WorkAccounting | None],
        latency_ns: int,
        status: ErrorStatus,
    ) -> None:
        """Have the end of ``work`` counted, and what is to be learnt from it learnt."""
        preemptions, lesson = work.preemptions, work.lesson()

        def count() -> None:  # keeps no reference to the work, whose memory is large
            count_end(accountings, latency_ns, status, preemptions)
            if lesson is not None:
                lesson()

        self._counts.append(count)

    def settle(self) -> None:
        """Make all counts."""
        while self._counts:
            self._counts.popleft()()
