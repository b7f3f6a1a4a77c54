"""Lane time by weight: what each has had of it, and who is next. No clock, no thread.

Time is counted in virtual nanoseconds, that is nanoseconds of a lane divided by the
weight of its user or client. The one that waits and has had least is next, so all that
compete advance together: start-time fair queueing (Goyal, Vin and Cheng, 1996), with
the least of the active shares as the virtual time. It is used twice, one inside the
other: for the users, and for the clients of each user.
"""

from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from asyncnn.hal.errors import check_least

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
        check_least(self, 0, "starvation_limit_ns", "starved_slice_ns", "horizon_ns")
        check_least(self, 1, "slice_ns")


_virtual_ns = attrgetter("virtual_ns")
_NEVER = -inf


class Share:
    """What a user or a client has had of the lanes; ``waiting`` jobs have no lane.

    ``virtual_ns`` is infinitely small until it enters for the first time.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.virtual_ns = _NEVER
        self.waiting = 0


ShareT = TypeVar("ShareT", bound=Share)


class Shares(Generic[ShareT]):
    """The shares that compete with each other; ``active`` are those with work.

    A share that enters is put level with the one that has had least, unless it has had
    more itself, and goes before it. So it gets a lane at once, but not for long. If it
    has entered before, up to ``credit_ns`` of lane time that it missed while it was
    away are made up for; a new one gets no credit, or a client could have it again and
    again by coming back under a new identity. ``virtual_ns`` is the virtual time.

    Takes O(active shares).
    """

    def __init__(self, credit_ns: int) -> None:
        self._credit_ns = credit_ns
        self.virtual_ns = 0.0
        self.active: list[ShareT] = []

    def enter(self, share: ShareT) -> None:
        """Let a share compete that has work again; all lane time has been charged."""
        if self.active:
            self._advance()
        if share.virtual_ns == _NEVER:
            share.virtual_ns = self.virtual_ns
        else:
            least = self.virtual_ns - self._credit_ns / share.weight
            if share.virtual_ns < least:
                share.virtual_ns = least
        # In front, since `next` takes the first of equal shares.
        self.active.insert(0, share)

    def leave(self, share: ShareT) -> None:
        """Let a share go that has no work left."""
        # First: the virtual time must not fall back when the least share leaves.
        self._advance()
        self.active.remove(share)

    def next(self) -> ShareT:
        """Return the share that waits and has had least; one must wait."""
        waiting = [share for share in self.active if share.waiting]
        return min(waiting, key=_virtual_ns)

    def _advance(self) -> None:
        least = min(map(_virtual_ns, self.active))
        self.virtual_ns = max(self.virtual_ns, least)
