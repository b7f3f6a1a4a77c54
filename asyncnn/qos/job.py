"""What the order of work depends on, and nothing else of it."""

from enum import Enum

from asyncnn.hal.types import Priority
from asyncnn.qos.client import LOCAL, Client
from asyncnn.qos.tally import Tally
from asyncnn.qos.virtual_time import Share, Shares


class UserAccount(Share):
    """The share of a user, and those of its ``clients``."""

    __slots__ = ("clients",)

    def __init__(self, weight: float, credit_ns: int) -> None:
        super().__init__(weight)
        self.clients: Shares[Account] = Shares(credit_ns)


class Account(Share):
    """The share of a client, inside that of its ``user``.

    ``pending`` counts its jobs that wait, run or are suspended; ``tally`` counts what
    became of the others. By priority, ``waiting_at`` counts those that have no lane,
    and ``served_ns`` is when one of them last ran, or began to wait.
    """

    __slots__ = ("pending", "served_ns", "tally", "user", "waiting_at")

    def __init__(self, weight: float, user: UserAccount) -> None:
        super().__init__(weight)
        self.user = user
        self.pending = 0
        self.waiting_at = [0 for _ in Priority]
        self.served_ns = [0 for _ in Priority]
        self.tally = Tally()


class JobState(Enum):
    """Where a job stands in its `Roster`."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"


class Job:
    """A piece of work as the `Roster` sees it.

    ``deadline_ns`` is an absolute time of the steady clock, None if there is none.
    ``least_ns`` is what it takes at least, 0 if unknown: it is not begun when that
    would end after the deadline. ``preemptions`` counts how often it made way for
    another one after it had begun. The rest is the roster's.
    """

    __slots__ = (
        "account",
        "added_ns",
        "charged_ns",
        "client",
        "deadline_ns",
        "due_ns",
        "has_turn",
        "is_stopping",
        "least_ns",
        "preemptions",
        "priority",
        "resumed_ns",
        "review_ns",
        "state",
    )

    account: Account
    added_ns: int
    charged_ns: int
    due_ns: int
    has_turn: bool
    resumed_ns: int
    review_ns: int | None

    def __init__(
        self,
        priority: Priority,
        deadline_ns: int | None = None,
        client: Client = LOCAL,
        least_ns: int = 0,
    ) -> None:
        self.priority = priority
        self.deadline_ns = deadline_ns
        self.client = client
        self.least_ns = least_ns
        self.preemptions = 0
        self.state = JobState.OUTSIDE
        self.is_stopping = False

    def is_hopeless(self, now_ns: int) -> bool:
        """Tell whether it would miss its deadline if it began at ``now_ns``."""
        deadline_ns = self.deadline_ns
        return deadline_ns is not None and now_ns + self.least_ns >= deadline_ns
