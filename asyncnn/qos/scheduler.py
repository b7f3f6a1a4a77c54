"""Ties lanes to an event loop: admission, deadlines, cancellation, completion."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from asyncnn.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.admission import Admission
from asyncnn.qos.client import LOCAL, Client, calling_client
from asyncnn.qos.lane import Lanes
from asyncnn.qos.policy import Policy
from asyncnn.qos.survey import Survey
from asyncnn.qos.tally import Tally, WorkStatistics, count_end
from asyncnn.qos.watching import IdleTimer, StuckWatch
from asyncnn.qos.work import Work

logger = logging.getLogger(__name__)

P = ParamSpec("P")

DEFAULT_POLICY = Policy()


class Scheduler:
    """Runs work on lanes and finishes it on the loop that created the scheduler.

    ``lanes`` is 1 by default, because plans of small NumPy calls on several threads
    only contend for the interpreter lock. If ``stuck_after_s`` is positive, work that
    comes to no boundary for that long, or up to twice that, is given up: it fails, and
    another thread takes the place of its own.

    All methods belong to the loop.
    """

    def __init__(
        self,
        name: str,
        *,
        max_pending: int,
        lanes: int = 1,
        policy: Policy = DEFAULT_POLICY,
        stuck_after_s: float = 0.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._lanes = Lanes(name, lanes, policy, self._completed_on_lane)
        self._admission = Admission(max_pending)
        self._tally = Tally()
        self._done: deque[Work] = deque()
        self._is_draining = False
        self._open: set[Work] = set()
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._drained: asyncio.Future[None] | None = None
        self._is_closed = False
        self._inline_client = LOCAL.number
        self._inline_account = self._lanes.roster.account(LOCAL)
        self._idle: IdleTimer | None = None
        self._stuck: StuckWatch | None = None
        if stuck_after_s:
            self._stuck = StuckWatch(
                stuck_after_s, self._lanes, lambda: self.is_idle, self._give_up
            )

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

    @property
    def threads(self) -> int:
        """Number of threads there are at the moment."""
        return self._lanes.threads

    def submit(self, work: Work) -> None:
        """Accept ``work``: from here on it will be finished exactly once.

        :raises DeviceUnavailableError: if the scheduler is closed.
        :raises ResourceExhaustedTransientError: if too much work is pending, of its
            client or in all.
        :raises MissedDeadlinePersistentError: if the deadline has passed already, or
            would have when the work could end at the earliest.
        """
        try:
            self._admit(work)
        except AsyncnnError as error:
            work.account = self._lanes.roster.account(work.client)
            for tally in self._tallies(work):
                tally.count_refusal(error.status)
            raise
        self._register(work)
        self._lanes.submit(work)

    async def submit_when_room(self, work: Work) -> None:
        """Like `submit`, but wait while too much is pending, in order of arrival.

        :raises AsyncnnError: as `submit`, but for the bounds.
        """
        await self._admission.room(work.client)
        try:
            self.submit(work)
        except BaseException:
            self._admission.pass_on(work.client)
            raise

    def call_soon(
        self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call ``callback`` in the loop's next round."""
        self._loop.call_soon(partial(callback, *args, **kwargs))

    def cancel(self, work: Work, status: ErrorStatus) -> None:
        """Stop ``work`` at its next boundary, or before it begins.

        Does nothing if it is finished.
        """
        if work not in self._open:
            return
        work.abort(status)
        if self._lanes.withdraw(work):
            self._finish(work)

    def rest_after(self, idle_s: float, rest: Callable[[], None]) -> None:
        """Call ``rest`` each time that nothing has stirred for ``idle_s`` seconds."""
        self._idle = IdleTimer(idle_s, partial(self._rest, rest))

    def retire(self) -> None:
        """End the threads that have nothing to do; new work starts them again."""
        self._lanes.retire()

    def count_inline(self, tally: Tally, work_ns: int) -> None:
        """Count work that was done on the loop itself, with success, in ``work_ns``."""
        client = calling_client.get()
        if client.number != self._inline_client:
            self._inline_client = client.number
            self._inline_account = self._lanes.roster.account(client)
        count_end((self._tally, self._inline_account.tally, tally), work_ns)
        if self._idle is not None:
            self._idle.stir()

    def clients(self) -> list[Client]:
        """Return the clients that have had work and still exist."""
        return self._lanes.roster.clients()

    def survey(self) -> Survey:
        """Count the work that has not ended, for the statistics of many at once."""
        return Survey(self._open, self._tally, self._lanes.roster)

    def statistics(
        self, *, client: Client | None = None, tally: Tally | None = None
    ) -> WorkStatistics:
        """Return what became of all work, of that of a client, or of that in a tally.

        ``tally`` is the one that the work has in common.
        """
        survey = self.survey()
        if client is not None:
            return survey.of_client(client)
        return survey.of(tally or self._tally)

    async def aclose(self) -> None:
        """Abort all work with DEVICE_UNAVAILABLE, finish it, and end the threads."""
        self._is_closed = True
        for timer in (self._idle, self._stuck):
            if timer is not None:
                timer.close()
        for work in self._lanes.close(ErrorStatus.DEVICE_UNAVAILABLE):
            work.abort(ErrorStatus.DEVICE_UNAVAILABLE)
            self._finish(work)
        if self._open:
            self._drained = self._loop.create_future()
            await self._drained
        self._lanes.join()

    def _admit(self, work: Work) -> None:
        if self._is_closed:
            raise DeviceUnavailableError("the device is closed")
        if work.deadline_ns is not None:
            now_ns = time.monotonic_ns()
            if now_ns >= work.deadline_ns:
                raise MissedDeadlinePersistentError("the deadline has passed already")
            if work.is_hopeless(now_ns):
                raise MissedDeadlinePersistentError(
                    f"the deadline is in {(work.deadline_ns - now_ns) / 1000:.0f} us, "
                    f"but it takes at least {work.least_ns / 1000:.0f} us"
                )
        self._admission.admit(work.client)

    def _register(self, work: Work) -> None:
        self._open.add(work)
        if work.deadline_ns is not None:
            delay = (work.deadline_ns - time.monotonic_ns()) / 1e9
            self._timers[work] = self._loop.call_later(
                max(delay, 0), self.cancel, work, ErrorStatus.MISSED_DEADLINE_TRANSIENT
            )
        if self._stuck is not None:
            self._stuck.watch()

    def _completed_on_lane(self, work: Work) -> None:
        """Hand ``work`` to the loop, which finishes all that has completed."""
        self._done.append(work)
        if not self._is_draining:
            self._is_draining = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # First, so that work which is appended from here on is announced again.
        self._is_draining = False
        while self._done:
            self._finish(self._done.popleft())

    def _finish(self, work: Work) -> None:
        self._open.remove(work)
        self._admission.release(work.client)
        if work.deadline_ns is not None:
            timer = self._timers.pop(work, None)
            if timer is not None:
                timer.cancel()
        if self._drained is not None and not self._open:
            self._drained.set_result(None)
        status = work.finish()
        latency_ns = time.monotonic_ns() - work.added_ns
        count_end(self._tallies(work), latency_ns, status, work.preemptions)
        if self._idle is not None and not self._open:
            self._idle.stir()

    def _tallies(self, work: Work) -> tuple[Tally, ...]:
        """Return all in which ``work`` counts."""
        if work.tally is None:
            return self._tally, work.account.tally
        return self._tally, work.account.tally, work.tally

    def _rest(self, rest: Callable[[], None]) -> None:
        if self.is_idle and not self._is_closed:
            if self._stuck is not None:
                self._stuck.close()
            rest()

    def _give_up(self, work: Work) -> None:
        logger.error("lane %s is stuck; its work fails and it is replaced", self._name)
        if work in self._open:
            work.abort(ErrorStatus.GENERAL_FAILURE)
            self._finish(work)
