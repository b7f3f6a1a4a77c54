"""What the scheduler schedules."""

from abc import ABC, abstractmethod

from asyncnn.hal.types import ErrorStatus, Priority


class Work(ABC):
    """Something to run on a lane, that is finished on the event loop exactly once.

    ``deadline_ns`` is an absolute time of ``time.monotonic_ns``; None is no deadline.
    """

    __slots__ = ("deadline_ns", "priority")

    def __init__(self, priority: Priority, deadline_ns: int | None = None) -> None:
        self.priority = priority
        self.deadline_ns = deadline_ns

    @abstractmethod
    def run(self) -> None:
        """Do the work on a lane. Outcome and errors are kept for `finish`."""

    @abstractmethod
    def abort(self, status: ErrorStatus) -> None:
        """Stop `run` soon, or never begin it; from any thread, at any time."""

    @abstractmethod
    def finish(self) -> None:
        """Report the outcome; called on the loop after `run`, or instead of it."""
