"""How patiently a lost driver is replaced."""

import msgspec

SETTLED_S = 2.0
"""A driver that lived that long was not part of the trouble before it."""


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a supervised connection; all in seconds.

    :param wait: how long calls that are made while there is no driver wait for the
        next one; 0 makes them fail at once.
    :param first_delay: pause before the first attempt to reconnect; it doubles with
        every further one.
    :param max_delay: the longest pause.
    :param give_up_after: how long there may be no driver, or only drivers that die
        soon, until every call fails for good.
    """

    wait: float = 10.0
    first_delay: float = 0.02
    max_delay: float = 1.0
    give_up_after: float = 60.0


class Backoff:
    """Decides when to try again. Time is the caller's, in seconds."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._trouble_since: float | None = None
        self._delay = supervision.first_delay

    def lost(self, now: float, lived: float) -> float | None:
        """Return the pause before the next attempt, or None to give up.

        :param lived: how long the driver that is lost was there; 0 if it never was.
        """
        if self._trouble_since is None or lived >= SETTLED_S:
            self._trouble_since = now
            self._delay = self._supervision.first_delay
        if now - self._trouble_since >= self._supervision.give_up_after:
            return None
        delay = self._delay
        self._delay = min(2 * delay, self._supervision.max_delay)
        return delay
