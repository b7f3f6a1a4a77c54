"""The order in which waiting work runs: a pure data structure, no clock, no thread."""

import heapq
from itertools import count

from asyncnn.qos.work import Work

_NO_DEADLINE = float("inf")


class ReadyQueue:
    """Higher priority first; inside one, the earliest deadline, then the order of
    arrival. `discard` is lazy, so that every operation is O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Work]] = []
        self._waiting: set[int] = set()
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, work: Work) -> None:
        """Add ``work``, which is not in the queue."""
        deadline = _NO_DEADLINE if work.deadline_ns is None else work.deadline_ns
        entry = (-work.priority, deadline, next(self._arrivals), work)
        heapq.heappush(self._heap, entry)
        self._waiting.add(id(work))

    def pop(self) -> Work | None:
        """Remove and return the work that is first in order, None if none waits."""
        while self._heap:
            work = heapq.heappop(self._heap)[-1]
            if id(work) in self._waiting:
                self._waiting.discard(id(work))
                return work
        return None

    def discard(self, work: Work) -> bool:
        """Remove ``work``; False if it does not wait here."""
        if id(work) not in self._waiting:
            return False
        self._waiting.discard(id(work))
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._compact()
        return True

    def _compact(self) -> None:
        """Drop entries that were discarded, so that memory follows the length."""
        self._heap = [e for e in self._heap if id(e[-1]) in self._waiting]
        heapq.heapify(self._heap)
