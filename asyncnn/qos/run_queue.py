"""Who runs now, who waits, and who has to make way: the scheduling policy.

A state machine without clock, thread or event loop: the time is an argument, what is to
be done is returned, and the caller does it. Production and simulation share it.

Lane time is shared by weight between users, and inside a user between clients: a
priority counts among the work of one client only, so that no client can take a lane
from another by asking for more. What a job has had is the processor time of its lane,
where that is known: a busy machine is not its doing.

1. Of the users that wait, the one that has had least of the lanes by weight is next; of
   its clients likewise: see `Shares`. While others wait, that is decided anew at
   the first boundary after each time slice.
2. A client that was away, and has not had more than its share, takes a lane from
   another one at the next boundary, whatever the priorities of both.
3. Inside a client, a higher `Priority` runs before a lower one and takes its lane from
   it at the next boundary. A starved priority gets a slice first: see `Policy`.
4. Inside a priority of a client, what has begun is resumed first, the rest goes by
   deadline: see `ReadyQueue`.
5. What would miss its deadline if it began now is not begun.
"""

from collections import deque
from itertools import chain
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Priority
from asyncnn.qos.ready_queue import ReadyQueue
from asyncnn.qos.virtual_time import Shares
from asyncnn.qos.work import Client, ClientAccount, Job, JobState, User, UserAccount

_MS = 1_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How fair lanes are to clients, and how strict priorities inside a client.

    While others wait, a client keeps a lane until the first boundary after
    ``slice_ns``, then the one that has had least goes on. A client that was away gets a
    lane at the next boundary, and may be that much of lane time ahead of the others.

    A priority of a client is starved when its work waits and none of it has run for
    ``starvation_limit_ns``. It runs before higher ones of that client then, until the
    first boundary after ``starved_slice_ns``. So while its client has a lane to itself,
    it gets at least one operation in every ``starvation_limit_ns``, and a share of
    ``starved_slice_ns / (starved_slice_ns + starvation_limit_ns)`` if its operations
    are short.

    ``horizon_ns`` is how far deadlines count. Work without a deadline, or with a later
    one, is ordered as if it were due that long after its arrival, so that nothing is
    overtaken for longer.

    :raises InvalidArgumentError: if a duration is negative, or there are no slices.
    """

    slice_ns: int = 2 * _MS
    starvation_limit_ns: int = 50 * _MS
    starved_slice_ns: int = 1 * _MS
    horizon_ns: int = 2000 * _MS

    def __post_init__(self) -> None:
        if min(self.starvation_limit_ns, self.starved_slice_ns, self.horizon_ns) < 0:
            raise InvalidArgumentError("a duration of Policy is negative")
        if self.slice_ns < 1:
            raise InvalidArgumentError("slice_ns of Policy must be positive")


IDLE_LANE_SHARE = 4
"""Lane time without processor time counts one such part of it.

On a busy machine a lane waits for a processor, which is not its client's doing; but a
client whose work waits for something else must not have lanes for nothing.
"""

JobT = TypeVar("JobT", bound=Job)

_DESCENDING = tuple(int(priority) for priority in reversed(Priority))


class RunQueue(Generic[JobT]):
    """Assigns jobs to so many ``lanes``. Not thread-safe.

    A job is added, taken by a free lane, and given back or ended by that lane. One that
    is not running can be discarded. ``missed`` collects the jobs that `take` dropped
    because of their deadlines, for the caller to remove.
    """

    def __init__(self, policy: Policy, lanes: int = 1) -> None:
        self._policy = policy
        self._lanes = lanes
        self._queues = tuple(ReadyQueue[JobT]() for _ in Priority)
        self._running: list[JobT] = []
        self._left: list[JobT] = []
        self._waiting = 0
        self._users: WeakKeyDictionary[User, UserAccount] = WeakKeyDictionary()
        self._accounts: WeakKeyDictionary[Client, ClientAccount] = WeakKeyDictionary()
        self._active: Shares[UserAccount] = Shares(policy.slice_ns)
        # The latest client's: a weak look-up costs as much as the rest of `add`.
        self._latest_number = 0
        self._latest: ClientAccount | None = None
        self.missed: deque[JobT] = deque()

    def __repr__(self) -> str:
        waiting = ", ".join(f"{p.name} {len(self._queues[p])}" for p in Priority)
        return f"RunQueue(running {len(self._running)} of {self._lanes}; {waiting})"

    @property
    def running(self) -> tuple[JobT, ...]:
        """The jobs that have a lane."""
        return tuple(self._running)

    @property
    def most_lanes(self) -> int:
        """Number of lanes there may be now, with those that `leave` is about."""
        return self._lanes + min(len(self._left), self._lanes)

    @property
    def waiting(self) -> int:
        """Number of jobs that have no lane."""
        return self._waiting

    def clients(self) -> list[Client]:
        """Return the clients that have an account."""
        # In one step: other threads add accounts meanwhile.
        references = self._accounts.keyrefs()
        return [each for each in (found() for found in references) if each is not None]

    def account(self, client: Client) -> ClientAccount:
        """Return the account of ``client``, which lives as long as the client."""
        account = self._accounts.get(client)
        if account is None:
            user = self._users.get(client.user)
            if user is None:
                made = UserAccount(client.user.weight, self._policy.slice_ns)
                # In one step: another thread may have made one meanwhile.
                user = self._users.setdefault(client.user, made)
            mine = ClientAccount(client.weight, user)
            account = self._accounts.setdefault(client, mine)
        return account

    def add(self, job: JobT, now_ns: int) -> JobT | None:
        """Let ``job`` wait; return the running job that must stop for it, if any does.

        One that is returned stops at its next boundary and is given back.
        """
        account = self._accept(job, now_ns)
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
        most = self.most_lanes - len(self._left) if self._left else self._lanes
        if len(self._running) < most:
            return None
        to_stop = self._own_to_stop(account, priority, is_first, now_ns)
        if to_stop is None and not was_waiting:
            to_stop = self._other_to_stop(account, now_ns)
        if to_stop is not None:
            to_stop.is_stopping = True
        return to_stop

    def start(self, job: JobT, now_ns: int) -> None:
        """Give ``job`` a free lane at once, as `add` and `take` would: none waits."""
        account = self._accept(job, now_ns)
        account.served_ns[job.priority] = now_ns
        self._start(job, False, False, now_ns)

    def take(self, now_ns: int) -> JobT | None:
        """Give a free lane the job to run now, None if there is none.

        If its ``review_ns`` is not None, the job has to be given back at its first
        boundary from then on, since another one may have to run.
        """
        for job in self._left:
            self._charge(job, now_ns)
        while self._waiting:
            account = self._latest
            # If all that waits is that client's, there is nothing to compare.
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

    def give_back(self, job: JobT, now_ns: int, used_ns: int | None = None) -> None:
        """Let a running job that has stopped at a boundary wait for its resumption.

        For ``used_ns`` see `end`.
        """
        self._stop(job, now_ns, used_ns)
        self._queues[job.priority].suspend(job)
        self._count_waiting(job.account, job.priority, 1)

    def end(self, job: JobT, now_ns: int, used_ns: int | None = None) -> None:
        """Forget a running job that has come to its end.

        ``used_ns`` is the processor time that it has had since it was taken; None
        stands for all the time since then.
        """
        # Charged before it leaves: a client that goes must not take lane time along.
        self._stop(job, now_ns, used_ns)
        job.state = JobState.OUTSIDE
        self._leave(job.account)

    def leave(self, job: JobT) -> bool:
        """Let a running job go on to its end on a lane beside the others; or False.

        Nobody waits for it, but it counts for its client as before. Beyond as many of
        these as there are lanes, they take the places of others.
        """
        if job.state is not JobState.RUNNING:
            return False
        self._running.remove(job)
        self._left.append(job)
        return True

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

    def _accept(self, job: JobT, now_ns: int) -> ClientAccount:
        """Count ``job`` among those of its client; return the client's account."""
        client = job.client
        account = self._latest
        if account is None or client.number != self._latest_number:
            account = self._latest = self.account(client)
            self._latest_number = client.number
        job.account = account
        job.added_ns = now_ns
        job.due_ns = now_ns + self._policy.horizon_ns
        if job.deadline_ns is not None and job.deadline_ns < job.due_ns:
            job.due_ns = job.deadline_ns
        if account.pending == 0:
            self._enter(account, now_ns)
        account.pending += 1
        return account

    def _count_waiting(self, account: ClientAccount, priority: int, more: int) -> None:
        account.waiting_at[priority] += more
        account.waiting += more
        account.user.waiting += more
        self._waiting += more

    def _is_dropped(self, job: JobT, now_ns: int) -> bool:
        """Let ``job`` go as missed if it cannot end in time; what has begun may try."""
        if job.state is JobState.SUSPENDED or not job.cannot_meet_deadline(now_ns):
            return False
        job.state = JobState.OUTSIDE
        self._leave(job.account)
        self.missed.append(job)
        return True

    def _start(
        self, job: JobT, was_starved: bool, has_lower: bool, now_ns: int
    ) -> None:
        self._running.append(job)
        account = job.account
        job.state = JobState.RUNNING
        job.resumed_ns = job.charged_ns = now_ns
        job.is_stopping = False
        job.was_starved = was_starved
        review_ns = None
        if was_starved:
            review_ns = now_ns + self._policy.starved_slice_ns
        elif has_lower:
            review_ns = self._next_starvation_ns(account, job.priority)
        if self._waiting > account.waiting:
            slice_ends_ns = now_ns + self._policy.slice_ns
            if review_ns is None or slice_ends_ns < review_ns:
                review_ns = slice_ends_ns
        job.review_ns = review_ns

    def _stop(self, job: JobT, now_ns: int, used_ns: int | None) -> None:
        (self._left if job in self._left else self._running).remove(job)
        job.account.served_ns[job.priority] = now_ns
        owed_ns = now_ns - job.charged_ns
        if used_ns is not None:
            lane_ns = now_ns - job.resumed_ns
            least_ns = lane_ns // IDLE_LANE_SHARE
            # What was charged until now was an estimate.
            owed_ns += (used_ns if used_ns > least_ns else least_ns) - lane_ns
        _pay(job, owed_ns)

    def _charge(self, job: JobT, now_ns: int) -> None:
        """Count what a running job has had of its lane since it was last charged."""
        lane_ns = now_ns - job.charged_ns
        job.charged_ns = now_ns
        _pay(job, lane_ns)

    def _aging(self, account: ClientAccount, below: int) -> list[int]:
        """Return the priorities under ``below`` that wait and of which no job runs."""
        running = {job.priority for job in self._running if job.account is account}
        waiting_at = account.waiting_at
        return [p for p in range(below) if waiting_at[p] and p not in running]

    def _starved_below(
        self, account: ClientAccount, top: int, now_ns: int
    ) -> int | None:
        """Return the priority that has waited for longest, if it is starved."""
        aging = self._aging(account, top)
        if not aging:
            return None
        served_ns = account.served_ns
        priority = min(aging, key=served_ns.__getitem__)
        is_starved = now_ns - served_ns[priority] >= self._policy.starvation_limit_ns
        return priority if is_starved else None

    def _next_starvation_ns(self, account: ClientAccount, priority: int) -> int | None:
        """Return when the next priority below this one will be starved."""
        aging = self._aging(account, priority)
        if not aging:
            return None
        return (
            min(account.served_ns[p] for p in aging) + self._policy.starvation_limit_ns
        )

    def _own_to_stop(
        self, account: ClientAccount, priority: int, is_first: bool, now_ns: int
    ) -> JobT | None:
        """Return the job of a client that has to stop for what the client has added.

        Either that one goes before it, or it has no time yet at which it is reviewed.
        """
        chosen = None
        for job in self._running:
            if job.account is not account or job.is_stopping:
                continue
            makes_way = job.priority < priority and not self._is_in_starved_slice(
                job, now_ns
            )
            needs_review = job.priority > priority and job.review_ns is None
            if (makes_way or (is_first and needs_review)) and (
                chosen is None or job.priority < chosen.priority
            ):
                chosen = job
        return chosen

    def _other_to_stop(self, account: ClientAccount, now_ns: int) -> JobT | None:
        """Return the job that has to stop for a client that did not wait before.

        Either its client has had no less than that one, most of all, or it is not
        reviewed at the end of a time slice yet.
        """
        # Charged until now, or a job that began long ago would seem to be behind.
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

    def _is_in_starved_slice(self, job: JobT, now_ns: int) -> bool:
        return (
            job.was_starved and now_ns < job.resumed_ns + self._policy.starved_slice_ns
        )

    def _enter(self, account: ClientAccount, now_ns: int) -> None:
        """Let a client compete that has work again."""
        # First: virtual time advances to the least share, as `Shares.enter` finds it.
        for job in chain(self._running, self._left):
            self._charge(job, now_ns)
        user = account.user
        if not user.clients.active:
            self._active.enter(user)
        user.clients.enter(account)

    def _leave(self, account: ClientAccount) -> None:
        account.pending -= 1
        if account.pending == 0:
            user = account.user
            user.clients.leave(account)
            if not user.clients.active:
                self._active.leave(user)


def _pay(job: Job, lane_ns: int) -> None:
    cost_ns, account = lane_ns * job.cost, job.account
    account.virtual_ns += cost_ns / account.weight
    user = account.user
    user.virtual_ns += cost_ns / user.weight
