"""The constants of the scheduling policy; `Roster` says what they mean together."""

import msgspec

from asyncnn.errors import InvalidArgumentError

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
