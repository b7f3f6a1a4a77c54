"""The constants of the scheduling policy; `Roster` says what they mean together."""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Priority
from asyncnn.qos.virtual_time import Shares
from asyncnn.qos.work import Account, Client, Job, JobState, User, UserAccount

_MS = 1_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How fair lanes are to clients, and how strict priorities inside a client.

    Shares: while others wait, a client keeps a lane until the first boundary after
    ``slice_ns``, then whoever has had least goes on. A client that was away gets a lane
    at the next boundary, and may be that much of lane time ahead of the others.

    Aging: a priority of a client whose work waits while none of it ran for
    ``patience_ns`` gets a turn before higher ones of that client, which ends at the
    first boundary after ``turn_ns``. So while its client has a lane to itself, it gets
    at least one operation in every ``patience_ns``, and a share of ``turn_ns /
    (turn_ns + patience_ns)`` if its operations are short.

    ``horizon_ns`` is how far deadlines count. Work without a deadline, or with a later
    one, is ordered as if it were due that long after its arrival, so that nothing is
    overtaken for longer.

    :raises InvalidArgumentError: if a duration is negative, or there are no slices.
    """

    slice_ns: int = 2 * _MS
    patience_ns: int = 50 * _MS
    turn_ns: int = 1 * _MS
    horizon_ns: int = 2000 * _MS

    def __post_init__(self) -> None:
        if min(self.patience_ns, self.turn_ns, self.horizon_ns) < 0:
            raise InvalidArgumentError("a duration of Policy is negative")
        if self.slice_ns < 1:
            raise InvalidArgumentError("slice_ns of Policy must be positive")


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
        self._queues = tuple(ReadyQueue[JobT]() for _ in Priority)
        self._running: list[JobT] = []
        self._waiting = 0
        self._users: WeakKeyDictionary[User, UserAccount] = WeakKeyDictionary()
        self._accounts: WeakKeyDictionary[Client, Account] = WeakKeyDictionary()
        self._active: Shares[UserAccount] = Shares(policy.slice_ns)
        # Looking one up weakly costs as much as the rest of `add`.
        self._latest_client = 0
        self._latest: Account | None = None
        self.missed: deque[JobT] = deque()

    def __repr__(self) -> str:
        waiting = ", ".join(f"{p.name} {len(self._queues[p])}" for p in Priority)
        return f"Roster(running {len(self._running)} of {self._lanes}; {waiting})"

    @property
    def running(self) -> tuple[JobT, ...]:
        """The jobs that have a lane."""
        return tuple(self._running)

    @property
    def waiting(self) -> int:
        """Number of jobs that have no lane."""
        return self._waiting

    def clients(self) -> list[Client]:
        """Return the clients that have an account."""
        return list(self._accounts)

    def account(self, client: Client) -> Account:
        """Return the account of ``client``, which lives as long as the client."""
        account = self._accounts.get(client)
        if account is None:
            user = self._users.get(client.user)
            if user is None:
                user = UserAccount(client.user.weight, self._policy.slice_ns)
                self._users[client.user] = user
            account = self._accounts[client] = Account(client.weight, user)
        return account

    def add(self, job: JobT, now_ns: int) -> JobT | None:
        """Let ``job`` wait; return the running job that must stop for it, if any does.

        One that is returned stops at its next boundary and is given back.
        """
        client = job.client
        account = self._latest
        if account is None or client.number != self._latest_client:
            account = self._latest = self.account(client)
            self._latest_client = client.number
        job.account = account
        job.added_ns = now_ns
        job.due_ns = now_ns + self._policy.horizon_ns
        if job.deadline_ns is not None and job.deadline_ns < job.due_ns:
            job.due_ns = job.deadline_ns
        if account.pending == 0:
            self._enter(account, now_ns)
        account.pending += 1
        priority = job.priority
        was_waiting = account.waiting > 0
        is_first = not account.waiting_at[priority]
        if is_first:
            account.served_ns[priority] = now_ns
        self._queues[priority].push(job)
        account.waiting_at[priority] += 1
        account.waiting += 1
        account.user.waiting += 1
        self._waiting += 1
        if len(self._running) < self._lanes:
            return None
        to_stop = self._own_to_stop(account, priority, is_first, now_ns)
        if to_stop is None and not was_waiting:
            to_stop = self._other_to_stop(account, now_ns)
        if to_stop is not None:
            to_stop.is_stopping = True
        return to_stop

    def take(self, now_ns: int) -> JobT | None:
        """Give a free lane the job to run now, None if there is none.

        At its ``review_ns``, if that is not None, the job has to be given back at its
        next boundary, since it may be another one's turn.
        """
        while self._waiting:
            account = self._latest
            if account is None or account.waiting < self._waiting:
                account = self._active.next().clients.next()
            waiting_at = account.waiting_at
            for top in _DESCENDING:
                if waiting_at[top]:
                    break
            # Most often nothing lower waits, and no time needs to be looked at.
            has_lower = account.waiting > waiting_at[top]
            starved = self._starved_below(account, top, now_ns) if has_lower else None
            priority = top if starved is None else starved
            job = self._queues[priority].pop(account)
            waiting_at[priority] -= 1
            account.waiting -= 1
            account.user.waiting -= 1
            self._waiting -= 1
            if job.deadline_ns is not None and self._is_dropped(job, now_ns):
                continue
            self._start(job, starved is not None, has_lower, now_ns)
            return job
        return None

    def give_back(self, job: JobT, now_ns: int) -> None:
        """Let a running job that has stopped at a boundary wait for its resumption."""
        self._stop(job, now_ns)
        self._queues[job.priority].suspend(job)
        self._count_waiting(job.account, job.priority, 1)

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
        self._count_waiting(job.account, job.priority, -1)
        self._leave(job.account)
        return True

    def clear(self) -> list[JobT]:
        """Forget all jobs that wait or are suspended, and return them."""
        jobs = [job for queue in self._queues for job in queue.drain()]
        for job in jobs:
            job.state = JobState.OUTSIDE
            self._count_waiting(job.account, job.priority, -1)
            self._leave(job.account)
        return jobs

    def _count_waiting(self, account: Account, priority: int, more: int) -> None:
        account.waiting_at[priority] += more
        account.waiting += more
        account.user.waiting += more
        self._waiting += more

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
        account = job.account
        job.state = JobState.RUNNING
        job.resumed_ns = job.charged_ns = now_ns
        job.is_stopping = False
        job.has_turn = has_turn
        review_ns = None
        if has_turn:
            review_ns = now_ns + self._policy.turn_ns
        elif has_lower:
            review_ns = self._next_aging(account, job.priority)
        if self._waiting > account.waiting:
            slice_ends_ns = now_ns + self._policy.slice_ns
            if review_ns is None or slice_ends_ns < review_ns:
                review_ns = slice_ends_ns
        job.review_ns = review_ns

    def _stop(self, job: JobT, now_ns: int) -> None:
        self._running.remove(job)
        job.account.served_ns[job.priority] = now_ns
        self._charge(job, now_ns)

    def _charge(self, job: JobT, now_ns: int) -> None:
        """Count what a running job has had of its lane since it was last charged."""
        lane_ns = now_ns - job.charged_ns
        job.charged_ns = now_ns
        account = job.account
        account.virtual_ns += lane_ns / account.weight
        user = account.user
        user.virtual_ns += lane_ns / user.weight

    def _aging(self, account: Account, below: int) -> list[int]:
        """Return the priorities under ``below`` that wait while none of them runs."""
        running = {job.priority for job in self._running if job.account is account}
        waiting_at = account.waiting_at
        return [p for p in range(below) if waiting_at[p] and p not in running]

    def _starved_below(self, account: Account, top: int, now_ns: int) -> int | None:
        """Return the priority that has waited for longest, if beyond the patience."""
        aging = self._aging(account, top)
        if not aging:
            return None
        served_ns = account.served_ns
        priority = min(aging, key=served_ns.__getitem__)
        is_starved = now_ns - served_ns[priority] >= self._policy.patience_ns
        return priority if is_starved else None

    def _next_aging(self, account: Account, priority: int) -> int | None:
        """Return when a priority below this one will have waited for too long."""
        aging = self._aging(account, priority)
        if not aging:
            return None
        return min(account.served_ns[p] for p in aging) + self._policy.patience_ns

    def _own_to_stop(
        self, account: Account, priority: int, is_first: bool, now_ns: int
    ) -> JobT | None:
        """Return the job of a client that has to stop for what the client has added.

        Either that one goes before it, or it has no time yet at which it is reviewed.
        """
        chosen = None
        for job in self._running:
            if job.account is not account or job.is_stopping:
                continue
            makes_way = job.priority < priority and not self._keeps_turn(job, now_ns)
            needs_review = job.priority > priority and job.review_ns is None
            if (makes_way or (is_first and needs_review)) and (
                chosen is None or job.priority < chosen.priority
            ):
                chosen = job
        return chosen

    def _other_to_stop(self, account: Account, now_ns: int) -> JobT | None:
        """Return the job that has to stop for a client that did not wait before.

        Either its client has had no less than that one, most of all, or it is not
        reviewed at the end of a time slice yet.
        """
        chosen, most_ahead = None, -1.0
        slice_ends_ns = now_ns + self._policy.slice_ns
        for job in self._running:
            other = job.account
            if other is account or job.is_stopping:
                continue
            self._charge(job, now_ns)
            if other.user is account.user:
                ahead = other.virtual_ns - account.virtual_ns
            else:
                ahead = other.user.virtual_ns - account.user.virtual_ns
            needs_review = job.review_ns is None or job.review_ns > slice_ends_ns
            if ahead >= 0 and ahead > most_ahead:
                chosen, most_ahead = job, ahead
            elif needs_review and chosen is None:
                chosen = job
        return chosen

    def _keeps_turn(self, job: JobT, now_ns: int) -> bool:
        return job.has_turn and now_ns < job.resumed_ns + self._policy.turn_ns

    def _enter(self, account: Account, now_ns: int) -> None:
        """Let a client compete that has work again."""
        for job in self._running:
            self._charge(job, now_ns)
        user = account.user
        if not user.clients.active:
            self._active.enter(user)
        user.clients.enter(account)

    def _leave(self, account: Account) -> None:
        account.pending -= 1
        if account.pending == 0:
            user = account.user
            user.clients.leave(account)
            if not user.clients.active:
                self._active.leave(user)
