"""Worker threads that carry out what a roster decides."""

import asyncio
import contextlib
import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import start_thread
from asyncnn.qos.run_queue import Policy, Roster
from asyncnn.qos.work import Pause, TimedPause, Work, fail_with


class Lane:
    """One worker thread: the work it has and the pause that it looks at.

    A lane that ``is_dismissed`` takes no more work; what it does is of no interest.
    """

    __slots__ = ("is_dismissed", "pause", "thread", "work")

    def __init__(self, name: str, serve: Callable[["Lane"], None]) -> None:
        self.thread = threading.Thread(
            target=serve, args=(self,), name=name, daemon=True
        )
        self.work: Work | None = None
        self.pause = Pause()
        self.is_dismissed = False


class Lanes:
    """Up to ``count`` threads that run work in the order of one roster.

    A thread starts when there is work for it. ``completed`` is called on it for each
    piece that has ended and must not block. Thread-safe.
    """

    def __init__(
        self,
        name: str,
        count: int,
        policy: Policy,
        completed: Callable[[Work], None],
    ) -> None:
        self._name = name
        self._count = count
        self._completed = completed
        self._roster: Roster[Work] = Roster(policy, count)
        # Taken by itself, since a condition takes it by calls of Python functions.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        self._sleeping = 0
        self._is_closing = False

    @property
    def roster(self) -> Roster[Work]:
        """The roster, to read from: numbers of it may be a moment old."""
        return self._roster

    @property
    def threads(self) -> int:
        """Number of threads there are."""
        return len(self._lanes)

    def submit(self, work: Work) -> None:
        """Let ``work`` wait for its turn.

        :raises RuntimeError: if the lanes are closed.
        :raises ResourceExhaustedTransientError: if there is no thread, nor can one be
            started.
        """
        with self._lock:
            if self._is_closing:
                raise RuntimeError(f"lane {self._name} is closed")
            to_stop = self._roster.add(work, time.monotonic_ns())
            if to_stop is not None:
                to_stop.pause.requested = True
            elif self._sleeping:
                self._sleeping -= 1
                self._changed.notify()
            elif len(self._lanes) < self._count:
                try:
                    self._start()
                except ResourceExhaustedTransientError:
                    if not self._lanes:  # else it waits for one of them
                        self._roster.discard(work)
                        raise

    def withdraw(self, work: Work) -> bool:
        """Take ``work`` back; False if it runs at the moment, then it soon ends."""
        with self._lock:
            work.is_withdrawn = True
            return self._roster.discard(work)

    def retire(self) -> None:
        """End the threads that have nothing to do; new work starts them again."""
        with self._lock:
            if not self._roster.waiting:
                for lane in self._lanes:
                    lane.is_dismissed = lane.work is None
                self._lanes = [lane for lane in self._lanes if not lane.is_dismissed]
                self._wake_all()

    def pauses(self) -> list[Pause]:
        """Return the pause of each piece of work that runs: a new one per turn."""
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
                    if self._roster.waiting:
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
            for work in self._roster.running:
                work.abort(status)
            self._wake_all()
            return self._roster.clear()

    @property
    def have_ended(self) -> bool:
        """Whether no thread lives, but for those that were given up. Never waits."""
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        """Start another thread; the lock is held.

        :raises ResourceExhaustedTransientError: if the system has no more.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        lane = Lane(self._name, self._serve)
        start_thread(lane.thread)  # it waits for the lock first of all
        self._lanes.append(lane)
        self._threads.append(lane.thread)

    def _dismiss(self, lane: Lane, work: Work) -> None:
        """Leave a lane to itself, with the work that it has; the lock is held."""
        lane.is_dismissed = True
        self._lanes.remove(lane)
        self._threads.remove(lane.thread)
        self._roster.end(work, time.monotonic_ns())

    def _replace(self) -> None:
        """Start a thread for what waits, or let that fail; the lock is held."""
        try:
            self._start()
        except ResourceExhaustedTransientError as error:
            if self._lanes:
                return
            for work in self._roster.clear():
                work.fail(error)
                self._completed(work)

    def _wake_all(self) -> None:
        self._sleeping = 0
        self._changed.notify_all()

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
        if has_ended and not lane.is_dismissed:
            self._completed(work)
        return has_ended

    def _next(self, lane: Lane, has_ended: bool) -> bool:
        """Exchange the lane's work for that whose turn it is; False at the very end.

        No name refers to what has ended while the thread sleeps.
        """
        while True:
            with self._lock:
                dropped = self._exchange(lane, has_ended)
                if lane.work is None and not dropped and not lane.is_dismissed:
                    if self._is_closing:
                        return False
                    self._sleeping += 1
                    self._changed.wait()
                    dropped = self._exchange(lane, has_ended=False)
            # First: the lane may have been dismissed since it took these over.
            if dropped:
                self._report(dropped)
            if lane.is_dismissed:
                return False
            if lane.work is not None:
                return True
            has_ended = False

    def _report(self, dropped: list[Work]) -> None:
        for work in dropped:
            self._completed(work)

    def _exchange(self, lane: Lane, has_ended: bool) -> list[Work]:
        """Give the lane the work whose turn it is; return what will not go on."""
        dropped: list[Work] = []
        if lane.is_dismissed:
            return dropped
        now_ns = time.monotonic_ns()
        roster, previous = self._roster, lane.work
        if previous is not None:
            if has_ended:
                roster.end(previous, now_ns)
                previous = None
            elif previous.is_withdrawn or self._is_closing:
                roster.end(previous, now_ns)
                dropped.append(previous)
                previous = None
            else:
                roster.give_back(previous, now_ns)
        lane.work = work = roster.take(now_ns)
        if work is not None:
            at_ns = work.review_ns
            work.pause = lane.pause = Pause() if at_ns is None else TimedPause(at_ns)
        if previous is not None and work is not previous:
            previous.preemptions += 1
        while roster.missed:
            missed = roster.missed.popleft()
            missed.abort(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            dropped.append(missed)
        return dropped


class CoarseTimer:
    """Calls ``callback`` once on the running loop, ``delay_s`` seconds from now.

    It may come some milliseconds late.
    """

    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = callback
        self._instead: asyncio.TimerHandle | None = None
        try:
            _sleeper.add(time.monotonic() + delay_s, self)
        except ResourceExhaustedTransientError:
            self._instead = self._loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Do not call; nothing happens if it was called already."""
        if self._callback is not None:
            self._callback = None
            if self._instead is None:
                _sleeper.remove(self)
            else:
                self._instead.cancel()

    def expire(self) -> None:
        """Let the loop call; for the thread that sleeps."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class _Sleeper:
    """The thread, and the timers that it waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._timers: list[tuple[float, int, CoarseTimer]] = []
        self._serial = count()
        self._thread: threading.Thread | None = None
        self._leaving: threading.Thread | None = None

    @property
    def has_left(self) -> bool:
        """Whether the last thread that was not needed any more has ended."""
        leaving = self._leaving
        return leaving is None or not leaving.is_alive()

    def add(self, due: float, timer: CoarseTimer) -> None:
        with self._changed:
            heapq.heappush(self._timers, (due, next(self._serial), timer))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._sleep, name="asyncnn-timer", daemon=True
                )
                self._thread = thread  # it waits for the lock, then looks
                try:
                    start_thread(thread)
                except ResourceExhaustedTransientError:
                    self._thread = None
                    self._timers.clear()
                    raise
            elif self._timers[0][-1] is timer:
                self._changed.notify_all()

    def remove(self, timer: CoarseTimer) -> None:
        with self._changed:
            self._timers = [entry for entry in self._timers if entry[-1] is not timer]
            heapq.heapify(self._timers)
            if not self._timers and self._thread is not None:
                self._leaving, self._thread = self._thread, None
                self._changed.notify_all()

    def _sleep(self) -> None:
        me = threading.current_thread()
        with self._changed:
            while self._thread is me:
                left = self._timers[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                heapq.heappop(self._timers)[-1].expire()
                if not self._timers:
                    self._leaving, self._thread = me, None


_sleeper = _Sleeper()


def _begin_anew() -> None:
    """Have another in a forked child, which has neither the thread nor its timers."""
    global _sleeper
    _sleeper = _Sleeper()


os.register_at_fork(after_in_child=_begin_anew)


def sleeper_has_left() -> bool:
    """Tell whether no thread of timers lives that has none to wait for."""
    return _sleeper.has_left
