"""Ties lanes to an event loop: admission, deadlines, cancellation, completion.

`Scheduler.run_or_submit` is the one way into execution: whatever is executed, by
whichever call, is admitted, run, counted and reported here, and what it raises becomes
a HAL status here.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    DeviceUnavailableError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.qos.accounting import (
    LateCounts,
    LateEnd,
    WorkAccounting,
    WorkStatistics,
    count_end,
    count_refusal,
)
from asyncnn.qos.admission import Admission, check_can_end
from asyncnn.qos.alarms import Alarm, Alarms
from asyncnn.qos.lanes import Lanes, LoopWaker
from asyncnn.qos.run_queue import Policy
from asyncnn.qos.watching import IdleTimer, PendingSnapshot, Watchdog, end_of_threads
from asyncnn.qos.work import LOCAL, Client, Work, fail_with

logger = logging.getLogger(__name__)

DEFAULT_POLICY = Policy()

PATIENCE_S = 0.005
"""How long a lane may go on with what was left to it before another takes its place."""

_closed = partial(DeviceClosedError, "the device is closed")
_inherited = partial(forked_error, "the device")


class Scheduler:
    """Runs work on lanes and finishes it on the loop that created the scheduler.

    ``lanes`` is 1 by default, because plans of small NumPy calls on several threads
    only contend for the interpreter lock. If ``stuck_after_s`` is positive, work that
    comes to no boundary for that long, or up to twice that, is given up: it fails, and
    another thread takes the place of its own. Closing waits for that long at most.

    ``filled_or_freed`` is called on the loop soon after `is_full` has changed.

    All methods belong to the loop, but for `submit_threadsafe` and `cancel_threadsafe`.
    """

    def __init__(
        self,
        name: str,
        *,
        max_pending: int,
        lanes: int = 1,
        policy: Policy = DEFAULT_POLICY,
        stuck_after_s: float = 0.0,
        filled_or_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[Work] = set()
        self._lanes = Lanes(
            name, lanes, policy, self._completed_on_lane, self._open.add
        )
        self._accounting = WorkAccounting()
        self._done: deque[Work] = deque()
        self._late_counts = LateCounts(self._count_soon)
        self._has_ended_elsewhere = False
        self._waker = LoopWaker(self._loop, self._drain)
        self._admission = Admission(
            max_pending, partial(self._waker.call, filled_or_freed)
        )
        self._alarms = Alarms(self._loop)
        self._deadlines: dict[Work, Alarm] = {}
        self._drained = asyncio.Event()
        self._refusal: Callable[[], DeviceUnavailableError] | None = None
        self._stuck_after_s = stuck_after_s
        self._closing_ends: asyncio.TimerHandle | None = None
        self._inline_client = LOCAL.number
        self._inline_account = self._lanes.run_queue.account(LOCAL)
        self._idle: IdleTimer | None = None
        self._stuck = Watchdog(
            stuck_after_s,
            self._lanes,
            lambda: not (self._open or self._admission.left),
            self._give_up,
        )
        disown_in_children(self)

    @property
    def pending(self) -> int:
        """Number of pieces of work that were submitted and not finished."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether as much work is pending as is accepted."""
        return self._admission.is_full

    @property
    def is_closed(self) -> bool:
        """Whether no more work is accepted."""
        return self._refusal is not None

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return a new error that says why no more work is accepted, if so."""
        return None if self._refusal is None else self._refusal()

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or runs."""
        return not self._open

    @property
    def is_busy(self) -> bool:
        """Whether work waits or runs here; from any thread, a moment late."""
        return bool(self._open) and self._refusal is not _inherited

    @property
    def lanes(self) -> int:
        """Number of threads there may be."""
        return self._lanes.count

    @property
    def threads(self) -> int:
        """Number of threads there are at the moment."""
        return self._lanes.threads

    def run_or_submit(self, work: Work, *, may_run: bool = True) -> bool:
        """Run ``work`` now if it is short and nothing is pending, else `submit` it.

        Returns True if it was run. It is finished exactly once either way: after a run
        at once if it ``reports_early``, and in the loop's next round otherwise. Without
        ``may_run`` it is always submitted.

        :raises AsyncnnError: as `submit`. It is not finished then.
        """
        if may_run and work.should_inline and not self._open and self._refusal is None:
            self._run(work)
            return True
        self.submit(work)
        return False

    def submit(self, work: Work) -> None:
        """Accept ``work``: from here on it will be finished exactly once.

        :raises DeviceUnavailableError: if the scheduler is closed.
        :raises ResourceExhaustedTransientError: if too much work is pending, of its
            client or in all, or there is no thread for it.
        :raises MissedDeadlinePersistentError: if the deadline has passed already, or
            would have when the work could end at the earliest.
        """
        try:
            if not self._waker.is_open and self._refusal is None:
                self._waker.open()
            self._enter(work)
        except AsyncnnError as error:
            self.count_refusal(work, error.status)
            raise
        # A lane reports its end to the loop, which comes to that after this call.
        self._watch_over(work)

    def submit_threadsafe(self, work: Work) -> None:
        """Accept ``work`` on any thread; it goes by the same rules as all other work.

        It is finished where it ends, exactly once: on a lane, on the thread that
        cancels it, or on the loop. The lane runs no other work meanwhile, so
        `Work.finish` must not block. The loop counts its end later.

        :raises AsyncnnError: as `submit`.
        """
        work.ends_anywhere = True
        try:
            self._enter(work)
        except AsyncnnError as error:
            accountings = self._accountings(work)
            self._late_counts.add(partial(count_refusal, accountings, error.status))
            raise
        if work.deadline_ns is not None or not self._stuck.is_watching:
            self._waker.call(partial(self._watch_over, work))

    def cancel_threadsafe(self, work: Work, status: ErrorStatus) -> None:
        """Do what `cancel` does, on any thread, to work that ``ends_anywhere``."""
        self._cancel(work, status, self._finish_anywhere)

    def cancel(self, work: Work, status: ErrorStatus) -> None:
        """Stop ``work`` at its next boundary, or before it begins.

        Does nothing if it is finished. What has a decision to take is finished now.
        """
        self._cancel(work, status, self._finish)

    def call_when_idle(self, idle_s: float, on_idle: Callable[[], None]) -> None:
        """Call ``on_idle`` each time that nothing happened for ``idle_s`` seconds."""
        self._idle = IdleTimer(idle_s, partial(self._became_idle, on_idle))

    def retire(self) -> None:
        """End the threads that have nothing to do; new work starts them again."""
        self._lanes.retire()

    def clients(self) -> list[Client]:
        """Return the clients that have had work and still exist."""
        return self._lanes.run_queue.clients()

    def snapshot(self) -> PendingSnapshot:
        """Count the work that has not ended, for the statistics of many at once."""
        self._late_counts.settle()
        pending = tuple(self._open)  # other threads add and remove meanwhile
        return PendingSnapshot(pending, self._accounting, self._lanes.run_queue)

    def statistics(
        self, *, client: Client | None = None, accounting: WorkAccounting | None = None
    ) -> WorkStatistics:
        """Return what became of all work, or of that of a client or ``accounting``.

        ``accounting`` is the one that the work has in common.
        """
        found = self.snapshot()
        chosen = accounting or self._accounting
        return found.of(chosen) if client is None else found.of_client(client)

    def count_refusal(self, work: Work, status: ErrorStatus) -> None:
        """Count work that has ended so before it was accepted."""
        count_refusal(self._accountings(work), status)

    def begin_closing(self) -> None:
        """Accept no more work; abort what is pending with DEVICE_UNAVAILABLE."""
        if self._refusal is not None:
            return
        # First: what is finished below calls back, and may submit more.
        self._refusal = _closed
        for timer in (self._idle, self._stuck):
            if timer is not None:
                timer.close()
        if self._stuck_after_s:
            self._closing_ends = self._loop.call_later(
                self._stuck_after_s, self._give_up_all
            )
        status = ErrorStatus.DEVICE_UNAVAILABLE
        withdrawn = self._lanes.close(status)
        for work in withdrawn:
            work.abort(status)
        with contextlib.ExitStack() as ends:  # all of them, whatever one may raise
            for work in self._open.difference(withdrawn):
                if self._leave(work):
                    ends.callback(self._finish, work, True)
            for work in reversed(withdrawn):
                ends.callback(self._finish, work)
        if not self._open:
            self._drained.set()

    async def aclose(self) -> None:
        """Abort all work with DEVICE_UNAVAILABLE, finish it, and end the threads.

        Any number of tasks may. It takes as long as running work needs to come to a
        boundary, at most ``stuck_after_s``; what has not come to one by then, or when
        this call is cancelled, is given up.
        """
        if self._refusal is _inherited:
            return
        self.begin_closing()
        try:
            await self._drained.wait()
            await end_of_threads(self._lanes)
        except asyncio.CancelledError:
            self._give_up_all()
            raise
        finally:
            if self._closing_ends is not None:
                self._closing_ends.cancel()
            self._alarms.close()
            self._waker.close()

    def disown(self) -> None:
        """Refuse work in a forked child, which has none of the threads."""
        self._refusal = _inherited

    def _run(self, work: Work) -> None:
        """Do short work on the loop, count and report it."""
        if work.client.number != self._inline_client:
            self._inline_client = work.client.number
            self._inline_account = self._lanes.run_queue.account(work.client)
        work.account = self._inline_account
        took_ns = 0
        try:
            took_ns = work.run()
        except BaseException as error:
            fail_with(work, error)
            if not isinstance(error, Exception):  # the application is being stopped
                self._report(work, took_ns)
                raise
        if work.reports_early:
            self._report(work, took_ns)
        else:
            self._loop.call_soon(self._report, work, took_ns)
        if self._idle is not None and self._refusal is None:
            self._idle.note_activity()

    def _enter(self, work: Work) -> None:
        """Admit ``work`` and hand it to the lanes, which add it to what is open.

        :raises AsyncnnError: as `submit`.
        """
        if self._refusal is not None:
            raise self._refusal()
        if work.deadline_ns is not None:
            check_can_end(work)
        self._admission.admit(work.client)
        try:
            self._lanes.submit(work)
        except BaseException as error:
            self._open.discard(work)
            self._admission.release(work.client)
            self._waker.call(self._note_ended)  # closing may wait for it
            # The loop may have closed them since this thread has looked.
            cause = self.cause_of_death()
            if cause is not None and isinstance(error, RuntimeError):
                raise cause from None
            raise

    def _accountings(self, work: Work) -> tuple[WorkAccounting | None, ...]:
        """Return what counts refused work; not the work, whose memory is large."""
        work.account = self._lanes.run_queue.account(work.client)
        return self._accounting, work.account.accounting, work.accounting

    def _watch_over(self, work: Work) -> None:
        """See to the deadline of ``work``, unless it has ended, and to stuck lanes."""
        if work.deadline_ns is not None and work in self._open:
            self._deadlines[work] = self._alarms.call_at(
                work.deadline_ns,
                partial(self.cancel, work, ErrorStatus.MISSED_DEADLINE_TRANSIENT),
            )
        self._stuck.watch()

    def _cancel(
        self, work: Work, status: ErrorStatus, finish: Callable[[Work, bool], None]
    ) -> None:
        # A forked child may have inherited the lock of the lanes while it was held.
        if work not in self._open or self._refusal is _inherited:
            return
        # Before it is withdrawn: a lane may take it in between, and has to find this.
        work.abort(status)
        if self._lanes.withdraw(work):
            finish(work, False)
        elif self._leave(work):
            finish(work, True)

    def _leave(self, work: Work) -> bool:
        """Leave ``work`` to its lane, on any thread; False if it ends otherwise."""
        if not self._admission.leave(work, self._open):
            return False
        # Most often its lane stops before a thread could have begun.
        replace = partial(self._loop.call_later, PATIENCE_S, self._lanes.leave, work)
        self._waker.call(replace)
        return True

    def _stopped(self, work: Work) -> None:
        """Count what was left to a lane no more; on any thread."""
        if self._admission.stopped(work):
            self._waker.call(self._note_ended)

    def _completed_on_lane(self, work: Work) -> None:
        """Hand ``work`` to the loop, which finishes all that has completed."""
        if work.decision is not None and not work.decides():
            self._stopped(work)
            return
        if work.ends_anywhere:
            self._finish_anywhere(work)
            return
        self._done.append(work)
        self._waker.wake()

    def _drain(self) -> None:
        try:
            while self._done:
                self._finish(self._done.popleft())
            if self._has_ended_elsewhere:
                self._has_ended_elsewhere = False
                self._late_counts.settle()
                self._note_ended()
        finally:
            # A callback stops the application, which closes us then.
            if self._done or self._has_ended_elsewhere:
                self._loop.call_soon(self._drain)

    def _finish(self, work: Work, is_left: bool = False) -> None:
        """Report the end of ``work``, unless that was done before."""
        # Before it is reported: that may cancel it once more, or close the scheduler.
        if not (is_left or self._close(work)):
            return
        if work.deadline_ns is not None:
            self._forget_deadline(work)
        try:
            self._report(work, time.monotonic_ns() - work.added_ns)
        finally:
            self._note_ended()

    def _close(self, work: Work) -> bool:
        """Claim the end of ``work``, in one step; False if another thread has it."""
        try:
            self._open.remove(work)
        except KeyError:
            return False
        self._admission.release(work.client)
        return True

    def _forget_deadline(self, work: Work) -> None:
        alarm = self._deadlines.pop(work, None)
        if alarm is not None:
            self._alarms.cancel(alarm)

    def _note_ended(self) -> None:
        if not self._open:
            if self._refusal is not None:
                self._drained.set()
            elif self._idle is not None:
                self._idle.note_activity()

    def _finish_anywhere(self, work: Work, is_left: bool = False) -> None:
        """Report the end of ``work`` on this thread; have the loop count it later."""
        if not (is_left or self._close(work)):
            return
        # All that can be is done before, as the thread that is told wants to go on.
        of_client, of_model = work.account.accounting, work.accounting
        latency_ns = time.monotonic_ns() - work.added_ns
        preemptions, lesson = work.preemptions, work.lesson()
        if work.deadline_ns is not None:
            self._waker.call(partial(self._forget_deadline, work))
        try:
            status = work.finish()
        except BaseException:  # a lane would end with it
            logger.exception("reporting the end of work failed")
            status = ErrorStatus.GENERAL_FAILURE
        # Without the work, whose memory is large.
        of_all = self._accounting
        end = LateEnd(of_all, of_client, of_model, latency_ns, status, preemptions)
        self._late_counts.add(end, lesson)
        is_last, idle = not self._open, self._idle
        is_noted = idle is None or idle.is_noted()
        if is_last and (self._refusal is not None or not is_noted):
            self._count_soon()

    def _count_soon(self) -> None:
        """Have the loop count what has ended elsewhere, from any thread."""
        self._has_ended_elsewhere = True
        self._waker.wake()
        if self._loop.is_closed():
            self._late_counts.clear()  # nobody asks for them

    def _report(self, work: Work, latency_ns: int) -> None:
        """Finish ``work`` and count it; others are not affected if that fails."""
        try:
            status = work.finish()
        except (Exception, asyncio.CancelledError):
            logger.exception("reporting the end of work failed")
            status = ErrorStatus.GENERAL_FAILURE
        accountings = self._accounting, work.account.accounting, work.accounting
        count_end(accountings, latency_ns, status, work.preemptions)

    def _became_idle(self, on_idle: Callable[[], None]) -> None:
        self._late_counts.settle()  # they keep the models that are to learn from them
        if self.is_idle and self._refusal is None:
            self._stuck.rest()
            self._alarms.close()
            on_idle()

    def _give_up_all(self) -> None:
        """Let what still runs while closing end now; its threads are left alone."""
        for work in self._lanes.give_up_all():
            logger.error("a lane is stuck while it is closed")
            self._give_up(work, ErrorStatus.DEVICE_UNAVAILABLE)

    def _give_up(
        self, work: Work, status: ErrorStatus = ErrorStatus.GENERAL_FAILURE
    ) -> None:
        """Report work whose lane is stuck, unless it was, and count it no more."""
        self._stopped(work)
        if work in self._open:
            work.abort(status)
            work.decides()  # so that it writes to nothing, if it ever goes on
            work.is_left = True
            self._finish(work)
