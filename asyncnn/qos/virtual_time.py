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
        """Move the virtual time on to the least that an active share has had."""
        least = min(map(_virtual_ns, self.active))
        self.virtual_ns = max(self.virtual_ns, least)
