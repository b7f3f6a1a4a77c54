"""Which waiting jobs run as one batch: what would have been next anyway, and no other.

A lane that becomes free takes the job whose turn it is. Of those whose turns come next,
as many as are alike go with it. What finds an idle lane runs at once, alone: nothing
ever waits for others to come. So with costs as they were measured,

1. whoever is no member begins no later than if the members had run one by one: these
   would all have had their turns before, and a batch takes no longer than they do;
2. each member's deadline lies behind the end of the batch;
3. no batch takes longer than a time slice, which is what others wait for anyway.

Only a job of another client that has no deadline is passed over, for one batch. A job
of higher priority never is: its client has no member then.
"""

import heapq
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.virtual_time import Share
from asyncnn.qos.work import (
    CARRIED,
    LEADING,
    RUNNING,
    WAITING,
    ClientAccount,
    IBatching,
    JobT,
    UserAccount,
)

_First: TypeAlias = tuple[int, int, Any]
"""A waiting job as of `ReadyQueue.first`."""


def gathered(queue: RunQueue[JobT], leader: JobT, now_ns: int) -> JobT:
    """Return a batch that runs in place of ``leader`` and others; itself if of none.

    ``leader`` has just been taken by a lane.
    """
    batching: IBatching[JobT] | None = leader.batching()
    sizes = () if batching is None else batching.sizes(queue.policy.slice_ns)
    if batching is None or not sizes:
        return leader
    taken = _following(queue, leader, batching, sizes[-1] - 1, now_ns)
    members = [leader, *(first[-1] for first in taken)]
    size = _largest(sizes, batching, members, now_ns)
    batch: JobT | None = None
    with suppress(MemoryError):
        batch = batching.batch(members[:size]) if size else None
    for first in taken if batch is None else taken[size - 1 :]:
        first[-1].account.ready[first[-1].priority].put_back(first)
    if batch is None:
        return leader
    for member in members[1:size]:
        account = member.account
        account.waiting -= 1
        account.user.waiting -= 1
        queue.waiting -= 1
    _carry(queue, batch, now_ns)
    return batch


def _carry(queue: RunQueue[Any], batch: Any, now_ns: int) -> None:
    """Have a batch run in place of its members, of which the first has a lane."""
    leader = batch.members[0]
    batch.account, batch.added_ns, batch.state = leader.account, now_ns, RUNNING
    batch.resumed_ns = batch.charged_ns = now_ns
    batch.review_ns, batch.was_starved = leader.review_ns, leader.was_starved
    queue._running[queue._running.index(leader)] = batch
    for member in batch.members:
        member.state, member.batch = CARRIED, batch
        member.account.served_ns[batch.priority] = now_ns
    leader.state = LEADING


def _largest(
    sizes: Sequence[int], batching: IBatching[Any], members: Sequence[Any], now_ns: int
) -> int:
    """Return the largest size whose members all meet their deadlines; 0 if none."""
    for size in reversed(sizes):
        if size <= len(members):
            ends_ns = now_ns + batching.cost_ns(size)
            due = (member.deadline_ns for member in members[:size])
            if all(each is None or ends_ns <= each for each in due):
                return size
    return 0


class _Turns:
    """Whose turn comes next, if each takes as long as a job that runs by itself.

    As `RunQueue.take` decides that, without a change: ``has_one`` has a lane already.
    """

    def __init__(
        self, queue: RunQueue[Any], has_one: ClientAccount[Any], each_ns: float
    ) -> None:
        self._each_ns = each_ns
        # Users and clients in the order of arrival where they are level, as there.
        self._users: list[tuple[float, int, UserAccount[Any]]] = []
        self._clients: dict[int, list[tuple[float, int, ClientAccount[Any]]]] = {}
        for number, user in enumerate(queue._active.active):
            clients = [
                (self._charged(account, account is has_one), place, account)
                for place, account in enumerate(user.clients.active)
                if account.waiting
            ]
            heapq.heapify(clients)
            if clients:
                charged_ns = self._charged(user, user is has_one.user)
                self._users.append((charged_ns, number, user))
                self._clients[number] = clients
        heapq.heapify(self._users)

    def _charged(self, share: Share, has_one: bool) -> float:
        return share.virtual_ns + (self._each_ns / share.weight if has_one else 0.0)

    def next(self) -> ClientAccount[Any] | None:
        """Return whose turn it is; None if nobody's."""
        return self._clients[self._users[0][1]][0][-1] if self._users else None

    def take(self) -> None:
        """Give that one its turn."""
        virtual_ns, number, user = self._users[0]
        clients = self._clients[number]
        own_ns, place, account = clients[0]
        charged_ns = own_ns + self._each_ns / account.weight
        heapq.heapreplace(clients, (charged_ns, place, account))
        charged_ns = virtual_ns + self._each_ns / user.weight
        heapq.heapreplace(self._users, (charged_ns, number, user))

    def pass_over(self) -> None:
        """Give that one no turn any more."""
        clients = self._clients[self._users[0][1]]
        heapq.heappop(clients)
        if not clients:
            heapq.heappop(self._users)


def _following(
    queue: RunQueue[Any], leader: Any, batching: IBatching[Any], most: int, now_ns: int
) -> list[_First]:
    """Remove from those that wait the next ones that go with ``leader``."""
    taken: list[_First] = []
    turns = _Turns(queue, leader.account, batching.cost_ns(1) * leader.cost)
    while len(taken) < most and (account := turns.next()) is not None:
        first = _next_of(queue, account, now_ns)
        if first is None:
            turns.pass_over()
            continue
        job = first[-1]
        is_alike = job.goes_in_batches and job.priority == leader.priority
        if is_alike and job.state is WAITING and job.batching() is batching:
            account.ready[job.priority].pop()
            taken.append(first)
            turns.take()
        elif job.deadline_ns is None and account is not leader.account:
            turns.pass_over()
        else:
            break
    return taken


def _next_of(
    queue: RunQueue[Any], account: ClientAccount[Any], now_ns: int
) -> _First | None:
    """Return the job that a client would be given a lane for; None if none is left."""
    ready = account.ready
    waiting = [priority for priority, each in enumerate(ready) if each.length]
    if not waiting:
        return None
    top = waiting[-1]
    if len(waiting) > 1:
        soon_ns = now_ns + queue.policy.slice_ns
        lower = queue._next_starved(account, top)
        if lower is not None and lower[0] <= soon_ns:
            top = lower[1]
    return ready[top].first()
