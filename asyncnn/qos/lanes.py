"""Worker threads that carry out what a run queue decides.

A lane takes a job from the queue, advances it until it ends or has to pause, and
exchanges it for the next one. All decisions are taken under one lock, which no lane
holds while it works.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from contextvars import Context

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import start_thread
from asyncnn.qos.run_queue import Policy, RunQueue
from asyncnn.qos.work import Pause, TimedPause, Work, fail_with


class LoopWaker:
    """Has an event loop call ``woken`` soon after any thread has called `wake`.

    An eventfd, once there is one to `open`, costs half of `loop.call_soon_threadsafe`,
    which takes its place where descriptors have run out. Belongs to the loop, but for
    `wake` and `call`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, woken: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._woken = woken
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
            Context().run(self._loop.add_reader, fd, self._read)
        except OSError:  # there is no room among what the system watches
            os.close(fd)
            return
        self._fd = fd

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop call ``function``; nothing happens if it is closed."""
        with contextlib.suppress(RuntimeError):  # nobody waits
            self._loop.call_soon_threadsafe(function)

    def wake(self) -> None:
        """Wake the loop; nothing happens if it is closed, or will be woken anyway."""
        if self._is_due:
            return
        self._is_due = True
        # A thread that was given up may come here late, when another file has the
        # number of a descriptor that was closed.
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)
                return
        self.call(self._wake_up)

    def close(self) -> None:
        """Give the descriptor back; earlier and later calls of `wake` still work."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            with contextlib.suppress(BlockingIOError):  # nobody has woken it
                os.eventfd_read(fd)
                self._loop.call_soon(self._wake_up)
            os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:  # the loop has ended before its scheduler was closed
            os.close(self._fd)

    def _read(self) -> None:
        os.eventfd_read(self._fd)
        # First, so that whatever comes from here on wakes it again.
        self._is_due = False
        self._woken()

    def _wake_up(self) -> None:
        self._is_due = False
        self._woken()


class Lane:
    """One worker thread, the work it has and the pause that this work looks at.

    A lane that ``is_dismissed`` takes no more work, and how its last work ends is
    ignored: it is idle, or stuck. It sleeps by taking ``wake``, which wakes it when
    that is released. Work that ``has_ended`` is still its own for a moment, in which
    the loop may submit more. ``processor_ns`` is the processor time that its thread had
    had when its work was exchanged last.
    """

    def __init__(self, name: str, serve: Callable[["Lane"], None]) -> None:
        self.thread = threading.Thread(
            target=serve, args=(self,), name=name, daemon=True
        )
        self.work: Work | None = None
        self.pause = Pause()
        self.is_dismissed = False
        self.has_ended = False
        self.processor_ns = 0
        self.wake = threading.Lock()
        self.wake.acquire()


class Lanes:
    """Up to ``count`` threads that run work in the order of one run queue.

    Beside them are those that go on with work which was left to them. A thread starts
    when there is work for it. ``completed`` is called on it for each piece that has
    ended and must not block. ``accepted`` is called for each piece that
    is submitted, before a lane can have it; the lock is held. Thread-safe, but for what
    others read from ``run_queue``: its numbers may be a moment old.
    """

    def __init__(
        self,
        name: str,
        count: int,
        policy: Policy,
        completed: Callable[[Work], None],
        accepted: Callable[[Work], None] = lambda work: None,
    ) -> None:
        self.name = name
        self.count = count
        self._completed = completed
        self._accepted = accepted
        self.run_queue: RunQueue[Work] = RunQueue(policy, count)
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        # The last one to fall asleep is woken first: its caches are the warmest.
        self._asleep: list[Lane] = []
        self._is_closing = False

    @property
    def threads(self) -> int:
        """Number of threads there are."""
        return len(self._lanes)

    def submit(self, work: Work) -> None:
        """Let ``work`` wait for a lane.

        :raises RuntimeError: if the lanes are closed.
        :raises ResourceExhaustedTransientError: if there is no thread, nor can one be
            started.
        """
        with self._lock:
            if self._is_closing:
                raise RuntimeError(f"lane {self.name} is closed")
            if self._asleep and not self.run_queue.waiting:
                # Most often a lane is free, and finds here what it would ask for.
                lane = self._asleep.pop()
                self.run_queue.start(work, time.monotonic_ns())
                self._accepted(work)
                lane.work = work
                work.pause = lane.pause = Pause()
                lane.pause.lanes_each = self._lanes_each
                lane.wake.release()
                return
            to_stop = self.run_queue.add(work, time.monotonic_ns())
            self._accepted(work)
            if to_stop is not None:
                to_stop.pause.request()
            elif self._asleep:
                # By the waker, or two pieces of work would count on one sleeper.
                self._asleep.pop().wake.release()
            elif len(self._lanes) < self.run_queue.most_lanes:
                try:
                    self._start()
                except ResourceExhaustedTransientError:
                    if not self._lanes:  # else it waits for one of them
                        self.run_queue.discard(work)
                        raise

    def withdraw(self, work: Work) -> bool:
        """Take ``work`` back; False if it runs at the moment, then it soon ends."""
        with self._lock:
            work.is_withdrawn = True
            return self.run_queue.discard(work)

    def leave(self, work: Work) -> None:
        """Have another lane take the place of one that still goes on with ``work``.

        Nobody waits for that any more. There are twice as many lanes at most.
        """
        with self._lock:
            if work.keeps_its_lane or not self.run_queue.leave(work):
                return
            if self.run_queue.waiting and not self._is_closing:
                self._replace()

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
            return [lane.pause for lane in self._lanes if lane.work is not None]

    def give_up(self, pause: Pause) -> Work | None:
        """Dismiss the lane that runs with ``pause``, if any still does.

        Returns the work. The thread cannot be ended; another one takes its place.
        """
        with self._lock:
            for lane in self._lanes:
                if lane.pause is pause and lane.work is not None:
                    self._dismiss(lane, lane.work)
                    if self.run_queue.waiting:
                        self._replace()
                    return lane.work
        return None

    def give_up_all(self) -> list[Work]:
        """Dismiss every lane of closed lanes that still runs; return their work."""
        with self._lock:
            given_up: list[Work] = []
            for lane in tuple(self._lanes):
                if lane.work is not None:
                    self._dismiss(lane, lane.work)
                    given_up.append(lane.work)
            return given_up

    def close(self, status: ErrorStatus) -> list[Work]:
        """Take no more work, abort what runs; return the work that does not run."""
        with self._lock:
            self._is_closing = True
            # Under the lock, so that none of it is exchanged for other work meanwhile.
            for work in self.run_queue.running:
                work.abort(status)
            self._wake_all()
            return self.run_queue.clear()

    @property
    def have_ended(self) -> bool:
        """Whether no thread lives, but for those that were given up. Never waits."""
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        """Start another thread; the lock is held, for which the thread waits first."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        lane = Lane(self.name, self._serve)
        start_thread(lane.thread)
        self._lanes.append(lane)
        self._threads.append(lane.thread)

    def _dismiss(self, lane: Lane, work: Work) -> None:
        """Leave a lane to itself, with the work that it has; the lock is held."""
        lane.is_dismissed = True
        self._lanes.remove(lane)
        self._threads.remove(lane.thread)
        self.run_queue.end(work, time.monotonic_ns())

    def _replace(self) -> None:
        """Start a thread for what waits, if there may be one more, or let that fail.

        The lock is held.
        """
        if len(self._lanes) >= self.run_queue.most_lanes:
            return
        try:
            self._start()
        except ResourceExhaustedTransientError as error:
            if self._lanes:
                return
            for work in self.run_queue.clear():
                work.fail(error)
                self._completed(work)

    def _wake_all(self) -> None:
        while self._asleep:
            self._asleep.pop().wake.release()

    def _serve(self, lane: Lane) -> None:
        has_ended = False
        while self._next(lane, has_ended):
            has_ended = self._run(lane)

    def _run(self, lane: Lane) -> bool:
        """Advance the lane's work; tell whether it has ended."""
        work = lane.work
        assert work is not None
        try:
            has_ended = work.advance(lane.pause)
        except BaseException as error:
            fail_with(work, error)
            has_ended = True
        lane.has_ended = has_ended
        # The watchdog has reported what a dismissed lane worked on.
        if has_ended and not work.ends_anywhere and not lane.is_dismissed:
            self._completed(work)
        return has_ended

    def _next(self, lane: Lane, has_ended: bool) -> bool:
        """Exchange the lane's work for what is to run next; False if the thread ends.

        What ``ends_anywhere`` is reported here, as the last act: whoever is told may at
        once submit more, and finds the lane waiting and the interpreter free. No name
        refers to what has ended while the thread sleeps, so that its memory is freed.
        """
        ended = lane.work if has_ended else None
        if ended is not None and not ended.ends_anywhere:
            ended = None
        while True:
            with self._lock:
                if lane.is_dismissed:
                    ended = None
                dropped = self._exchange(lane, has_ended)
                is_idle = lane.work is None and not dropped and not lane.is_dismissed
                is_over = is_idle and self._is_closing
                if is_idle and not is_over:
                    self._asleep.append(lane)
            if ended is not None:
                self._completed(ended)
                ended = None
            if is_over:
                return False
            if is_idle:
                lane.wake.acquire()  # at once, if it was released in between
                if lane.work is not None and not lane.is_dismissed:
                    return True
                has_ended = False
                continue
            # Even if the lane is dismissed by now: nobody else knows of these.
            if dropped:
                self._report(dropped)
            if lane.is_dismissed:
                return False
            if lane.work is not None:
                return True
            has_ended = False

    def _lanes_each(self) -> int:
        busy = 0
        for lane in tuple(self._lanes):
            if lane.work is not None and not lane.has_ended:
                busy += 1
        return self.count // (busy or 1)

    def _report(self, dropped: list[Work]) -> None:
        for work in dropped:  # not in `_next`, which must keep no reference to it
            self._completed(work)

    def _exchange(self, lane: Lane, has_ended: bool) -> list[Work]:
        """Give the lane what is to run next; return what will not go on.

        The lock is held.
        """
        dropped: list[Work] = []
        if lane.is_dismissed:
            return dropped
        now_ns, processor_ns = time.monotonic_ns(), time.thread_time_ns()
        # Each thread of an engine has had as much as the lane's own.
        used_ns = (processor_ns - lane.processor_ns) * lane.pause.threads
        lane.processor_ns = processor_ns
        run_queue, previous = self.run_queue, lane.work
        if previous is not None:
            if has_ended:
                run_queue.end(previous, now_ns, used_ns)
                previous = None
            elif previous.is_withdrawn or self._is_closing:
                run_queue.end(previous, now_ns, used_ns)
                dropped.append(previous)
                previous = None
            else:
                run_queue.give_back(previous, now_ns, used_ns)
        lanes = len(self._lanes)
        if lanes > self.count and lanes > run_queue.most_lanes:
            # It has ended what was left to it, and another one is in its place.
            lane.work, lane.is_dismissed = None, True
            self._lanes.remove(lane)
            return dropped
        lane.work = work = run_queue.take(now_ns)
        if work is not None:
            at_ns = work.review_ns
            work.pause = lane.pause = Pause() if at_ns is None else TimedPause(at_ns)
            lane.pause.lanes_each = self._lanes_each
        lane.has_ended = False
        if previous is not None and work is not previous:
            previous.preemptions += 1
        while run_queue.missed:
            missed = run_queue.missed.popleft()
            missed.abort(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            dropped.append(missed)
        return dropped
