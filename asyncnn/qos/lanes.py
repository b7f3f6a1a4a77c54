"""Worker threads that carry out what a run queue decides.

A lane of Python takes a job from the queue, advances it until it ends or has to pause,
and exchanges it for the next one. All decisions are taken under one lock, which no lane
holds while it works.

What an engine computes alone goes to a native lane, which knows nothing of Python: the
event loop exchanges its job when that has come back. Both kinds serve one queue, and
there are as many jobs on both together as there may be lanes.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.offload import start_thread
from asyncnn.pacing import Pause, TimedPause
from asyncnn.qos.native_lanes import ILanePort, LoopInbox, NativeLane, NativeLanes
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import OUTSIDE, RUNNING, SUSPENDED, Work, fail_with

LOW = Priority.LOW

HELD_UP = 0.5
"""LOW work with less than that share of its lane time on a processor was held up."""


class Lane:
    """One worker thread and the work that it has.

    A lane that ``is_dismissed`` takes no more work, and how its last work ends is
    ignored: it is idle, or stuck. It sleeps by taking ``wake``, which wakes it when
    that is released. ``processor_ns`` is the processor time that its thread had had
    when its work was exchanged last.
    """

    def __init__(self, name: str, serve: Callable[["Lane"], None]) -> None:
        self.thread = threading.Thread(
            target=serve, args=(self,), name=name, daemon=True
        )
        self.work: Work | None = None
        self.is_dismissed = False
        self.processor_ns = 0
        self.wake = threading.Lock()
        self.wake.acquire()


class Lanes(ABC):
    """Up to ``count`` threads that run work in the order of one run queue.

    Beside them are those that go on with work which was left to them, and up to
    ``count`` native ones of each kind, where ``make_port`` makes a port for these; no
    more run at a time. A thread starts when there is work for it. ``open`` has all work
    of which nobody has reported the end. What has ended goes to ``inbox``, or to
    `_finish_here` on its lane if it ``ends_anywhere``. Thread-safe, but for `_deliver`,
    and for what others read from ``run_queue``: its numbers may be a moment old.
    They take no work once there is a ``refusal``, which makes the error that says why.
    """

    def __init__(
        self,
        name: str,
        count: int,
        run_queue: RunQueue[Work],
        inbox: LoopInbox,
        make_port: Callable[[int], ILanePort] | None = None,
        nice: int = 0,
    ) -> None:
        self.name = name
        self.count = count
        self.run_queue = run_queue
        self.open: dict[Work, None] = {}
        self.refusal: Callable[[], DeviceUnavailableError] | None = None
        self.inbox = inbox
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        # The last one to fall asleep is woken first: its caches are the warmest.
        self._asleep: list[Lane] = []
        take_back = partial(self._deliver, True)
        self._natives = NativeLanes(name, count, inbox, make_port, take_back, nice)

    @property
    def threads(self) -> int:
        """Number of threads there are."""
        return len(self._lanes) + len(self._natives.lanes)

    @abstractmethod
    def _finish(self, work: Work) -> None:
        """Report the end of ``work``; on the loop."""

    @abstractmethod
    def _disband(self, batch: Work) -> None:
        """Report the ends of all that are members of a batch by now; on the loop."""

    @abstractmethod
    def _finish_here(self, work: Work) -> None:
        """Report the end of ``work`` on this thread."""

    def _seat(self, work: Work, to_stop: Work | None, now_ns: int) -> None:
        """Have work wait that was added and got no lane, or make way for it.

        The lock is held.

        :raises ResourceExhaustedTransientError: if there is no thread, nor can one be
            started.
        """
        run_queue = self.run_queue
        if work.state is RUNNING:
            run_queue.wait(work, now_ns)
        elif to_stop is not None:
            is_aside = self._set_aside(to_stop)
            if is_aside:
                ended: deque[Work] = deque()
                self._fill(now_ns, ended)
                for each in ended:
                    self.inbox.put(each)
            # Beside other clients, it goes on as its share allows.
            if not is_aside or to_stop.account is not work.account:
                to_stop.pause.request()
            return
        elif not run_queue.room:
            return
        if self._asleep:
            # By the waker, or two pieces of work would count on one sleeper.
            self._asleep.pop().wake.release()
        elif len(self._lanes) < run_queue.most_lanes:
            try:
                self._start()
            except ResourceExhaustedTransientError:
                if not self._lanes:  # else it waits for one of them
                    raise

    def _deliver(self, is_drained: bool = False) -> None:
        """Exchange what has come back from native lanes; report what has ended."""
        inbox, natives = self.inbox, self._natives
        works, returned, run_queue = inbox.works, natives.returned, self.run_queue
        work: Work | None = None
        has_ended = False
        try:
            if not is_drained and natives.port is not None:
                natives.port.drain(returned)
            elif not is_drained and inbox.fd >= 0:
                with suppress(BlockingIOError):  # it is called by something else
                    os.eventfd_read(inbox.fd)
            inbox.is_due = False
            with self._lock:
                while returned:
                    # An interrupt comes behind a call: none up to the lane's place.
                    lane, outcome, started_ns, ended_ns, used_ns = returned[0]
                    work, has_ended, lane.work = lane.work, outcome is None, None
                    del returned[0]
                    if not lane.is_dismissed:
                        lane.idle.append(lane)
                    if not has_ended:
                        has_ended = self._has_ended(
                            work, outcome, started_ns, ended_ns, used_ns
                        )
                    if lane.is_dismissed:  # it was given up, and this was reported
                        natives.dismissed.remove(lane)
                        natives.ending.append(lane)
                        continue
                    if self.refusal is not None:
                        natives.end_idle()
                    now_ns = time.monotonic_ns()
                    # Each thread of an engine has had as much as the lane's own.
                    lane_ns = used_ns * work.pause.threads
                    if has_ended or work.is_withdrawn or self.refusal is not None:
                        run_queue.end(work, now_ns, lane_ns)
                        if not work.is_left:  # else that was reported
                            works.append(work)
                    else:
                        run_queue.give_back(work, now_ns, lane_ns)
                        # The system has run others in its place, and a lane is free.
                        is_nice = lane.idle is natives.idle_nice and not lane.is_aside
                        least_ns = (ended_ns - started_ns) * HELD_UP
                        work.is_held_up = is_nice and used_ns < least_ns
                    lane.is_aside = False
                    if run_queue.waiting or run_queue.aside:
                        self._fill(now_ns, works, work)
            while natives.failures:
                fail_with(*natives.failures.pop())
            while works:
                work, has_ended = works[0], True
                del works[0]
                (self._disband if work.members else self._finish)(work)
        except BaseException:  # the application is stopped, and closes us then
            if work is not None:
                self._let_go(work, has_ended)
            inbox.deliver_soon()
            raise

    def _has_ended(self, work: Work, *outcome: Any) -> bool:
        """Notify a piece of work of how a native lane has left it; the lock is held."""
        try:
            return work.come_back(*outcome)
        except BaseException as error:
            # Not logged here: who logs may submit more, or wait for who does.
            self._natives.failures.append((work, error))
            return True

    def _let_go(self, work: Work, has_ended: bool) -> None:
        """Have work end that has left its lane, where an interrupt came in between."""
        works = self.inbox.works
        with self._lock:
            if work.state is RUNNING and not self._has_lane(work):
                self.run_queue.drop(work, time.monotonic_ns())
        if work.state is OUTSIDE and work in self.open and work not in works:
            if not has_ended:
                work.abort(ErrorStatus.GENERAL_FAILURE)
            works.append(work)

    def _replace(self, work: Work) -> None:
        """Have another lane take the place of one that still goes on with ``work``.

        Nobody waits for that any more. There are twice as many lanes at most.
        """
        with self._lock:
            if not work.keeps_its_lane and self.run_queue.set_aside(work):
                self._start_another()

    def retire(self) -> None:
        """End the threads that have nothing to do; new work starts them again."""
        with self._lock:
            if not self.run_queue.waiting:
                for lane in self._lanes:
                    lane.is_dismissed = lane.work is None
                self._lanes = [lane for lane in self._lanes if not lane.is_dismissed]
                self._wake_all()
                self._natives.end_idle()

    def _pauses(self) -> list[Pause]:
        """Return the pauses of all work that runs: each resumption has a new one."""
        with self._lock:
            works = [lane.work for lane in self._lanes]
            works += [lane.work for lane in self._natives.lanes]
            return [work.pause for work in works if work is not None]

    def _dismiss(self, pauses: Sequence[Pause]) -> list[Work]:
        """Dismiss the lanes that still run with one of ``pauses``; return their work.

        Their threads cannot be ended; others take their places.
        """
        given_up: list[Work] = []
        with self._lock:
            for lane in tuple(self._lanes):
                work = lane.work
                if work is not None and work.pause in pauses:
                    given_up.append(work)
                    # It is left to itself, with the work that it has.
                    lane.is_dismissed = True
                    self._lanes.remove(lane)
                    self._threads.remove(lane.thread)
                    self.run_queue.end(work, time.monotonic_ns())
                    self._start_another()
            for native in tuple(self._natives.lanes):
                work = native.work
                if work is not None and work.pause in pauses:
                    given_up.append(work)
                    self._natives.dismiss(native)
                    self.run_queue.end(work, time.monotonic_ns())
                    self._start_another()
        return given_up

    def _close(
        self, status: ErrorStatus, refusal: Callable[[], DeviceUnavailableError]
    ) -> list[Work]:
        """Take no more work, abort all; return what no lane reports the end of."""
        with self._lock:
            self.refusal = refusal
            # Under the lock, so that none of it is exchanged for other work meanwhile.
            running, waiting = self.run_queue.running, self.run_queue.clear()
            for work in (*waiting, *running):
                work.abort(status)
            self._wake_all()
            self._natives.end_idle()
            to_report = [work for work in waiting if not work.is_left]
            return to_report + [work for work in running if self._take_out(work)]

    def _disown(self, refusal: Callable[[], DeviceUnavailableError]) -> None:
        """Take no work in a forked child, which has none of the threads."""
        self.refusal = refusal
        self._lock = threading.Lock()  # one of them may have held that
        self._natives.disown()

    @property
    def _have_ended(self) -> bool:
        """Whether no thread lives, but for those that were given up. Never waits."""
        return self._natives.have_ended() and not any(
            thread.is_alive() for thread in self._threads
        )

    def _take_out(self, work: Work) -> bool:
        """Take ``work`` from the lanes; True if the caller has its end to report.

        Work with a decision to take ``is_left`` to its lane, which goes on with it.
        False if a lane has come to its end, or will at the next boundary. What has no
        lane, since the application was interrupted before it got one, ends here. The
        lock is held.
        """
        if self.run_queue.discard(work):
            return not work.is_left
        work.is_withdrawn = True
        if work.is_left or work.state is not RUNNING:
            return False
        if not self._has_lane(work):
            self.run_queue.end(work, time.monotonic_ns(), 0)
            return True
        if not work.decides():
            return False
        work.is_left = True
        return True

    def _has_lane(self, work: Work) -> bool:
        lanes: list[Lane | NativeLane] = [*self._lanes, *self._natives.lanes]
        return any(lane.work is work for lane in lanes)

    def _retract(self, work: Work) -> None:
        """Forget work that was not accepted, or whose caller was interrupted first."""
        with self._lock:
            if work.state is RUNNING and self._has_lane(work):
                return  # it ends there
            if not self.run_queue.discard(work) and work.state is RUNNING:
                self.run_queue.end(work, time.monotonic_ns(), 0)
            self.open.pop(work, None)

    def _start(self) -> None:
        """Start another thread; the lock is held, for which the thread waits first."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        lane = Lane(self.name, self._serve)
        start_thread(lane.thread)
        self._lanes.append(lane)
        self._threads.append(lane.thread)

    def _start_another(self) -> None:
        """Start a thread for what waits, if there may be one more, or let that fail.

        The lock is held. For the loop.
        """
        run_queue = self.run_queue
        is_needed = run_queue.waiting and self.refusal is None
        if not is_needed or len(self._lanes) >= run_queue.most_lanes:
            return
        try:
            self._start()
        except ResourceExhaustedTransientError as error:
            if self._lanes:
                return
            for work in run_queue.clear():
                if not work.is_left:
                    work.fail(error)
                    # Not here: who is notified may at once submit more.
                    self.inbox.put(work)

    def _wake_all(self) -> None:
        while self._asleep:
            self._asleep.pop().wake.release()

    def _set_aside(self, work: Work) -> bool:
        """Have LOW work make way without a stop, if its lane has a nice value."""
        for lane in self._natives.lanes:
            if lane.work is work and lane.idle is self._natives.idle_nice:
                # Of more than that, nobody would get a lane instead.
                if self.run_queue.most_lanes < 2 * self.count:
                    lane.is_aside = self.run_queue.set_aside(work)
                return lane.is_aside
        return False

    def _give(self, work: Work) -> bool:
        """Give work that was started to a lane that has none; False if there is none.

        The lock is held.
        """
        at_ns, natives = work.review_ns, self._natives
        idle = natives.idle
        if work.priority is LOW and work.goes_native and self._is_for_nice(work):
            idle = natives.idle_nice
            due_ns = work.resumed_ns + self.run_queue.policy.starvation_limit_ns
            at_ns = due_ns if at_ns is None else min(at_ns, due_ns)
        work.pause = pause = Pause() if at_ns is None else TimedPause(at_ns)
        pause.lanes_each = self.count // (self.count - self.run_queue.room) or 1
        if work.goes_native and (idle or natives.add(idle)) and work.offer(idle):
            return True
        return self._wake_for(work)

    def _wake_for(self, work: Work) -> bool:
        """Give work to a lane of Python that sleeps; False if there is none."""
        if not self._asleep:
            return False
        lane = self._asleep[-1]
        lane.work = work
        del self._asleep[-1]  # an interrupt behind a call would lose it
        lane.wake.release()
        return True

    def _is_for_nice(self, work: Work) -> bool:
        # Shares come first: what competes with other clients is not to lose its own.
        is_starved = work.was_starved or work.is_held_up
        return not (is_starved or self.run_queue.has_rivals(work))

    def _serve(self, lane: Lane) -> None:
        # No name here refers to the work: its memory is freed while the thread sleeps.
        os.nice(self._natives.nice)  # of this thread
        has_ended = False
        while True:
            ended: deque[Work] = deque()
            with self._lock:
                if lane.is_dismissed:
                    return
                processor_ns = time.thread_time_ns()
                used_ns = processor_ns - lane.processor_ns
                lane.processor_ns = processor_ns
                is_over = self._exchange(lane, has_ended, used_ns, ended)
            # The last act: who is notified may at once submit more, and finds the lane
            # waiting and the interpreter free.
            while ended:
                if ended[0].is_left:  # that was reported
                    ended.popleft()
                elif ended[0].ends_anywhere:
                    self._finish_here(ended.popleft())
                else:
                    self.inbox.put(ended.popleft())
            if is_over:
                return
            lane.wake.acquire()
            has_ended = False
            if lane.work is None or lane.is_dismissed:
                continue
            try:
                has_ended = lane.work.advance(lane.work.pause)
            except BaseException as error:
                fail_with(lane.work, error)
                has_ended = True

    def _exchange(
        self, lane: Lane, has_ended: bool, used_ns: int, ended: deque[Work]
    ) -> bool:
        """Have the queue decide what runs next, on this lane or on another one.

        What has ended is added to ``ended``. True if the lane ends. The lock is held.
        """
        run_queue, work = self.run_queue, lane.work
        now_ns = time.monotonic_ns()
        if work is not None:
            lane.work = None
            if not has_ended and not work.keeps_its_lane:
                has_ended = work.is_withdrawn
            goes_on = not has_ended and self.refusal is None
            used_ns *= work.pause.threads
            run_queue.end(work, now_ns, used_ns, goes_on)
            if not goes_on:
                ended.append(work)
        if self.refusal is not None:
            lane.is_dismissed = True
        elif len(self._lanes) > self.count and len(self._lanes) > run_queue.most_lanes:
            # It has ended what was left to it, and another one is in its place.
            lane.is_dismissed = True
            self._lanes.remove(lane)
        else:
            self._asleep.append(lane)
        if run_queue.waiting or run_queue.aside:
            self._fill(now_ns, ended, work)
        return lane.is_dismissed

    def _fill(self, now_ns: int, ended: deque[Work], left: Work | None = None) -> None:
        """Give free lanes what is to run next, after one has ``left`` its lane.

        What was not to begin any more is added to ``ended``. The lock is held.
        """
        run_queue = self.run_queue
        for lane in self._natives.lanes:
            if lane.is_aside and lane.work is not None:
                lane.is_aside = not run_queue.resettle(lane.work)
        while run_queue.waiting and run_queue.room > 0:
            following = run_queue.take(now_ns)
            if following is None:
                break
            if following.goes_in_batches and run_queue.waiting:
                following = following.gathered(run_queue, now_ns)
                if following.members:
                    self.open[following] = None
            if not self._give(following):
                run_queue.give_back(following, now_ns, 0)
                self._start_another()
                break
        # What has a lane again goes on at once: nothing else was to go before it.
        if left is not None and left.state is SUSPENDED:
            left.preemptions += 1
        while run_queue.missed:
            missed = run_queue.missed.popleft()
            missed.abort(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            ended.append(missed)
