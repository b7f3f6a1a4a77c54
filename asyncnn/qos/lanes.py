"""Worker threads that carry out what a run queue decides.

A lane of Python takes a job from the queue, advances it until it ends or has to pause,
and exchanges it for the next one. All decisions are taken under one lock, which no lane
holds while it works.

What an engine computes alone goes to a native lane, which knows nothing of Python: the
event loop exchanges its job when that has come back. Both kinds serve one queue, and
there are as many jobs on both together as there may be lanes.
"""

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import start_thread
from asyncnn.qos.inbox import LoopInbox
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import RUNNING, Pause, TimedPause, Work, fail_with


class IPort(Protocol):
    """Where native lanes leave what has ended; see `asyncnn.engine.job`."""

    def lane(self, name: str, nice: int = 0) -> Any:
        """Start a lane."""

    def drain(self) -> list[Any]:
        """Return what has come back."""
        ...


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


class NativeLane:
    """A thread without an interpreter, and the work that was offered to it."""

    __slots__ = ("is_dismissed", "thread", "work")

    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.work: Work | None = None
        self.is_dismissed = False


class Lanes:
    """Up to ``count`` threads that run work in the order of one run queue.

    Beside them are those that go on with work which was left to them, and up to
    ``count`` native ones, where ``make_port`` makes a port for these; no more run at a
    time. A thread starts when there is work for it. ``open`` has all work of which
    nobody has reported the end. What has ended goes to ``inbox``, or to ``finish_here``
    on its lane if it ``ends_anywhere``. Thread-safe, but for `collect`, and for what
    others read from ``run_queue``: its numbers may be a moment old.

    They take no work once there is a ``refusal``, which makes the error that says why.
    """

    def __init__(
        self,
        name: str,
        count: int,
        run_queue: RunQueue[Work],
        inbox: LoopInbox,
        finish_here: Callable[[Work], object],
        make_port: Callable[[int], IPort] | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self.run_queue = run_queue
        self.open: set[Work] = set()
        self.refusal: Callable[[], DeviceUnavailableError] | None = None
        self.inbox = inbox
        self._finish_here = finish_here
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._threads: list[threading.Thread] = []
        # The last one to fall asleep is woken first: its caches are the warmest.
        self._asleep: list[Lane] = []
        self._make_port = make_port
        self._port: IPort | None = None
        self._natives: list[NativeLane] = []
        self._idle: list[NativeLane] = []
        self._dismissed: list[NativeLane] = []
        self._ending: list[NativeLane] = []

    @property
    def threads(self) -> int:
        """Number of threads there are."""
        return len(self._lanes) + len(self._natives)

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
            if run_queue.room and not run_queue.waiting:
                # Most often a lane is free, and finds here what it would ask for.
                run_queue.admit(work, now_ns)
                run_queue.start(work, now_ns)
                self.open.add(work)
                if self._give(work):
                    return
                run_queue.wait(work, now_ns)
            else:
                to_stop = run_queue.add(work, now_ns)
                self.open.add(work)
                if to_stop is not None:
                    to_stop.pause.request()
                    return
                if not run_queue.room:
                    return
            if self._asleep:
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

    def collect(self) -> list[Work]:
        """Exchange what has come back from native lanes; return what has ended."""
        if self._port is None:
            return []
        ended: list[Work] = []
        for lane in self._port.drain():
            has_ended, used_ns = True, 0
            try:
                has_ended, used_ns = lane.work.come_back()
            except BaseException as error:
                fail_with(lane.work, error)
            if lane.is_dismissed:  # it was given up, and this was reported
                lane.work = None
                self._dismissed.remove(lane)
                self._ending.append(lane)
                continue
            with self._lock:
                self._exchange(lane, has_ended, used_ns, ended)
        return ended

    def end(self, due_s: float) -> None:
        """Have native lanes come back before the process ends, and report nothing."""
        for lane in self._natives:
            if lane.work is not None:
                lane.work.abort(ErrorStatus.DEVICE_UNAVAILABLE)
            lane.thread.close()
        while self._natives and time.monotonic() < due_s:
            self._natives = [
                lane for lane in self._natives if not lane.thread.has_ended
            ]
            time.sleep(0.001)
        for lane in () if self._port is None else self._port.drain():
            with suppress(Exception):
                lane.work.come_back()

    def release(self) -> None:
        """Give the descriptor of native lanes back, as the last act."""
        if not self._dismissed:  # one that is stuck may still want it
            self._port = None

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
                self._end_idle()

    def pauses(self) -> list[Pause]:
        """Return the pauses of all work that runs: each resumption has a new one."""
        with self._lock:
            works = [lane.work for lane in self._lanes]
            works += [lane.work for lane in self._natives]
            return [work.pause for work in works if work is not None]

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
            for native in tuple(self._natives):
                work = native.work
                if work is not None and work.pause in pauses:
                    given_up.append(work)
                    native.is_dismissed = True
                    native.thread.close()
                    self._natives.remove(native)
                    self._dismissed.append(native)
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
            self._end_idle()
            to_report = [work for work in waiting if not work.is_left]
            return to_report + [work for work in running if self._withdraw(work)]

    def disown(self, refusal: Callable[[], DeviceUnavailableError]) -> None:
        """Take no work in a forked child, which has none of the threads."""
        self.refusal = refusal
        self._lock = threading.Lock()  # one of them may have held that
        self._port = None

    @property
    def have_ended(self) -> bool:
        """Whether no thread lives, but for those that were given up. Never waits."""
        self._ending = [lane for lane in self._ending if not lane.thread.has_ended]
        is_native_left = self._natives or self._ending
        return not is_native_left and not any(
            thread.is_alive() for thread in self._threads
        )

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
                    self.inbox.put(work)

    def _wake_all(self) -> None:
        while self._asleep:
            self._asleep.pop().wake.release()

    def _end_idle(self) -> None:
        """End the threads of the native lanes that have nothing to do."""
        for lane in self._idle:
            lane.thread.close()
            self._natives.remove(lane)
        left = [lane for lane in self._ending if not lane.thread.has_ended]
        self._ending = left + self._idle
        self._idle = []

    def _give(self, work: Work) -> bool:
        """Give work that was started to a lane that has none; False if there is none.

        The lock is held.
        """
        at_ns = work.review_ns
        work.pause = pause = Pause() if at_ns is None else TimedPause(at_ns)
        pause.lanes_each = self.count // (self.count - self.run_queue.room) or 1
        if self._make_port is not None and work.offer(self._idle_native):
            self._idle.pop().work = work
            return True
        if not self._asleep:
            return False
        lane = self._asleep.pop()
        lane.work = work
        lane.wake.release()
        return True

    def _idle_native(self) -> NativeLane | None:
        """Return the native lane to be used next, if there is one; it stays idle."""
        if not self._idle:
            if len(self._natives) >= self.count or self.inbox.fd < 0:
                return None
            try:
                if self._port is None and self._make_port is not None:
                    self._port = self._make_port(self.inbox.fd)
                    _open_natives.add(self)
                assert self._port is not None
                lane = NativeLane(self._port.lane(self.name))
            except OSError:  # Python's do as well
                return None
            self._natives.append(lane)
            self._idle.append(lane)
        return self._idle[-1]

    def _serve(self, lane: Lane) -> None:
        # No name here refers to the work: its memory is freed while the thread sleeps.
        has_ended = False
        while self._exchange_here(lane, has_ended):
            lane.wake.acquire()
            has_ended = False
            if lane.work is None or lane.is_dismissed:
                continue
            try:
                has_ended = lane.work.advance(lane.work.pause)
            except BaseException as error:
                fail_with(lane.work, error)
                has_ended = True

    def _exchange_here(self, lane: Lane, has_ended: bool) -> bool:
        """Exchange the work of a lane of Python; False if its thread ends.

        What has ended is reported as the last act: whoever is told may at once submit
        more, and finds the lane waiting and the interpreter free.
        """
        ended: list[Work] = []
        with self._lock:
            if lane.is_dismissed:
                return False
            processor_ns = time.thread_time_ns()
            used_ns = processor_ns - lane.processor_ns
            lane.processor_ns = processor_ns
            self._exchange(lane, has_ended, used_ns, ended)
        for work in ended:
            if work.is_left:  # that was reported
                continue
            if work.ends_anywhere:
                self._finish_here(work)
            else:
                self.inbox.put(work)
        return not lane.is_dismissed

    def _exchange(
        self,
        lane: "Lane | NativeLane",
        has_ended: bool,
        used_ns: int,
        ended: list[Work],
    ) -> None:
        """Have the queue decide what runs next, on this lane or on another one.

        What has ended is added to ``ended``. The lock is held.
        """
        run_queue, work = self.run_queue, lane.work
        now_ns = time.monotonic_ns()
        is_preempted = False
        if work is not None:
            lane.work = None
            # Each thread of an engine has had as much as the lane's own.
            used_ns *= work.pause.threads
            if not has_ended and not work.keeps_its_lane:
                has_ended = work.is_withdrawn
            if has_ended or self.refusal is not None:
                run_queue.end(work, now_ns, used_ns)
                ended.append(work)
            else:
                run_queue.give_back(work, now_ns, used_ns)
                is_preempted = True
        if self.refusal is not None:
            lane.is_dismissed = True
        elif isinstance(lane, NativeLane):
            self._idle.append(lane)
        elif len(self._lanes) > self.count and len(self._lanes) > run_queue.most_lanes:
            # It has ended what was left to it, and another one is in its place.
            lane.is_dismissed = True
            self._lanes.remove(lane)
        else:
            self._asleep.append(lane)
        while run_queue.waiting and run_queue.room > 0:
            following = run_queue.take(now_ns)
            if following is None:
                break
            is_preempted = is_preempted and following is not work
            if not self._give(following):
                run_queue.give_back(following, now_ns, 0)
                self._start_another()
                break
        if is_preempted and work is not None:
            work.preemptions += 1
        if lane.is_dismissed and isinstance(lane, NativeLane):
            lane.thread.close()
            self._natives.remove(lane)
            self._ending.append(lane)
        while run_queue.missed:
            missed = run_queue.missed.popleft()
            missed.abort(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            ended.append(missed)


class _OpenNatives:
    """The lanes of this process that have native ones, and its end."""

    def __init__(self) -> None:
        self._open: WeakSet[Lanes] = WeakSet()

    def add(self, lanes: Lanes) -> None:
        if not self._open:
            # Called before the end of the engine, which was loaded earlier.
            atexit.register(self.end)
        self._open.add(lanes)

    def end(self) -> None:
        """Have all that runs come back, so that engines find their graphs free."""
        due = time.monotonic() + LONGEST_END_S
        for lanes in tuple(self._open):
            lanes.end(due)


LONGEST_END_S = 10.0
"""Seconds that the end of the process waits for native lanes that were left open."""

_open_natives = _OpenNatives()
