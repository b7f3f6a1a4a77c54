"""The order in which waiting jobs of one priority run: no clock, no thread."""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from asyncnn.qos.job import Account, Job, JobState

JobT = TypeVar("JobT", bound=Job)


class ReadyQueue(Generic[JobT]):
    """Suspended jobs first, then those of clients within their share, earliest first.

    What has begun is resumed before anything else of its priority begins, so that no
    more jobs hold memory than there are lanes. Of the others, a client may go first
    while it has had at most ``slack_ns`` more than the one that has had least; among
    these the job that is due first does, in the order of arrival if that is equal.

    Takes O(log n) and, in the number of clients that wait, O(clients).
    """

    def __init__(self, slack_ns: int) -> None:
        self._slack_ns = slack_ns
        self._suspended: deque[JobT] = deque()
        self._heaps: dict[Account, list[tuple[int, int, JobT]]] = {}
        self._length = 0
        self._stale = 0
        self._arrivals = count()

    def __len__(self) -> int:
        return self._length

    def push(self, job: JobT) -> None:
        """Add a job that has not begun; its ``account`` and ``due_ns`` are set."""
        heap = self._heaps.get(job.account)
        if heap is None:
            heap = self._heaps[job.account] = []
        heapq.heappush(heap, (job.due_ns, next(self._arrivals), job))
        job.state = JobState.WAITING
        self._length += 1

    def suspend(self, job: JobT) -> None:
        """Add a job that has begun."""
        self._suspended.append(job)
        job.state = JobState.SUSPENDED
        self._length += 1

    def pop(self) -> JobT:
        """Remove and return the job that is first in order; the queue is not empty."""
        self._length -= 1
        if self._suspended:
            return self._suspended.popleft()
        while True:
            if len(self._heaps) == 1:
                (account,) = self._heaps
            else:
                account = self._next_account()
            heap = self._heaps[account]
            job = heapq.heappop(heap)[-1]
            if not heap:
                del self._heaps[account]
            if job.state is JobState.WAITING:
                return job
            self._stale -= 1

    def discard(self, job: JobT) -> None:
        """Remove a job that waits or is suspended here."""
        self._length -= 1
        if job.state is JobState.SUSPENDED:
            self._suspended.remove(job)
        else:
            self._stale += 1
        job.state = JobState.OUTSIDE
        if self._stale > self._length + 16:
            self._compact()

    def drain(self) -> list[JobT]:
        """Remove and return all jobs, in some order."""
        jobs = list(self)
        self._suspended.clear()
        self._heaps.clear()
        self._length = self._stale = 0
        return jobs

    def __iter__(self) -> Iterator[JobT]:
        yield from self._suspended
        for heap in self._heaps.values():
            for _, _, job in heap:
                if job.state is JobState.WAITING:
                    yield job

    def _next_account(self) -> Account:
        """Return the account whose first job is next; drop what was discarded."""
        for account in tuple(self._heaps):
            self._prune(account)
        least = min(account.virtual_ns for account in self._heaps)
        _, account = min(
            (heap[0][:2], account)
            for account, heap in self._heaps.items()
            if account.virtual_ns <= least + self._slack_ns
        )
        return account

    def _prune(self, account: Account) -> None:
        heap = self._heaps[account]
        while heap and heap[0][-1].state is not JobState.WAITING:
            heapq.heappop(heap)
            self._stale -= 1
        if not heap:
            del self._heaps[account]

    def _compact(self) -> None:
        """Drop entries that were discarded, so that memory follows the length."""
        for account, heap in tuple(self._heaps.items()):
            kept = [entry for entry in heap if entry[-1].state is JobState.WAITING]
            heapq.heapify(kept)
            if kept:
                self._heaps[account] = kept
            else:
                del self._heaps[account]
        self._stale = 0
