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
5. What would miss its deadline if it began now is not begun, nor admitted; nor is what
   exceeds a bound on what pends.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from sys import maxsize
from typing import Generic
from weakref import WeakKeyDictionary

from asyncnn.hal.errors import ResourceExhaustedTransientError, too_many
from asyncnn.hal.types import Priority
from asyncnn.qos.virtual_time import Policy, Shares
from asyncnn.qos.work import (
    CARRIED,
    LEADING,
    OUTSIDE,
    RUNNING,
    SUSPENDED,
    WAITING,
    Client,
    ClientAccount,
    JobT,
    User,
    UserAccount,
    charge_members,
    has_member_of,
)

IDLE_LANE_SHARE = 4
"""Lane time without processor time counts one such part of it.

On a busy machine a lane waits for a processor, which is not its client's doing; but a
client whose work waits for something else must not have lanes for nothing.
"""

_DESCENDING = tuple(int(priority) for priority in reversed(Priority))


class RunQueue(Generic[JobT]):
    """Assigns jobs to so many ``lanes``. Not thread-safe.

    A job is added, taken by a free lane, and given back or ended by that lane. One that
    is not running can be discarded. ``missed`` collects the jobs that `take` dropped
    because of their deadlines, for the caller to remove.

    ``pending`` jobs, at most ``max_pending``, wait or have a lane, ``waiting`` of them
    have none. Those ``aside`` have one beside the others. There is ``room`` for more on
    free lanes. ``filled_or_freed`` is called when the last place is taken, and when it
    is free again.
    """

    def __init__(
        self,
        policy: Policy,
        lanes: int = 1,
        max_pending: int = maxsize,
        filled_or_freed: Callable[[], object] = lambda: None,
    ) -> None:
        self.policy = policy
        self._lanes = lanes
        self._max_pending = max_pending
        self._last_place = max_pending - 1
        self._filled_or_freed = filled_or_freed
        self._running: list[JobT] = []
        self.aside: list[JobT] = []
        self._users: WeakKeyDictionary[User, UserAccount[JobT]] = WeakKeyDictionary()
        self._accounts: dict[int, ClientAccount[JobT]] = {}
        self._active: Shares[UserAccount[JobT]] = Shares(policy.slice_ns)
        # Whose job was the last of all: it has its place until somebody else comes.
        self._resting: ClientAccount[JobT] | None = None
        self.room = lanes
        self.pending = 0
        self.waiting = 0
        self.missed: deque[JobT] = deque()

    def __repr__(self) -> str:
        running = f"running {len(self._running)} of {self._lanes}"
        return f"RunQueue({running}; {self.waiting} wait)"

    @property
    def running(self) -> tuple[JobT, ...]:
        """The jobs that have a lane."""
        return tuple(self._running)

    @property
    def most_lanes(self) -> int:
        """Number of lanes there may be now, one more for each job set aside."""
        return self._lanes + min(len(self.aside), self._lanes)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is admitted."""
        return self.pending >= self._max_pending

    def clients(self) -> list[Client]:
        """Return the clients that have an account."""
        # In one step: other threads add accounts meanwhile.
        accounts = list(self._accounts.values())
        return [c for c in (account.client() for account in accounts) if c is not None]

    def account(self, client: Client) -> ClientAccount[JobT]:
        """Return the account of ``client``, which lives as long as the client."""
        account = self._accounts.get(client.number)
        if account is None:
            made = UserAccount[JobT](client.user.weight, self.policy.slice_ns)
            # In one step: another thread may have made one meanwhile.
            user = self._users.setdefault(client.user, made)
            forget = partial(self._accounts.pop, client.number)
            mine = ClientAccount(client, user, forget)
            account = self._accounts.setdefault(client.number, mine)
        return account

    def add(self, job: JobT, now_ns: int, *, begins: bool = False) -> JobT | None:
        """Let ``job`` wait; return the running job that must stop for it, if any does.

        One that is returned stops at its next boundary and is given back. A job that
        ``begins`` is RUNNING at once, if there is a free lane that nothing waits for.

        :raises ResourceExhaustedTransientError: if as much is pending as may, of its
            client, of its user or in all.
        :raises MissedDeadlinePersistentError: if its deadline has passed already, or
            would have when it could end at the earliest.
        """
        if job.deadline_ns is not None:
            job.check_deadline(now_ns)
        pending, client = self.pending, job.client
        if pending >= self._max_pending:
            raise _exhausted("", "DeviceSettings.max_pending", pending)
        account = self._accounts.get(client.number) or self.account(client)
        most = client.max_pending
        if most is not None and account.pending >= most:
            raise _exhausted(f" of {client.name}", client.limit, most)
        most = client.user.max_pending
        if most is not None:
            competing = account.user.clients.active
            if sum([each.pending for each in competing]) >= most:
                raise _exhausted(f" of {client.user.name}", client.user.limit, most)
        job.account = account
        job.added_ns = now_ns
        if not account.pending:
            if account is not self._resting:
                self._enter(account, now_ns)
            self._resting = None
        account.pending += 1
        self.pending = pending + 1
        if pending == self._last_place:
            self._filled_or_freed()
        if begins and self.room > 0 and not self.waiting:
            self.room -= 1
            job.state = RUNNING
            job.resumed_ns = job.charged_ns = now_ns
            self._running.append(job)  # last: an interrupt comes behind a call
            return None
        priority = job.priority
        was_waiting, is_first = account.waiting > 0, not account.ready[priority].length
        self.wait(job, now_ns)
        if self.room:
            return None
        to_stop = self._own_to_stop(account, priority, is_first, now_ns)
        if to_stop is None and not was_waiting:
            to_stop = self._other_to_stop(account, now_ns)
        if to_stop is not None:
            to_stop.is_stopping = True
        return to_stop

    def wait(self, job: JobT, now_ns: int) -> None:
        """Let a job wait that was added, or began but was given no lane."""
        if job.state is RUNNING:
            self._free_lane(job)
        account = job.account
        due_ns, deadline_ns = now_ns + self.policy.horizon_ns, job.deadline_ns
        job.due_ns = due_ns if deadline_ns is None else min(due_ns, deadline_ns)
        ready = account.ready[job.priority]
        if not ready.length:
            account.served_ns[job.priority] = now_ns
        ready.push(job)
        # No call: an interrupt comes as one begins, and would leave it uncounted.
        account.waiting += 1
        account.user.waiting += 1
        self.waiting += 1

    def take(self, now_ns: int) -> JobT | None:
        """Give a free lane the job to run now, None if there is none.

        If its ``review_ns`` is not None, the job has to be given back at its first
        boundary from then on, since another one may have to run.
        """
        for job in self.aside:
            self._charge(job, now_ns)
        while self.waiting:
            # Most often there is nothing to compare.
            users = self._active.active
            user = users[0] if len(users) == 1 else self._active.next()
            clients = user.clients.active
            account = clients[0] if len(clients) == 1 else user.clients.next()
            ready = account.ready
            for top in _DESCENDING:
                if ready[top].length:
                    break
            # Most often nothing lower waits, and no time needs to be looked at.
            has_lower = account.waiting > ready[top].length
            lower = self._next_starved(account, top) if has_lower else None
            is_starved = lower is not None and lower[0] <= now_ns
            job = ready[lower[1] if lower is not None and is_starved else top].pop()
            account.waiting -= 1
            user.waiting -= 1
            self.waiting -= 1
            if (
                job.deadline_ns is not None
                and job.state is WAITING  # what has begun may try
                and job.cannot_meet_deadline(now_ns)
            ):
                self.end(job, now_ns)
                self.missed.append(job)
                continue
            self.room -= 1
            job.state = RUNNING
            job.resumed_ns = job.charged_ns = now_ns
            job.is_stopping = job.was_starved = False
            job.review_ns = None
            if is_starved:
                job.was_starved = True
                job.review_ns = now_ns + self.policy.starved_slice_ns
            elif lower is not None:
                job.review_ns, _ = lower
            if self.waiting > account.waiting:
                slice_ends_ns = now_ns + self.policy.slice_ns
                if job.review_ns is None or slice_ends_ns < job.review_ns:
                    job.review_ns = slice_ends_ns
            self._running.append(job)  # last: see `add`
            return job
        return None

    def give_back(self, job: JobT, now_ns: int, used_ns: int | None = None) -> None:
        """Let a running job that has stopped at a boundary wait for its resumption.

        For ``used_ns`` see `end`.
        """
        self.end(job, now_ns, used_ns, goes_on=True)

    def end(
        self, job: JobT, now_ns: int, used_ns: int | None = None, goes_on: bool = False
    ) -> None:
        """Forget a running job that has come to its end, or one taken from the others.

        ``used_ns`` is the processor time that it has had since it was taken; None
        stands for all the time since then. One that ``goes_on`` later waits for that.
        """
        account = job.account
        if job.state is RUNNING:
            # Charged before it leaves: who goes must not take lane time along.
            owed_ns = now_ns - job.charged_ns
            if used_ns is not None:
                lane_ns = now_ns - job.resumed_ns
                least_ns = lane_ns // IDLE_LANE_SHARE
                owed_ns += (used_ns if used_ns > least_ns else least_ns) - lane_ns
            cost_ns, user = owed_ns * job.cost, account.user
            if job.members:
                charge_members(job, cost_ns)
            else:
                account.virtual_ns += cost_ns / account.weight
                user.virtual_ns += cost_ns / user.weight
            account.served_ns[job.priority] = now_ns
            if self.aside:
                self._free_lane(job)
            else:
                self.room += 1
                self._running.remove(job)  # last, and no call below: see `drop`
        if goes_on:
            account.ready[job.priority].suspend(job)
            account.waiting += 1  # no call: see `wait`
            account.user.waiting += 1
            self.waiting += 1
            return
        for member in job.members:
            member.batch = None
            if member.state is CARRIED:
                self.end(member, now_ns)
            elif member.state is LEADING:
                member.state = OUTSIDE
        job.state = OUTSIDE
        account.pending -= 1
        self.pending = pending = self.pending - 1
        if not account.pending:
            user = account.user
            # It would be put back to where it is, if it has had no less than that.
            is_behind = (
                account.virtual_ns < user.clients.virtual_ns
                or user.virtual_ns < self._active.virtual_ns
            )
            if pending or is_behind:
                self._leave(account)
            else:
                self._resting = account
        if pending == self._last_place:
            self._filled_or_freed()

    def drop(self, job: JobT, now_ns: int) -> None:
        """End a running job, also where an interrupt came behind a call of `end`."""
        if job not in self._running and job not in self.aside:
            job.state = SUSPENDED  # it has left its lane
        self.end(job, now_ns, 0)

    def set_aside(self, job: JobT) -> bool:
        """Let a running job go on to its end on a lane beside the others; or False.

        Nobody waits for it, but it counts for its client as before. Beyond as many of
        these as there are lanes, they take the places of others.
        """
        if job not in self._running:
            return False
        self._running.remove(job)
        self.aside.append(job)
        self.room = self.most_lanes - len(self.aside) - len(self._running)
        return True

    def resettle(self, job: JobT) -> bool:
        """Let a job that was set aside have a lane as before; False if others want it.

        Those are of other clients, or of a higher priority.
        """
        account, above = job.account, job.account.ready[job.priority + 1 :]
        others = self.waiting - account.waiting + sum(ready.length for ready in above)
        if self.room < 1 or others:
            return False
        self.aside.remove(job)
        self._running.append(job)
        job.is_stopping = False
        self.room = self.most_lanes - len(self.aside) - len(self._running)
        return True

    def has_rivals(self, job: JobT) -> bool:
        """Return whether another client has work."""
        users = self._active.active
        return len(users) > 1 or len(job.account.user.clients.active) > 1

    def discard(self, job: JobT) -> bool:
        """Forget a job that waits or is suspended; False if it does not wait here.

        One that is carried leaves its batch.
        """
        if job.state in (CARRIED, LEADING):
            job.batch = None
            if job.state is LEADING:
                job.state = OUTSIDE
            else:
                self.end(job, 0)
            return True
        if job.state not in (WAITING, SUSPENDED):
            return False
        account = job.account
        account.ready[job.priority].discard(job)
        account.waiting -= 1  # no call: see `wait`
        account.user.waiting -= 1
        self.waiting -= 1
        self.end(job, 0)
        return True

    def clear(self) -> list[JobT]:
        """Forget all jobs that wait or are suspended, and return them."""
        accounts = [
            each for user in self._active.active for each in user.clients.active
        ]
        jobs = [job for each in accounts for ready in each.ready for job in ready]
        for job in jobs:
            self.discard(job)
        return jobs

    def _free_lane(self, job: JobT) -> None:
        (self.aside if job in self.aside else self._running).remove(job)
        self.room = self.most_lanes - len(self.aside) - len(self._running)

    def _charge(self, job: JobT, now_ns: int) -> None:
        """Count what a job has had of its lane since it was last charged, by weight."""
        cost_ns, account = (now_ns - job.charged_ns) * job.cost, job.account
        job.charged_ns, user = now_ns, account.user
        if job.members:
            charge_members(job, cost_ns)
            return
        account.virtual_ns += cost_ns / account.weight
        user.virtual_ns += cost_ns / user.weight

    def _enter(self, account: ClientAccount[JobT], now_ns: int) -> None:
        """Let a client compete that has work again."""
        if self._resting is not None:
            self._leave(self._resting)
        # First: virtual time advances to the least share, as `Shares.enter` finds it.
        for job in chain(self._running, self.aside):
            self._charge(job, now_ns)
        user = account.user
        if not user.clients.active:
            self._active.enter(user)
        user.clients.enter(account)

    def _leave(self, account: ClientAccount[JobT]) -> None:
        """Let a client compete no more that has no work left."""
        user = account.user
        user.clients.leave(account)
        if not user.clients.active:
            self._active.leave(user)

    def _next_starved(
        self, account: ClientAccount[JobT], below: int
    ) -> tuple[int, int] | None:
        """Return when the next priority under ``below`` is starved, and which that is.

        One of which a job runs is not.
        """
        running = {job.priority for job in self._running if job.account is account}
        limit_ns, served_ns = self.policy.starvation_limit_ns, account.served_ns
        times = [
            (served_ns[priority] + limit_ns, priority)
            for priority in range(below)
            if account.ready[priority].length and priority not in running
        ]
        return min(times, default=None)

    def _own_to_stop(
        self, account: ClientAccount[JobT], priority: int, is_first: bool, now_ns: int
    ) -> JobT | None:
        """Return the job of a client that has to stop for what the client has added.

        Either that one goes before it, or it has no time yet at which it is reviewed.
        """
        chosen = None
        for job in self._running:
            if job.is_stopping or (
                job.account is not account
                and not (job.members and has_member_of(job, account))
            ):
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

    def _other_to_stop(self, account: ClientAccount[JobT], now_ns: int) -> JobT | None:
        """Return the job that has to stop for a client that did not wait before.

        Either its client has had no less than that one, most of all, or it is not
        reviewed at the end of a time slice yet.
        """
        # Charged until now, or a job that began long ago would seem to be behind.
        chosen, most_ahead = None, -1.0
        slice_ends_ns = now_ns + self.policy.slice_ns
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
            job.was_starved and now_ns < job.resumed_ns + self.policy.starved_slice_ns
        )


def _exhausted(whose: str, limit: str, most: int) -> ResourceExhaustedTransientError:
    return too_many(
        f"pending calls{whose}", limit, most, hint="await some of them first"
    )
