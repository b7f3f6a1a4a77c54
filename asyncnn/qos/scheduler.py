"""Ties lanes to an event loop: admission, deadlines, cancellation, completion.

`Scheduler.submit` is the one way into execution: whatever is executed, by
whichever call, is admitted, run, counted and reported here, and what it raises becomes
a HAL status here.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    closed_error,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.pacing import Pause
from asyncnn.qos.accounting import (
    MOST_ENDED,
    LateCounts,
    WorkAccounting,
    WorkStatistics,
)
from asyncnn.qos.alarms import Alarm, loop_alarms
from asyncnn.qos.lanes import LOW, Lanes
from asyncnn.qos.native_lanes import ILanePort, LoopInbox
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.virtual_time import Policy
from asyncnn.qos.watching import IdleTimer, PendingSnapshot, Watchdog, end_of_threads
from asyncnn.qos.work import RUNNING, Client, Work, fail_with

logger = logging.getLogger(__name__)

DEFAULT_POLICY = Policy()

REPLACE_AFTER_S = 0.005
"""How long a lane may go on with what was left to it before another takes its place."""

_LOOKED_AT = 16
"""Pending work that the loop looks through for the sake of one that is short."""

_inherited = partial(forked_error, "the device")


class Scheduler(Lanes):
    """Runs work on lanes and finishes it on the loop that created the scheduler.

    ``lanes`` is 1 by default, because plans of small NumPy calls on several threads
    only contend for the interpreter lock. If ``stuck_after_s`` is positive, work that
    comes to no boundary for that long, or up to twice that, is given up: it fails, and
    another thread takes the place of its own. Closing waits for that long at most.

    ``filled_or_freed`` is called on the loop soon after `is_full` has changed.
    ``make_port`` leads to native lanes: see `Lanes`.

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
        make_port: Callable[[int], ILanePort] | None = None,
        nice: int = 0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        inbox = LoopInbox(self._loop, self._deliver)
        run_queue: RunQueue[Work] = RunQueue(
            policy, lanes, max_pending, partial(inbox.call, filled_or_freed)
        )
        super().__init__(name, lanes, run_queue, inbox, make_port, nice)
        self._accounting = WorkAccounting()
        self._late_counts = LateCounts(self.inbox.call)
        self._alarms = loop_alarms()
        self._deadlines: dict[Work, Alarm] = {}
        self._drained = asyncio.Event()
        self._stuck_after_s = stuck_after_s
        self._closing_ends: asyncio.TimerHandle | None = None
        # As if it waited, so that nothing starts it before `call_when_idle`.
        self._idle = IdleTimer(0.0, lambda: None)
        self._idle.is_waiting = True
        self._stuck = Watchdog(stuck_after_s, self, self._give_up)
        disown_in_children(self)

    @property
    def pending(self) -> int:
        """Number of pieces of work that were submitted and not finished."""
        return len(self.open)

    @property
    def is_full(self) -> bool:
        """Whether as much work is pending as is accepted."""
        return self.run_queue.is_full

    @property
    def is_closed(self) -> bool:
        """Whether no more work is accepted."""
        return self.refusal is not None

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return a new error that says why no more work is accepted, if so."""
        refusal = self.refusal
        return None if refusal is None else refusal()

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or runs."""
        return not self.open

    @property
    def has_rested(self) -> bool:
        """Whether it is idle, and no call of `call_when_idle` is to come."""
        return self.is_idle and not self._idle.is_waiting

    @property
    def is_busy(self) -> bool:
        """Whether work waits or runs here; from any thread, a moment late."""
        return bool(self.open) and self.refusal is not _inherited

    @property
    def lanes(self) -> int:
        """Number of threads there may be."""
        return self.count

    def submit(self, work: Work) -> bool:
        """Accept ``work``: from here on it will be finished exactly once.

        It is run now, and True returned, if it is short and nothing is pending, or only
        less urgent work of its client, which a lane would first have to stop. It is
        finished at once then if it ``reports_early``, and in the loop's next round
        otherwise.

        :raises DeviceUnavailableError: if the scheduler is closed.
        :raises ResourceExhaustedTransientError: if too much work is pending, of its
            client or in all, or there is no thread for it.
        :raises MissedDeadlinePersistentError: if the deadline has passed already, or
            would have when the work could end at the earliest.
        """
        if (
            work.should_inline
            and self.refusal is None
            and (not self.open or self._is_above(work))
        ):
            self._run(work)
            return True
        inbox = self.inbox
        if not (inbox.is_open or work.ends_anywhere or self.refusal):
            inbox.open()
        try:
            with self._lock:
                if self.refusal is not None:
                    raise self.refusal()
                now_ns = time.monotonic_ns()
                run_queue, idle = self.run_queue, self._natives.idle
                self.open[work] = None
                to_stop = run_queue.add(work, now_ns, begins=True)
                # As `_give`, for the most usual: a native lane is idle.
                has_lane = work.state is RUNNING
                if has_lane and idle and work.goes_native and work.priority is not LOW:
                    work.pause = pause = Pause()
                    if self.count > 1:  # else nothing can have several
                        taken = self.count - run_queue.room
                        pause.lanes_each = self.count // taken or 1
                    has_lane = work.offer(idle) or self._wake_for(work)
                elif has_lane:
                    has_lane = self._give(work)
                if not has_lane:
                    self._seat(work, to_stop, now_ns)
        except BaseException as error:
            self._retract(work)
            if self.refusal is not None:  # who closes has seen it, and waits for it
                inbox.call(self._note_ended)
            if isinstance(error, AsyncnnError) and not work.is_alone:
                self.count_refusal(work, error.status)
            raise
        # A lane reports its end to the loop, which comes to that after this call.
        if work.deadline_ns is not None or not self._stuck.is_watching:
            if work.ends_anywhere:
                inbox.call(partial(self._watch_over, work))
            else:
                self._watch_over(work)
        return False

    def submit_threadsafe(self, work: Work) -> None:
        """Accept ``work`` on any thread; it goes by the same rules as all other work.

        It is finished where it ends, exactly once: on a lane, on the thread that
        cancels it, or on the loop. The lane runs no other work meanwhile, so
        `Work.finish` must not block. The loop counts its end later.

        :raises AsyncnnError: as `submit`.
        """
        work.ends_anywhere, work.should_inline = True, False
        self.submit(work)

    def cancel_threadsafe(self, work: Work, status: ErrorStatus) -> None:
        """Do what `cancel` does, on any thread, to work that ``ends_anywhere``."""
        if self._withdraw(work, status):
            self._finish_here(work)

    def cancel(self, work: Work, status: ErrorStatus) -> None:
        """Stop ``work`` at its next boundary, or before it begins.

        Does nothing if it is finished. What has a decision to take is finished now.
        """
        if self._withdraw(work, status):
            self._finish(work)

    def call_when_idle(self, idle_s: float, on_idle: Callable[[], None]) -> None:
        """Call ``on_idle`` each time that nothing happened for ``idle_s`` seconds."""
        self._idle = IdleTimer(idle_s, partial(self._became_idle, on_idle))

    def clients(self) -> list[Client]:
        """Return the clients that have had work and still exist."""
        return self.run_queue.clients()

    def snapshot(self) -> PendingSnapshot:
        """Count the work that has not ended, for the statistics of many at once."""
        self._late_counts.settle()
        pending = tuple(self.open)  # other threads add and remove meanwhile
        return PendingSnapshot(pending, self._accounting, self.run_queue)

    def statistics(
        self, *, client: Client | None = None, accounting: WorkAccounting | None = None
    ) -> WorkStatistics:
        """Return what became of all work, or of one ``client``'s or ``accounting``'s.

        ``accounting`` is the one that the work has in common.
        """
        found = self.snapshot()
        chosen = accounting or self._accounting
        return found.of(chosen) if client is None else found.of_client(client)

    def count_refusal(self, work: Work, status: ErrorStatus) -> None:
        """Count work that has ended so before it was accepted; from its own thread."""
        # Not the work, whose memory is large.
        work.account = self.run_queue.account(work.client)
        accountings = self._accounting, work.account.accounting, work.accounting
        self._late_counts.add((accountings, None, status, 0))

    def begin_closing(self) -> None:
        """Accept no more work; abort what is pending with DEVICE_UNAVAILABLE."""
        if self.is_closed:
            return
        # First: what is finished below calls back, and may submit more.
        to_finish = self._close(ErrorStatus.DEVICE_UNAVAILABLE, closed_error)
        self._idle.close()
        self._stuck.close()
        if self._stuck_after_s:
            self._closing_ends = self._loop.call_later(
                self._stuck_after_s, self._give_up_all
            )
        for work in to_finish:
            self.inbox.put(work)
        self._deliver()
        self._note_ended()

    async def aclose(self) -> None:
        """Abort all work with DEVICE_UNAVAILABLE, finish it, and end the threads.

        Any number of tasks may. It takes as long as running work needs to come to a
        boundary, at most ``stuck_after_s``; what has not come to one by then, or when
        this call is cancelled, is given up.
        """
        if self.refusal is _inherited:
            return
        self.begin_closing()
        try:
            await self._drained.wait()
            await end_of_threads(self)
        except asyncio.CancelledError:
            self._give_up_all()
            raise
        finally:
            if self._closing_ends is not None:
                self._closing_ends.cancel()
            self.inbox.close()
            self._natives.release()  # as the last act

    def disown(self) -> None:
        """Refuse work in a forked child, which has none of the threads."""
        self._disown(_inherited)

    def _is_above(self, work: Work) -> bool:
        """Return whether all that is pending is its client's, of lower priorities."""
        if len(self.open) > _LOOKED_AT:
            return False
        pending = tuple(self.open)  # other threads add and remove meanwhile
        return all(
            each.client is work.client and each.priority < work.priority
            for each in pending
        )

    def _run(self, work: Work) -> None:
        """Do short work on the loop, count and report it."""
        work.account = self.run_queue.account(work.client)
        took_ns = 0
        try:
            took_ns = work.run()
        except BaseException as error:
            fail_with(work, error)
            if not isinstance(error, Exception):  # the application is being stopped
                self._finish(work, took_ns)
                raise
        if work.reports_early:
            self._finish(work, took_ns)
        else:
            self._loop.call_soon(self._finish, work, took_ns)

    def _watch_over(self, work: Work) -> None:
        """See to the deadline of ``work``, unless it has ended, and to stuck lanes."""
        if work.deadline_ns is not None and work in self.open:
            self._deadlines[work] = self._alarms.call_at(
                work.deadline_ns,
                partial(self.cancel, work, ErrorStatus.MISSED_DEADLINE_TRANSIENT),
            )
        self._stuck.watch()

    def _withdraw(self, work: Work, status: ErrorStatus) -> bool:
        """Abort ``work`` on any thread; True if the caller has its end to report."""
        # Nothing of a parent's ends in a forked child.
        if work not in self.open or self.refusal is _inherited:
            return False
        # Before it is withdrawn: a lane may take it in between, and has to find this.
        work.abort(status)
        with self._lock:
            batch = work.batch
            if not self._take_out(work):
                return False
            if batch is not None and not any(each.batch for each in batch.members):
                batch.abort(status)  # nobody waits for it any more
        if work.is_left:
            # Most often its lane stops before a thread could have begun.
            self.inbox.call(
                partial(self._loop.call_later, REPLACE_AFTER_S, self._replace, work)
            )
        return True

    def _finish(self, work: Work, took_ns: int | None = None) -> None:
        """Report the end of ``work``, which nobody else does, and count it.

        Others are not affected if that fails.
        """
        now_ns, idle = time.monotonic_ns(), self._idle
        if work.deadline_ns is not None:
            self._forget_deadline(work)
        # Before it is reported: that may cancel it once more, or close the scheduler.
        # Without a call, behind which an interrupt would come: it would be lost.
        if work in self.open:
            del self.open[work]
        try:
            status = work.finish()
        except (Exception, asyncio.CancelledError):
            logger.exception("reporting the end of work failed")
            status = ErrorStatus.GENERAL_FAILURE
        finally:
            idle.active_ns = now_ns
            if not (self.open or idle.is_waiting):
                self._note_ended()
        latency_ns = now_ns - work.added_ns if took_ns is None else took_ns
        accountings = self._accounting, work.account.accounting, work.accounting
        ended = self._late_counts.ended
        ended.append((accountings, latency_ns, status, work.preemptions))
        if len(ended) >= MOST_ENDED:
            self._late_counts.settle()

    def _disband(self, batch: Work) -> None:
        """Report the ends of all that are members of a batch by now.

        If it has failed, each runs by itself: most are not why.
        """
        members = [member for member in batch.members if member in self.open]
        try:
            has_computed = batch.settle(members)
        except Exception:
            logger.exception("a batch is of no use to its members")
            has_computed = False
        for member in members:
            if member not in self.open:  # the end of another one has cancelled it
                continue
            if has_computed or member.is_withdrawn:
                self._finish(member)
            else:
                self._submit_alone(member)
        self.open.pop(batch, None)
        if not (self.open or self._idle.is_waiting):
            self._note_ended()

    def _submit_alone(self, work: Work) -> None:
        self._forget_deadline(work)
        work.is_alone = True
        try:
            del self.open[work]
            self.submit(work)
        except BaseException as refusal:
            error = refusal
            if isinstance(refusal, MissedDeadlinePersistentError):
                error = MissedDeadlineTransientError("its batch had just failed")
            if work not in self.open:  # else it has a lane, and ends there
                fail_with(work, error)
                self._finish(work)
            if not isinstance(error, Exception):  # the application is being stopped
                raise

    def _finish_here(self, work: Work) -> None:
        """Report the end of ``work`` on this thread; have the loop count it later."""
        del self.open[work]
        # All that can be is done before, as the thread that is notified wants to go on.
        now_ns, idle = time.monotonic_ns(), self._idle
        accountings = self._accounting, work.account.accounting, work.accounting
        latency_ns = now_ns - work.added_ns
        preemptions, lesson = work.preemptions, work.lesson()
        if work.deadline_ns is not None:
            self.inbox.call(partial(self._forget_deadline, work))
        try:
            status = work.finish()
        except BaseException:  # a lane would end with it
            logger.exception("reporting the end of work failed")
            status = ErrorStatus.GENERAL_FAILURE
        # Without the work, whose memory is large.
        self._late_counts.add((accountings, latency_ns, status, preemptions), lesson)
        idle.active_ns = now_ns
        if not (self.open or idle.is_waiting):
            self.inbox.call(self._note_ended)

    def _forget_deadline(self, work: Work) -> None:
        alarm = self._deadlines.pop(work, None)
        if alarm is not None:
            alarm.cancel()

    def _note_ended(self) -> None:
        """Note that nothing is pending, where an end has found nobody who does."""
        if self.open:
            return
        if self.is_closed:
            self._drained.set()
        else:
            self._idle.note_activity()

    def _became_idle(self, on_idle: Callable[[], None]) -> None:
        self._late_counts.settle()  # they keep the models that are to learn from them
        if self.is_idle and not self.is_closed:
            self._stuck.rest()
            on_idle()

    def _give_up_all(self) -> None:
        """Let what still runs while closing end now; its threads are left alone."""
        for work in self._dismiss(self._pauses()):
            logger.error("a lane is stuck while it is closed")
            self._give_up(work, ErrorStatus.DEVICE_UNAVAILABLE)

    def _give_up(
        self, work: Work, status: ErrorStatus = ErrorStatus.GENERAL_FAILURE
    ) -> None:
        """Report work whose lane is stuck, unless that was done."""
        if work.members:
            self.open.pop(work, None)
            for member in work.members:
                self._give_up(member, status)
            return
        if work in self.open:
            work.abort(status)
            work.decides()  # so that it writes to nothing, if it ever goes on
            work.is_left = True
            self._finish(work)
