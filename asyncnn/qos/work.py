"""What the scheduler schedules."""

import time
from abc import ABC, abstractmethod

from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos.client import Client, calling_client
from asyncnn.qos.job import Job
from asyncnn.qos.tally import Tally


class Pause:
    """Asks work to stop at its next boundary."""

    requested = False


class TimedPause(Pause):
    """Asks work to stop at its next boundary from some time on, or earlier."""

    def __init__(self, from_ns: int) -> None:
        self._from_ns = from_ns

    @property
    def requested(self) -> bool:
        """Whether to stop; costs a look at the clock."""
        return time.monotonic_ns() >= self._from_ns

    @requested.setter
    def requested(self, value: bool) -> None:
        self._from_ns = 0 if value else self._from_ns


class Work(Job, ABC):
    """Something to run on a lane, that is finished on the event loop exactly once.

    ``deadline_ns`` is an absolute time of ``time.monotonic_ns``; None is no deadline.
    ``least_ns`` is what it takes at least, 0 if unknown. It is done for the client on
    whose behalf it is made; ``tally`` counts its end beside that of all other work.
    """

    __slots__ = ("is_withdrawn", "pause", "tally")

    pause: Pause

    def __init__(
        self,
        priority: Priority,
        deadline_ns: int | None = None,
        *,
        client: Client | None = None,
        least_ns: int = 0,
        tally: Tally | None = None,
    ) -> None:
        client = client or calling_client.get()
        super().__init__(priority, deadline_ns, client, least_ns)
        self.tally = tally
        self.is_withdrawn = False

    @abstractmethod
    def advance(self, pause: Pause) -> bool:
        """Do the work on a lane: True at its end, False if it stopped on request.

        What stopped is advanced again later, maybe by another thread, and does some of
        the work each time. Outcome and errors are kept for `finish`.
        """

    @abstractmethod
    def abort(self, status: ErrorStatus) -> None:
        """Stop `advance` soon, or never begin it; from any thread, at any time."""

    @abstractmethod
    def finish(self) -> ErrorStatus:
        """Report the outcome and return it; called on the loop, once.

        It follows the end of `advance`, or `abort` when that is not under way and will
        not be called again.
        """
