"""The order in which waiting jobs of one priority run: no clock, no thread."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

import msgspec

from asyncnn.qos.work import ClientAccount, Job, JobState

JobT = TypeVar("JobT", bound=Job)


class ReadyQueue(Generic[JobT]):
    """The order of the waiting jobs of one priority, for each client.

    What has begun is resumed before anything else of its client and priority begins,
    so that no more of these jobs hold memory than there are lanes. Of the others, the
    one that is due first is first, in the order of arrival if that is equal.

    Takes O(log n).
    """

    def __init__(self) -> None:
        self._clients: defaultdict[ClientAccount, _ClientJobs[JobT]] = defaultdict(
            _ClientJobs
        )
        self._arrivals = count()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def push(self, job: JobT) -> None:
        """Add a job that has not begun; its ``account`` and ``due_ns`` are set."""
        entry = job.due_ns, next(self._arrivals), job
        heapq.heappush(self._clients[job.account].heap, entry)
        job.state = JobState.WAITING

    def suspend(self, job: JobT) -> None:
        """Add a job that has begun."""
        self._clients[job.account].suspended.append(job)
        job.state = JobState.SUSPENDED

    def pop(self, account: ClientAccount) -> JobT:
        """Remove and return the first job of a client that has one here."""
        jobs = self._clients[account]
        if jobs.suspended:
            job = jobs.suspended.pop(0)
        else:
            heap = jobs.heap
            job = heapq.heappop(heap)[-1]
            while job.state is not JobState.WAITING:
                jobs.stale -= 1
                job = heapq.heappop(heap)[-1]
        if jobs.is_empty:
            del self._clients[account]
        return job

    def discard(self, job: JobT) -> None:
        """Remove a job that waits or is suspended here."""
        jobs = self._clients[job.account]
        if job.state is JobState.SUSPENDED:
            jobs.suspended.remove(job)
        else:
            jobs.stale += 1
        job.state = JobState.OUTSIDE
        # What is discarded may hold pools: none of it waits for other work to come.
        if jobs.is_empty:
            del self._clients[job.account]
        elif jobs.stale > len(jobs) + 16:
            jobs.heap = [e for e in jobs.heap if e[-1].state is JobState.WAITING]
            heapq.heapify(jobs.heap)
            jobs.stale = 0

    def drain(self) -> list[JobT]:
        """Remove and return all jobs, in some order."""
        drained = list(self)
        self._clients.clear()
        return drained

    def __iter__(self) -> Iterator[JobT]:
        for jobs in self._clients.values():
            yield from jobs.suspended
            for _, _, job in jobs.heap:
                if job.state is JobState.WAITING:
                    yield job


class _ClientJobs(msgspec.Struct, Generic[JobT], eq=False):
    """The jobs of one client and priority.

    ``heap`` orders those that have not begun. Taking one out of its middle would cost
    O(n), so what is discarded stays there as one of ``stale`` entries.
    """

    suspended: list[JobT] = []
    heap: list[tuple[int, int, JobT]] = []
    stale: int = 0

    def __len__(self) -> int:
        return len(self.suspended) + len(self.heap) - self.stale

    @property
    def is_empty(self) -> bool:
        return not self.suspended and len(self.heap) == self.stale
