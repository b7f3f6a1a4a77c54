"""Ties lanes to an event loop: admission, deadlines, cancellation, completion."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from asyncnn.errors import (
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.lane import Lane
from asyncnn.qos.work import Work

P = ParamSpec("P")


class Scheduler:
    """Runs work on one lane and finishes it on the loop that created the scheduler.

    One lane, because plans of small NumPy calls on several threads only contend for
    the interpreter lock. All methods but `Lane` callbacks belong to the loop.
    """

    def __init__(self, name: str, *, max_pending: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_pending = max_pending
        self._lane = Lane(name, self._completed_on_lane)
        self._done: deque[Work] = deque()
        self._open: dict[int, Work] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._drained: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def pending(self) -> int:
        """Number of pieces of work that were submitted and not finished."""
        return len(self._open)

    @property
    def is_closed(self) -> bool:
        """Whether no more work is accepted."""
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or runs."""
        return not self._open

    def submit(self, work: Work) -> None:
        """Accept ``work``: from here on it will be finished exactly once.

        :raises DeviceUnavailableError: if the scheduler is closed.
        :raises ResourceExhaustedTransientError: if too much work is pending.
        :raises MissedDeadlinePersistentError: if the deadline has passed already.
        """
        self.admit(work)
        self._register(work)
        self._lane.submit(work)

    def call_soon(
        self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call ``callback`` in the loop's next round."""
        self._loop.call_soon(partial(callback, *args, **kwargs))

    def admit(self, work: Work) -> None:
        """Check that ``work`` may be accepted.

        :raises AsyncnnError: as `submit`.
        """
        if self._is_closed:
            raise DeviceUnavailableError("the device is closed")
        if len(self._open) >= self._max_pending:
            raise ResourceExhaustedTransientError(
                f"{len(self._open)} executions are pending, the limit",
                hint="await some of them first, or raise max_pending",
            )
        if work.deadline_ns is not None and time.monotonic_ns() >= work.deadline_ns:
            raise MissedDeadlinePersistentError("the deadline has passed already")

    def cancel(self, work: Work, status: ErrorStatus) -> None:
        """Stop ``work`` at its next boundary, or before it begins.

        Does nothing if it is finished.
        """
        if id(work) not in self._open:
            return
        work.abort(status)
        if self._lane.withdraw(work):
            self._finish(work)

    async def aclose(self) -> None:
        """Abort all work with DEVICE_UNAVAILABLE, finish it, and end the thread."""
        self._is_closed = True
        for work in self._lane.close(ErrorStatus.DEVICE_UNAVAILABLE):
            work.abort(ErrorStatus.DEVICE_UNAVAILABLE)
            self._finish(work)
        if self._open:
            self._drained = self._loop.create_future()
            await self._drained
        self._lane.join()

    def _register(self, work: Work) -> None:
        self._open[id(work)] = work
        if work.deadline_ns is not None:
            delay = (work.deadline_ns - time.monotonic_ns()) / 1e9
            self._timers[id(work)] = self._loop.call_later(
                max(delay, 0), self.cancel, work, ErrorStatus.MISSED_DEADLINE_TRANSIENT
            )

    def _completed_on_lane(self, work: Work) -> None:
        """Hand ``work`` to the loop, which finishes all that has completed."""
        self._done.append(work)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        while self._done:
            self._finish(self._done.popleft())

    def _finish(self, work: Work) -> None:
        del self._open[id(work)]
        if work.deadline_ns is not None:
            timer = self._timers.pop(id(work), None)
            if timer is not None:
                timer.cancel()
        if self._drained is not None and not self._open:
            self._drained.set_result(None)
        work.finish()
