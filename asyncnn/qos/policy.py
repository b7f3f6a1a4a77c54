"""The constants of the scheduling policy; `Roster` says what they mean together."""

import msgspec

from asyncnn.errors import InvalidArgumentError

_MS = 1_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How strict priorities are, and how fair what has the same priority.

    Aging: a priority whose work waits while none of it ran for ``patience_ns`` gets a
    turn before higher ones, which ends at the first boundary after ``turn_ns``. So
    under any load it gets at least one operation in every ``patience_ns``, and a share
    of ``turn_ns / (turn_ns + patience_ns)`` of a lane if its operations are short.

    ``horizon_ns`` is how far deadlines count. Work without a deadline, or with a later
    one, is ordered as if it were due that long after its arrival, so that nothing is
    overtaken for longer. A client may be ahead of its fair share by ``slack_ns`` of
    lane time before the deadlines of others go first.

    :raises InvalidArgumentError: if a duration is negative.
    """

    patience_ns: int = 50 * _MS
    turn_ns: int = 1 * _MS
    horizon_ns: int = 2000 * _MS
    slack_ns: int = 20 * _MS

    def __post_init__(self) -> None:
        if min(self.patience_ns, self.turn_ns, self.horizon_ns, self.slack_ns) < 0:
            raise InvalidArgumentError("a duration of Policy is negative")
