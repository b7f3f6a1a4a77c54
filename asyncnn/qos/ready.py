"""The order in which waiting jobs of one priority run: no clock, no thread."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from asyncnn.qos.job import Account, Job, JobState

JobT = TypeVar("JobT", bound=Job)


class _Line(Generic[JobT]):
    """The jobs of one client; ``stale`` entries of the heap were discarded."""

    __slots__ = ("heap", "stale", "suspended")

    def __init__(self) -> None:
        self.suspended: list[JobT] = []
        self.heap: list[tuple[int, int, JobT]] = []
        self.stale = 0

    def __len__(self) -> int:
        return len(self.suspended) + len(self.heap) - self.stale

    @property
    def is_empty(self) -> bool:
        return not self.suspended and len(self.heap) == self.stale


class ReadyQueue(Generic[JobT]):
    """Of each client the suspended jobs first, then those that are due earliest.

    What has begun is resumed before anything else of its client and priority begins,
    so that no more of these jobs hold memory than there are lanes. Of the others, the
    one that is due first is first, in the order of arrival if that is equal.

    Takes O(log n).
    """

    def __init__(self) -> None:
        self._lines: dict[Account, _Line[JobT]] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def push(self, job: JobT) -> None:
        """Add a job that has not begun; its ``account`` and ``due_ns`` are set."""
        line = self._lines.get(job.account)
        if line is None:
            line = self._lines[job.account] = _Line()
        heapq.heappush(line.heap, (job.due_ns, next(self._arrivals), job))
        job.state = JobState.WAITING

    def suspend(self, job: JobT) -> None:
        """Add a job that has begun."""
        line = self._lines.get(job.account)
        if line is None:
            line = self._lines[job.account] = _Line()
        line.suspended.append(job)
        job.state = JobState.SUSPENDED

    def pop(self, account: Account) -> JobT:
        """Remove and return the first job of a client that has one here."""
        line = self._lines[account]
        if line.suspended:
            job = line.suspended.pop(0)
        else:
            heap = line.heap
            job = heapq.heappop(heap)[-1]
            while job.state is not JobState.WAITING:
                line.stale -= 1
                job = heapq.heappop(heap)[-1]
        if line.is_empty:
            del self._lines[account]
        return job

    def discard(self, job: JobT) -> None:
        """Remove a job that waits or is suspended here."""
        line = self._lines[job.account]
        if job.state is JobState.SUSPENDED:
            line.suspended.remove(job)
        else:
            line.stale += 1
        job.state = JobState.OUTSIDE
        # What is discarded may hold pools: none of it waits for other work to come.
        if line.is_empty:
            del self._lines[job.account]
        elif line.stale > len(line) + 16:
            line.heap = [e for e in line.heap if e[-1].state is JobState.WAITING]
            heapq.heapify(line.heap)
            line.stale = 0

    def drain(self) -> list[JobT]:
        """Remove and return all jobs, in some order."""
        jobs = list(self)
        self._lines.clear()
        return jobs

    def __iter__(self) -> Iterator[JobT]:
        for line in self._lines.values():
            yield from line.suspended
            for _, _, job in line.heap:
                if job.state is JobState.WAITING:
                    yield job
