"""Counts of work that has ended on other threads, for the event loop to make later.

Counters belong to the loop: no execution pays for a lock around them. What ends
elsewhere leaves here what there is to count, and nothing of the work itself. The loop
comes to that before it tells statistics, and when much has gathered.
"""

from collections import deque
from collections.abc import Callable

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

    def settle(self) -> None:
        """Make all counts."""
        while self._counts:
            self._counts.popleft()()
