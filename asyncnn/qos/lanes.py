"""Worker threads that carry out what a run queue decides.

A lane takes a job from the queue, advances it until it ends or has to pause, and
exchanges it for the next one. All decisions are taken under one lock, which no lane
holds while it works.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context

from asyncnn.callbacks import in_this_turn
from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import start_thread
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import RUNNING, Pause, TimedPause, Work, fail_with


class LoopInbox:
    """Has an event loop ``handle`` each piece of work that any thread has `put` here.

    An eventfd, once there is one to `open`, costs half of `loop.call_soon_threadsafe`,
    which takes its place where descriptors have run out. Belongs to the loop, but for
    `put` and `call`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handle: Callable[[Work], object]
    ) -> None:
        self._loop = loop
        self._handle = handle
        self._works: deque[Work] = deque()
        self._lock = threading.Lock()
        self._fd = -1
        self._is_due = False
        self.is_open = False

    def open(self) -> None:
        """Open the descriptor, if there is one."""
        self.is_open = True
        try:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            return
        try:
            # In no context: that of the caller would keep its client for as long.
            Context().run(self._loop.add_reader, fd, in_this_turn, self.deliver)
        except OSError:  # there is no room among what the system watches
            os.close(fd)
            return
        self._fd = fd

    def call(self, function: Callable[[], object]) -> bool:
        """Have the loop call ``function``; False if it is closed, so nobody waits."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def put(self, work: Work) -> None:
        """Have the loop handle ``work`` soon; nothing happens if it is closed."""
        self._works.append(work)
        if self._is_due:  # it comes to all that is there by then
            return
        self._is_due = True
        # A thread that was given up may come here late, when another file has the
        # number of a descriptor that was closed.
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)
                return
        self.call(self.deliver)

    def deliver(self) -> None:
        """Handle all that is here, as the loop does soon."""
        if self._fd >= 0:
            try:  # noqa: SIM105 - a context costs more than the rest
                os.eventfd_read(self._fd)
            except BlockingIOError:
                pass  # it is called by something else
        # First, so that whatever comes from here on wakes it again.
        self._is_due = False
        works = self._works
        try:
            while works:
                self._handle(works.popleft())
        finally:
            if works:  # a callback stops the application, which closes us then
                self._loop.call_soon(self.deliver)

    def close(self) -> None:
        """Give the descriptor back; earlier and later calls of `put` still work."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
            if self._is_due:
                self._loop.call_soon(self.deliver)

    def __del__(self) -> None:
        if self._fd >= 0:  # the loop has ended before its scheduler was closed
            os.close(self._fd)


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


class Lanes:
    """Up to ``count`` threads that run work in the order of one run queue.

    Beside them are those that go on with work which was left to them. A thread starts
    when there is work for it. ``open`` has all work of which nobody has reported the
    end. What has ended goes to ``inbox``, or to ``finish_here`` on its lane if it
    ``ends_anywhere``. Thread-safe, but for what others read from ``run_queue``: its
    numbers may be a moment old.

    They take no work once there is a ``refusal``, which makes the error that says why.
    """

    def __init__(
        self,
        name: str,
        count: int,
        run_queue: RunQueue[Work],
        inbox: LoopInbox,
        finish_here: Callable[[Work], object],
    ) -> None:
        self.name = name
        self.count = count
        self.run_queue = run_queue
        self.open: set[Work] = set()
        self.refusal: Callable[[], DeviceUnavailableError] | None = None
        self._inbox = inbox
        self._finish_here = finish_here
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        # The last one to fall asleep is woken first: its caches are the warmest.
        self._asleep: list[Lane] = []

    @property
    def threads(self) -> int:
        """Number of threads there are."""
        return len(self._lanes)

    def submit(self, work: Work) -> None:
        """Let ``work`` wait for a lane.

        :raises DeviceUnavailableError: if they take no work.
        :raises MissedDeadlinePersistentError: as `RunQueue.admit`.
        :raises ResourceExhaustedTransientError: likewise, or if there is no thread, nor
            can one be started.
        """
        with self._lock:
            if self.refusal is not None:
                raise self.refusal()
            run_queue, now_ns = self.run_queue, time.monotonic_ns()
            if self._asleep and not run_queue.waiting:
                # Most often a lane is free, and finds here what it would ask for.
                run_queue.admit(work, now_ns)
                run_queue.start(work, now_ns)
                self.open.add(work)
                lane = self._asleep.pop()
                lane.work = work
                work.pause = pause = Pause()
                busy = len(self._lanes) - len(self._asleep)
                pause.lanes_each = self.count // busy or 1
                lane.wake.release()
                return
            to_stop = run_queue.add(work, now_ns)
            self.open.add(work)
            if to_stop is not None:
                to_stop.pause.request()
            elif self._asleep:
                # By the waker, or two pieces of work would count on one sleeper.
                self._asleep.pop().wake.release()
            elif len(self._lanes) < run_queue.most_lanes:
                try:
                    self._start()
                except ResourceExhaustedTransientError:
                    if not self._lanes:  # else it waits for one of them
                        run_queue.discard(work)
                        self.open.remove(work)
                        raise

    def withdraw(self, work: Work) -> bool:
        """Take ``work`` from the lanes; True if the caller has its end to report.

        Work with a decision to take ``is_left`` to its lane, which goes on with it.
        False if a lane has come to its end, or will at the next boundary.
        """
        with self._lock:
            return self._withdraw(work)

    def replace(self, work: Work) -> None:
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

    def pauses(self) -> list[Pause]:
        """Return the pauses of all work that runs: each resumption has a new one."""
        with self._lock:
            return [lane.work.pause for lane in self._lanes if lane.work is not None]

    def give_up(self, pauses: Sequence[Pause]) -> list[Work]:
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
        return given_up

    def close(
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
            to_report = [work for work in waiting if not work.is_left]
            return to_report + [work for work in running if self._withdraw(work)]

    def disown(self, refusal: Callable[[], DeviceUnavailableError]) -> None:
        """Take no work in a forked child, which has none of the threads."""
        self.refusal = refusal
        self._lock = threading.Lock()  # one of them may have held that

    @property
    def have_ended(self) -> bool:
        """Whether no thread lives, but for those that were given up. Never waits."""
        return not any(thread.is_alive() for thread in self._threads)

    def _withdraw(self, work: Work) -> bool:
        if self.run_queue.discard(work):
            return not work.is_left
        work.is_withdrawn = True
        if work.is_left or work.state is not RUNNING or not work.decides():
            return False
        work.is_left = True
        return True

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
                    # Not here: who is told may at once submit more.
                    self._inbox.put(work)

    def _wake_all(self) -> None:
        while self._asleep:
            self._asleep.pop().wake.release()

    def _serve(self, lane: Lane) -> None:
        # No name here refers to the work: its memory is freed while the thread sleeps.
        has_ended = False
        while self._exchange(lane, has_ended):
            lane.wake.acquire()
            has_ended = False
            if lane.work is None or lane.is_dismissed:
                continue
            try:
                has_ended = lane.work.advance(lane.work.pause)
            except BaseException as error:
                fail_with(lane.work, error)
                has_ended = True

    def _exchange(self, lane: Lane, has_ended: bool) -> bool:
        """Give the lane what is to run next, if anything; False if its thread ends.

        What has ended is reported as the last act: whoever is told may at once submit
        more, and finds the lane waiting and the interpreter free.
        """
        ended: list[Work] = []
        with self._lock:
            if lane.is_dismissed:
                return False
            run_queue, work = self.run_queue, lane.work
            now_ns, processor_ns = time.monotonic_ns(), time.thread_time_ns()
            if work is not None:
                # Each thread of an engine has had as much as the lane's own.
                used_ns = (processor_ns - lane.processor_ns) * work.pause.threads
                if not has_ended and not work.keeps_its_lane:
                    has_ended = work.is_withdrawn
                if has_ended or self.refusal is not None:
                    run_queue.end(work, now_ns, used_ns)
                    ended.append(work)
                else:
                    run_queue.give_back(work, now_ns, used_ns)
            lane.processor_ns = processor_ns
            lanes, following = len(self._lanes), None
            if lanes > self.count and lanes > run_queue.most_lanes:
                # It has ended what was left to it, and another one is in its place.
                lane.is_dismissed = True
                self._lanes.remove(lane)
            elif run_queue.waiting:
                following = run_queue.take(now_ns)
            lane.work = following
            if following is not None:
                at_ns = following.review_ns
                pause = Pause() if at_ns is None else TimedPause(at_ns)
                pause.lanes_each = self.count // (lanes - len(self._asleep)) or 1
                following.pause = pause
                lane.wake.release()
            elif self.refusal is not None:
                lane.is_dismissed = True
            elif not lane.is_dismissed:
                self._asleep.append(lane)
            if work is not None and work is not following and not ended:
                work.preemptions += 1
            while run_queue.missed:
                missed = run_queue.missed.popleft()
                missed.abort(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
                ended.append(missed)
        for work in ended:
            if work.is_left:  # that was reported
                continue
            if work.ends_anywhere:
                self._finish_here(work)
            else:
                self._inbox.put(work)
        return not lane.is_dismissed
