"""What the scheduler schedules."""

import heapq
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import count
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import ref

from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    failure_of,
    shortage_of,
)
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.pacing import Pause
from asyncnn.qos.accounting import WorkAccounting
from asyncnn.qos.virtual_time import Share, Shares

_numbers = count(1)


class _Competitor:
    """What users and clients have in common: a weight, and a bound on what pends."""

    def __init__(
        self,
        name: str,
        *,
        weight: float = 1.0,
        max_pending: int | None = None,
        limit: str = "",
    ) -> None:
        kind = type(self).__name__.lower()
        if not 0 < weight < float("inf"):
            raise InvalidArgumentError(f"the weight of a {kind} must be positive")
        if max_pending is not None and max_pending < 0:
            raise InvalidArgumentError(f"max_pending of a {kind} is negative")
        self.name = name
        self.weight = weight
        self.max_pending = max_pending
        self.limit = limit or f"{type(self).__name__}.max_pending"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, weight={self.weight:g})"


class User(_Competitor):
    """Clients that share what is theirs in common; two users of one name are two.

    Users that compete get lane time in proportion to ``weight``, however many clients
    each of them has. ``max_pending`` bounds what waits or runs of all of these on one
    scheduler, if it is not None; errors call this bound ``limit``. A driver has a user
    for each uid.

    :raises InvalidArgumentError: if the weight is not positive, or the bound negative.
    """


OWN_USER = User("own")
"""Of clients that were not given another one."""


class Client(_Competitor):
    """An identity with a share of the lanes; two clients of one name are two.

    ``number`` is unique among all clients that there ever are in this process.
    Clients of one ``user`` that compete get lane time in proportion to ``weight``.
    ``max_pending`` bounds what waits or runs of each on one scheduler; None leaves it
    to the bound of the scheduler. Errors call this bound ``limit``.

    :raises InvalidArgumentError: if the weight is not positive, or the bound negative.
    """

    def __init__(
        self,
        name: str,
        *,
        weight: float = 1.0,
        max_pending: int | None = None,
        limit: str = "",
        user: User = OWN_USER,
    ) -> None:
        super().__init__(name, weight=weight, max_pending=max_pending, limit=limit)
        self.number = next(_numbers)
        self.user = user


LOCAL = Client("local")
"""The application that opened the device in its own process."""

calling_client: ContextVar[Client] = ContextVar("calling_client", default=LOCAL)
"""Whose call is being served: the counterpart of the calling uid of HIDL's binder.

A session sets it for its task; work takes it over when it is made.
"""


@contextmanager
def acting_for(client: Client) -> Iterator[None]:
    """Attribute the work of calls inside the block to ``client``."""
    token = calling_client.set(client)
    try:
        yield
    finally:
        calling_client.reset(token)


class JobState(Enum):
    """Where a job stands in its `RunQueue`, which alone moves it on.

    It is RUNNING when a lane takes it, at once if one is free, else WAITING before. It
    is SUSPENDED when it was given back until a lane takes it again, and OUTSIDE when it
    has ended or was discarded, as before it was added. It is CARRIED while a batch that
    it is a member of runs or is suspended in its place, the first member LEADING: the
    batch is pending for it, even if it leaves.
    """

    OUTSIDE = "outside"
    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CARRIED = "carried"
    LEADING = "leading"


# Kept by name, since looking up a member of an enum takes as long as a call.
OUTSIDE, WAITING, RUNNING, SUSPENDED, CARRIED, LEADING = JobState


class QueueEntry:
    """A piece of work as the `RunQueue` sees it.

    ``deadline_ns`` is an absolute time of the steady clock, None if there is none.
    ``min_runtime_ns`` is what it takes at least, 0 if unknown: it is not begun when
    that would end after the deadline. Lane time of a job counts ``cost`` times in the
    share of its client. ``preemptions`` counts how often it made way for
    another one after it had begun. One with ``members`` is their batch, and runs in
    place of them; one that ``goes_in_batches`` may be a member, of ``batch`` while that
    has its place. The rest is the run queue's.
    """

    goes_in_batches: ClassVar[bool] = False
    members: "Sequence[Any]" = ()
    batch: Any = None
    account: "ClientAccount[Any]"
    added_ns: int
    charged_ns: int
    due_ns: int
    resumed_ns: int
    cost = 1.0
    min_runtime_ns = 0
    preemptions = 0
    state = OUTSIDE
    is_stopping = was_starved = False
    review_ns: int | None = None

    def __init__(
        self,
        priority: Priority,
        deadline_ns: int | None = None,
        client: Client = LOCAL,
        min_runtime_ns: int = 0,
    ) -> None:
        self.priority = priority
        self.deadline_ns = deadline_ns
        self.client = client
        self.min_runtime_ns = min_runtime_ns

    def cannot_meet_deadline(self, now_ns: int) -> bool:
        """Return whether it would miss its deadline if it began at ``now_ns``."""
        deadline_ns = self.deadline_ns
        return deadline_ns is not None and now_ns + self.min_runtime_ns >= deadline_ns

    def batching(self) -> "IBatching[Any] | None":
        """Return what makes a batch of it and others of the same; None if it cannot."""
        return None

    def check_deadline(self, now_ns: int) -> None:
        """Raise `MissedDeadlinePersistentError` if it `cannot_meet_deadline`."""
        deadline_ns = self.deadline_ns
        if deadline_ns is None or not self.cannot_meet_deadline(now_ns):
            return
        if now_ns >= deadline_ns:
            raise MissedDeadlinePersistentError("the deadline has passed already")
        raise MissedDeadlinePersistentError(
            f"the deadline is in {format_duration((deadline_ns - now_ns) / 1000)}, "
            f"but it takes at least {format_duration(self.min_runtime_ns / 1000)}"
        )


JobT = TypeVar("JobT", bound=QueueEntry)


class IBatching(Protocol[JobT]):
    """What jobs have in common that can be members of one batch."""

    def sizes(self, most_ns: int) -> Sequence[int]:
        """Return the sizes of batches that pay and take ``most_ns``; ascending."""

    def cost_ns(self, size: int) -> int:
        """Return the nanoseconds that a batch of ``size`` takes at most, as measured.

        A ``size`` of 1 is a job that runs by itself, and what that mostly takes.
        """
        ...

    def batch(self, members: Sequence[JobT]) -> JobT:
        """Return a job that runs in place of ``members``, which have not begun."""
        ...


_FIRST = -1
"""Before all that is due at any time."""


class ReadyQueue(Generic[JobT]):
    """The order of a client's waiting jobs of one priority: ``length`` of them.

    What has begun is resumed before anything else begins, so that no more of these jobs
    hold memory than there are lanes. Of the others, the one that is due first is first,
    in the order of arrival if that is equal.

    Takes O(log n). What is discarded stays in the heap for a while: taking it out of
    the middle would cost O(n).
    """

    def __init__(self) -> None:
        self.length = 0
        self._heap: list[tuple[int, int, JobT]] = []
        self._arrivals = count()

    def push(self, job: JobT) -> None:
        """Add a job that has not begun; its ``due_ns`` is set."""
        heapq.heappush(self._heap, (job.due_ns, next(self._arrivals), job))
        job.state = WAITING
        self.length += 1

    def suspend(self, job: JobT) -> None:
        """Add a job that has begun."""
        heapq.heappush(self._heap, (_FIRST, next(self._arrivals), job))
        job.state = SUSPENDED
        self.length += 1

    def pop(self) -> JobT:
        """Remove and return the first job; there must be one."""
        job = heapq.heappop(self._heap)[-1]
        while job.state is OUTSIDE:
            job = heapq.heappop(self._heap)[-1]
        self.length -= 1
        # What was discarded may hold pools: none of it waits for other work to come.
        if not self.length:
            self._heap.clear()
        return job

    def first(self) -> tuple[int, int, JobT]:
        """Return when the first job is due, its arrival, and it; there must be one."""
        while self._heap[0][-1].state is OUTSIDE:
            heapq.heappop(self._heap)
        return self._heap[0]

    def put_back(self, first: tuple[int, int, JobT]) -> None:
        """Add what `first` has returned, and `pop` has removed, where it was."""
        heapq.heappush(self._heap, first)
        self.length += 1

    def discard(self, job: JobT) -> None:
        """Remove a job that is here."""
        job.state = OUTSIDE
        self.length -= 1
        if not self.length or len(self._heap) > 2 * self.length + 16:
            self._heap = [entry for entry in self._heap if entry[-1].state != OUTSIDE]
            heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[JobT]:
        return (job for *_, job in self._heap if job.state is not OUTSIDE)


class UserAccount(Share, Generic[JobT]):
    """A user's share, with the shares of its ``clients`` that have work."""

    def __init__(self, weight: float, credit_ns: int) -> None:
        super().__init__(weight)
        self.clients: Shares[ClientAccount[JobT]] = Shares(credit_ns)


class ClientAccount(Share, Generic[JobT]):
    """The share of a client, inside its ``user``'s; ``accounting`` counts ends.

    ``pending`` counts its jobs that wait, run or are suspended. By priority, ``ready``
    has those without a lane, and ``served_ns`` is when one of them last ran, or began
    to wait.
    """

    def __init__(
        self,
        client: Client,
        user: UserAccount[JobT],
        forget: Callable[[object], object] | None = None,
    ) -> None:
        super().__init__(client.weight)
        self.client = ref(client, forget)
        self.user = user
        self.pending = 0
        self.ready = tuple(ReadyQueue[JobT]() for _ in Priority)
        self.served_ns = [0 for _ in Priority]
        self.accounting = WorkAccounting()


def charge_members(batch: QueueEntry, cost_ns: float) -> None:
    """Charge the clients of all members, in equal parts."""
    part_ns = cost_ns / len(batch.members)
    for member in batch.members:
        account, user = member.account, member.account.user
        account.virtual_ns += part_ns / account.weight
        user.virtual_ns += part_ns / user.weight


def has_member_of(job: QueueEntry, account: ClientAccount[Any]) -> bool:
    """Return whether a job is a batch with a member of that client."""
    return any(member.account is account for member in job.members)


logger = logging.getLogger(__name__)


class Work(QueueEntry, ABC):
    """Something to run on a lane, that is finished exactly once: on the event loop.

    What was submitted by `Scheduler.submit_threadsafe` is finished where it ends.

    ``deadline_ns`` is an absolute time of ``time.monotonic_ns``; None is no deadline.
    ``min_runtime_ns`` is what it takes at least, 0 if unknown. It is done for the
    client on whose behalf it is made; ``accounting`` counts its end beside that of all
    other work.

    Its `JobState` goes from WAITING to RUNNING, back and forth to SUSPENDED, and ends
    OUTSIDE. It is finished once on that way: when its lane comes to its end, when it is
    discarded, or when it is left to its lane.

    Work with a ``decision``, a lock, takes that before it writes to what its client
    has; work that ``is_separable`` never writes there. So its abort is reported at once
    by who takes the lock first, see `decides`, whatever a lane still does with it. What
    was reported so ``is_left``, as is work whose lane is stuck. Another lane takes the
    place of the one that goes on with it, unless it ``keeps_its_lane``.

    Work that ``goes_native`` can be offered to a lane that has no interpreter. It
    ``is_held_up`` if a lane with a nice value had no processor for most of the time
    that it ran there last.

    Work that ``should_inline`` takes less time than handing it to a lane would; if it
    ``reports_early``, `finish` may be called before the call that brought it returns.
    Work that ``ends_anywhere`` was submitted by a thread of its own: `finish` is called
    where it ends. Work that ``is_alone`` is a member of no batch any more: one failed.
    """

    is_separable: ClassVar[bool] = False
    keeps_its_lane: ClassVar[bool] = False
    decision: "threading.Lock | None" = None
    pause: Pause
    is_left = is_withdrawn = is_held_up = False
    should_inline = goes_native = False
    reports_early = False
    ends_anywhere = is_alone = False

    def __init__(
        self,
        priority: Priority,
        deadline_ns: int | None = None,
        *,
        client: Client | None = None,
        min_runtime_ns: int = 0,
        accounting: WorkAccounting | None = None,
    ) -> None:
        client = client or calling_client.get()
        super().__init__(priority, deadline_ns, client, min_runtime_ns)
        self.accounting = accounting
        if self.is_separable:
            self.decision = threading.Lock()

    @abstractmethod
    def advance(self, pause: Pause) -> bool:
        """Do the work on a lane: True at its end, False if it stopped on request.

        What stopped is advanced again later, maybe by another thread, and does some of
        the work each time. Whatever it raises is its end, and `fail` gets it.
        """

    def offer(self, idle: list[Any]) -> bool:
        """Have the last of these native lanes go on, as its work, or return False.

        The lane comes back by its port; `come_back` is called with the outcome then.
        """
        return False

    def come_back(
        self, outcome: int | BaseException, started_ns: int, ended_ns: int, cpu_ns: int
    ) -> bool:
        """Return what `advance` would for the lane, which says how it has ended."""
        raise NotImplementedError

    def gathered(self, run_queue: Any, now_ns: int) -> "Work":
        """Return a batch of it and others that wait, or itself; it was just taken."""
        raise NotImplementedError

    def settle(self, members: "Sequence[Any]") -> bool:
        """Give ``members`` of the batch what is theirs; False if it has failed.

        Called once it has ended, on the loop; others have left it.
        """
        raise NotImplementedError

    def run(self) -> int:
        """Do all of the work in one go, on the loop; return the nanoseconds it took."""
        started_ns = time.monotonic_ns()
        self.advance(Pause())
        return time.monotonic_ns() - started_ns

    def decides(self) -> bool:
        """Decide how it ends, on any thread; False if that is decided, or not to be."""
        decision = self.decision
        return decision is not None and decision.acquire(False)

    @abstractmethod
    def abort(self, status: ErrorStatus) -> None:
        """Stop `advance` soon, or never begin it; from any thread, at any time."""

    def fail(self, error: AsyncnnError) -> None:
        """Keep why it has ended for `finish`; called where it was advanced."""
        self.abort(error.status)

    @abstractmethod
    def finish(self) -> ErrorStatus:
        """Report the outcome and return it; called once, see the class.

        It follows the end of `advance`, or `abort` when that is not under way and will
        not be called again, or the work ``is_left``.
        """

    def lesson(self) -> Callable[[], None] | None:
        """Return what the loop is to call some time after the end; None for nothing.

        Asked of work that ``ends_anywhere``, which `finish` has reported elsewhere. The
        result must not keep what the work has used.
        """
        return None


def fail_with(work: Work, error: BaseException) -> None:
    """End ``work`` with what it has raised: the one place where that gets a status.

    Its traceback refers to frames that keep the pools of an execution; it is dropped.
    """
    if not isinstance(error, AsyncnnError) and shortage_of(error) is None:
        fields = {"client": work.client.name}
        logger.error("work failed", exc_info=error, extra={"fields": fields})
    work.fail(failure_of(error).with_traceback(None))
