"""What the scheduler schedules."""

import logging
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from asyncnn.errors import AsyncnnError, failure_of
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos.client import Client, calling_client
from asyncnn.qos.job import Job
from asyncnn.qos.tally import Tally

logger = logging.getLogger(__name__)


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

    Work that ``is_separable`` writes to nothing of its client's, so that an abort is
    reported at once, whatever a lane still does with it. Work that ``is_short`` takes
    less time than handing it to a lane would; if it ``reports_early``, `finish` may be
    called before the call that brought it returns.
    """

    __slots__ = ("is_short", "is_withdrawn", "pause", "reports_early", "tally")

    is_separable: ClassVar[bool] = False
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
        self.is_short = False
        self.reports_early = False

    @abstractmethod
    def advance(self, pause: Pause) -> bool:
        """Do the work on a lane: True at its end, False if it stopped on request.

        What stopped is advanced again later, maybe by another thread, and does some of
        the work each time. Whatever it raises is its end, and `fail` is told.
        """

    def run(self) -> int:
        """Do all of the work in one go, on the loop; return the nanoseconds it took."""
        started_ns = time.monotonic_ns()
        self.advance(Pause())
        return time.monotonic_ns() - started_ns

    @abstractmethod
    def abort(self, status: ErrorStatus) -> None:
        """Stop `advance` soon, or never begin it; from any thread, at any time."""

    def fail(self, error: AsyncnnError) -> None:
        """Keep why it has ended for `finish`; called where it was advanced."""
        self.abort(error.status)

    @abstractmethod
    def finish(self) -> ErrorStatus:
        """Report the outcome and return it; called on the loop, once.

        It follows the end of `advance`, or `abort` when that is not under way, will not
        be called again, or `is_separable`.
        """


def fail_with(work: Work, error: BaseException) -> None:
    """End ``work`` with what it has raised: the one place where that gets a status.

    Its traceback refers to frames that keep the pools of an execution; it is dropped.
    """
    if not isinstance(error, AsyncnnError):
        fields = {"client": work.client.name}
        logger.error("work failed", exc_info=error, extra={"fields": fields})
    work.fail(failure_of(error).with_traceback(None))
