"""Who runs now, who waits, and who has to make way: the scheduling policy.

A state machine without clock, thread or event loop: the time is an argument, what is to
be done is returned, and the caller does it. Production and simulation share it.

1. A higher `Priority` runs before a lower one and takes its lane from it at the next
   boundary between two operations.
2. Lower priorities do not starve: see aging in `Policy`.
3. Inside a priority what has begun is resumed first; the rest is shared out between
   clients by weight, then goes by deadline: see `ReadyQueue`.
4. What would miss its deadline if it began now is not begun.
"""

from collections import deque
from typing import Generic
from weakref import WeakKeyDictionary

from asyncnn.hal.types import Priority
from asyncnn.qos.client import Client
from asyncnn.qos.job import Account, JobState
from asyncnn.qos.policy import Policy
from asyncnn.qos.ready import JobT, ReadyQueue

_DESCENDING = tuple(int(priority) for priority in reversed(Priority))


class Roster(Generic[JobT]):
    """Assigns jobs to so many ``lanes``. Not thread-safe.

    A job is added, taken by a free lane, given back or ended by that lane. One that
    is not running can be discarded. ``missed`` collects the jobs that `take` dropped
    because of their deadlines, for the caller to remove.
    """

    def __init__(self, policy: Policy, lanes: int = 1) -> None:
        self._policy = policy
        self._lanes = lanes
        self._queues = tuple(ReadyQueue[JobT](policy.slack_ns) for _ in Priority)
        self._running: list[JobT] = []
        self._waiting = [0 for _ in Priority]
        # When each priority last ran, or began to wait.
        self._served_ns = [0 for _ in Priority]
        self._accounts: WeakKeyDictionary[Client, Account] = WeakKeyDictionary()
        self._active: set[Account] = set()
        self._virtual_ns = 0.0
        self.missed: deque[JobT] = deque()

    def __repr__(self) -> str:
        waiting = ", ".join(f"{p.name} {self._waiting[p]}" for p in Priority)
        return f"Roster(running {len(self._running)} of {self._lanes}; {waiting})"

    @property
    def running(self) -> tuple[JobT, ...]:
        """The jobs that have a lane."""
        return tuple(self._running)

    @property
    def waiting(self) -> int:
        """Number of jobs that have no lane."""
        return sum(self._waiting)

    def clients(self) -> list[Client]:
        """Return the clients that have an account."""
        return list(self._accounts)

    def account(self, client: Client) -> Account:
        """Return the account of ``client``, which lives as long as the client."""
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account(client.weight)
        return account

    def add(self, job: JobT, now_ns: int) -> JobT | None:
        """Let ``job`` wait; return the running job that must stop for it, if any does.

        One that is returned stops at its next boundary and is given back.
        """
        job.account = account = self.account(job.client)
        job.added_ns = now_ns
        job.due_ns = now_ns + self._policy.horizon_ns
        if job.deadline_ns is not None and job.deadline_ns < job.due_ns:
            job.due_ns = job.deadline_ns
        if account.pending == 0:
            self._enter(account)
        account.pending += 1
        priority = job.priority
        is_first = not self._waiting[priority]
        if is_first:
            self._served_ns[priority] = now_ns
        self._queues[priority].push(job)
        self._waiting[priority] += 1
        if len(self._running) < self._lanes:
            return None
        return self._to_stop(priority, is_first, now_ns)

    def take(self, now_ns: int) -> JobT | None:
        """Give a free lane the job to run now, None if there is none.

        At its ``review_ns``, if that is not None, the job has to be given back at its
        next boundary, since it may be another one's turn.
        """
        for top in _DESCENDING:
            while self._waiting[top]:
                # Most often nothing lower waits, and no time needs to be looked at.
                has_lower = any(self._waiting[:top])
                starved = self._starved_below(top, now_ns) if has_lower else None
                priority = top if starved is None else starved
                self._waiting[priority] -= 1
                job = self._queues[priority].pop()
                if job.deadline_ns is not None and self._is_dropped(job, now_ns):
                    continue
                self._start(job, starved is not None, has_lower, now_ns)
                return job
        return None

    def give_back(self, job: JobT, now_ns: int) -> None:
        """Let a running job that has stopped at a boundary wait for its resumption."""
        self._stop(job, now_ns)
        self._queues[job.priority].suspend(job)
        self._waiting[job.priority] += 1

    def end(self, job: JobT, now_ns: int) -> None:
        """Forget a running job that has come to its end."""
        self._stop(job, now_ns)
        job.state = JobState.OUTSIDE
        self._leave(job.account)

    def discard(self, job: JobT) -> bool:
        """Forget a job that waits or is suspended; False if it does not wait here."""
        if job.state not in (JobState.WAITING, JobState.SUSPENDED):
            return False
        self._queues[job.priority].discard(job)
        self._waiting[job.priority] -= 1
        self._leave(job.account)
        return True

    def clear(self) -> list[JobT]:
        """Forget all jobs that wait or are suspended, and return them."""
        jobs = [job for queue in self._queues for job in queue.drain()]
        for job in jobs:
            job.state = JobState.OUTSIDE
            self._leave(job.account)
        self._waiting = [0 for _ in Priority]
        return jobs

    def _is_dropped(self, job: JobT, now_ns: int) -> bool:
        """Let ``job`` go as missed if it cannot end in time; what has begun may try."""
        if job.state is JobState.SUSPENDED or not job.is_hopeless(now_ns):
            return False
        job.state = JobState.OUTSIDE
        self._leave(job.account)
        self.missed.append(job)
        return True

    def _start(self, job: JobT, has_turn: bool, has_lower: bool, now_ns: int) -> None:
        self._running.append(job)
        job.state = JobState.RUNNING
        job.resumed_ns = now_ns
        job.is_stopping = False
        job.has_turn = has_turn
        if has_turn:
            job.review_ns = now_ns + self._policy.turn_ns
        else:
            job.review_ns = self._next_aging(job.priority) if has_lower else None

    def _stop(self, job: JobT, now_ns: int) -> None:
        self._running.remove(job)
        self._served_ns[job.priority] = now_ns
        job.account.virtual_ns += (now_ns - job.resumed_ns) / job.account.weight

    def _aging(self, below: int) -> list[int]:
        """Return the priorities under ``below`` that wait while none of them runs."""
        running = {job.priority for job in self._running}
        return [p for p in range(below) if self._waiting[p] and p not in running]

    def _starved_below(self, top: int, now_ns: int) -> int | None:
        """Return the priority that has waited for longest, if beyond the patience."""
        aging = self._aging(top)
        if not aging:
            return None
        priority = min(aging, key=self._served_ns.__getitem__)
        is_starved = now_ns - self._served_ns[priority] >= self._policy.patience_ns
        return priority if is_starved else None

    def _next_aging(self, priority: int) -> int | None:
        """Return when a priority below this one will have waited for too long."""
        aging = self._aging(priority)
        if not aging:
            return None
        return min(self._served_ns[p] for p in aging) + self._policy.patience_ns

    def _to_stop(self, priority: int, is_first: bool, now_ns: int) -> JobT | None:
        """Return the running job that has to stop since one of ``priority`` arrived.

        Either that one goes before it, or it has no time yet at which it is reviewed.
        """
        others = [job for job in self._running if job.priority != priority]
        for job in sorted(others, key=lambda job: job.priority):
            makes_way = job.priority < priority and not self._keeps_turn(job, now_ns)
            needs_review = job.priority > priority and job.review_ns is None
            if not job.is_stopping and (makes_way or (is_first and needs_review)):
                job.is_stopping = True
                return job
        return None

    def _keeps_turn(self, job: JobT, now_ns: int) -> bool:
        return job.has_turn and now_ns < job.resumed_ns + self._policy.turn_ns

    def _enter(self, account: Account) -> None:
        """Begin to share; who was away has no claim on what it did not use."""
        if self._active:
            self._advance_virtual_time()
        if account.virtual_ns < self._virtual_ns:
            account.virtual_ns = self._virtual_ns
        self._active.add(account)

    def _leave(self, account: Account) -> None:
        account.pending -= 1
        if account.pending == 0:
            self._advance_virtual_time()
            self._active.discard(account)

    def _advance_virtual_time(self) -> None:
        """Move on to the least that an active client has had."""
        least = min([account.virtual_ns for account in self._active])
        if least > self._virtual_ns:
            self._virtual_ns = least
