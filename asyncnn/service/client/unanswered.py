"""The way to a driver, and why it does not answer: it is lost, closed, or late.

A cause makes a new error for each call: one that is raised again keeps the frames of
all calls that it was raised by.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, Protocol, TypeAlias

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.interpreter_hooks import forked_error
from asyncnn.qos.alarms import Alarm, loop_alarms
from asyncnn.service import wire
from asyncnn.service.decoding import MessageFile
from asyncnn.service.limits import PendingAnswers

logger = logging.getLogger(__name__)

P = ParamSpec("P")

Cause: TypeAlias = Callable[[], hal.DeviceUnavailableError]

DEAD_OBJECT = "the driver has died (DEAD_OBJECT)"


def notify(listener: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Notify one listener; if it fails, the others are still notified."""
    try:
        listener(*args, **kwargs)
    except (Exception, asyncio.CancelledError):
        logger.exception("a listener failed while it was notified")


def forked() -> hal.DeviceUnavailableError:
    """Return the error for a device that a parent process has opened."""
    return forked_error("the device")


class Line(Protocol):
    """A connection to a driver, as those see it who have calls to make or to answer.

    Calls, and the objects that they make, are numbered by ``numbers``; what waits for
    an answer is in ``answers``, what is given up after its deadline in ``deadlines``.
    Belongs to the event loop but for `call_soon`.
    """

    numbers: "itertools.count[int]"
    answers: PendingAnswers
    deadlines: "DeadlineWatch"

    def send(
        self, message: wire.ToDriver | MessageFile, fds: Sequence[int] = ()
    ) -> None:
        """Send a message with descriptors, which stay the caller's.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """

    def cancel(self, execution: int) -> None:
        """Notify the driver that nobody waits for an execution."""

    def end(self, execution: int, result: ExecutionResult, *more: object) -> None:
        """Notify an execution of how it has ended."""

    def finish(self, copying: Iterator[None], then: Callable[[], None]) -> None:
        """Call ``then`` after ``copying``, a piece in each turn of the loop."""

    def send_if_open(self, message: wire.ToDriver) -> None:
        """Send a message unless the driver is gone, or memory has run out."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have ``call`` called by the event loop; on any thread."""

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return a new error that says why it is closed, None while it is not."""


MAX_UNANSWERED = 256
"""Calls that the driver may owe an answer when nobody waits for it any more.

Each keeps shared memory, which a driver that is only stopped may still write to.
"""

_APART_NS = 5_000_000
"""Time between two looks at least, as each is at all calls."""

Expire: TypeAlias = Callable[[int], None]


class DeadlineWatch:
    """Watches the calls of a connection by number. Belongs to the event loop.

    ``grace_s`` after its deadline a call is given up. If the loop was busy then, which
    reads the answers, the driver has as long again: it cannot send more of them than
    fit in the socket. One timer serves all calls and is left alone when they are
    answered, so that to watch one costs next to nothing. ``due`` are those that are
    watched, ``unanswered`` those that were given up.
    """

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._grace_ns = None if math.isinf(grace_s) else round(grace_s * 1e9)
        self.due: dict[int, tuple[int, Expire, bool]] = {}
        self.unanswered: set[int] = set()
        self._timer: Alarm | None = None
        self._looks_at_ns = 0

    def check_answers(self) -> None:
        """Check that the driver may be given another call.

        :raises ResourceExhaustedTransientError: if it owes too many answers.
        """
        if len(self.unanswered) >= MAX_UNANSWERED:
            raise hal.ResourceExhaustedTransientError(
                f"the driver has not answered {MAX_UNANSWERED} calls whose deadlines "
                "have passed",
                hint="it is stopped or stuck: let it go on, or end it",
            )

    def watch(self, number: int, deadline_ns: int, expire: Expire) -> None:
        """Call ``expire`` with ``number`` unless it was answered in time."""
        if self._grace_ns is None:
            return
        # One that has passed already is for the driver to refuse and count.
        due_ns = max(deadline_ns, time.monotonic_ns()) + self._grace_ns
        self.due[number] = due_ns, expire, False
        if self._timer is None:
            self._look_at(due_ns)
        elif due_ns < self._looks_at_ns:
            self._timer.cancel()
            self._look_at(due_ns)

    def answered(self, number: int) -> None:
        """Forget a call, in time or late."""
        self.due.pop(number, None)
        self.unanswered.discard(number)

    def close(self) -> None:
        """Forget all of them: the connection has ended."""
        self.due.clear()
        self.unanswered.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, at_ns: int) -> None:
        self._looks_at_ns = at_ns
        self._timer = loop_alarms().call_at(at_ns, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        was_busy = now_ns - self._looks_at_ns > _APART_NS
        respite_ns = self._grace_ns if was_busy and self._grace_ns else _APART_NS
        for number, (due_ns, expire, is_last) in tuple(self.due.items()):
            if due_ns > now_ns or number not in self.due:
                continue  # what an expired one brings about may end others
            if is_last:
                del self.due[number]
                expire(number)
            else:  # its answer may lie there unread
                self.due[number] = now_ns + respite_ns, expire, True
        if self.due and self._timer is None:
            earliest_ns = min(due_ns for due_ns, _, _ in self.due.values())
            self._look_at(max(earliest_ns, now_ns + _APART_NS))
