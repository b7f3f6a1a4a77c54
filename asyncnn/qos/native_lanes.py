"""Threads without an interpreter, and how all lanes notify the loop of what has ended.

Such threads run what an engine computes alone. There are as many as lanes of Python,
and as many again with a nice value for LOW work: the system has these make way at once,
where others do at a boundary. A thread cannot take its nice value back, so it is of one
kind for good. None ever takes the interpreter lock: one with a nice value that did
would keep all others waiting for a processor.
"""

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.work import Work
from asyncnn.turn import in_this_turn


class LoopInbox:
    """Has an event loop ``deliver`` the ``works`` that any thread has `put` here.

    That reads ``fd`` first, if there is one, and then sets ``is_due`` to False, so that
    whatever comes from there on wakes it again. It takes each away that it handles.

    An eventfd, once there is one to `open`, costs half of `loop.call_soon_threadsafe`,
    which takes its place where descriptors have run out. Belongs to the loop, but for
    `put` and `call`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._lock = threading.Lock()
        self.works: deque[Work] = deque()
        self.fd = -1
        self.is_due = False
        self.is_open = False

    def open(self) -> None:
        """Open the descriptor, if there is one."""
        self.is_open = True
        try:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            return
        self.fd = fd
        try:
            self._listen(self._deliver)
        except OSError:  # there is no room among what the system watches
            self.fd = -1
            os.close(fd)

    def listen_by(self, deliver: Callable[[], object]) -> None:
        """Have the loop call this in place of what it calls now; from any thread."""

        def listen() -> None:
            if self.fd >= 0:
                self._listen(deliver)

        self.call(listen)

    def _listen(self, deliver: Callable[[], object]) -> None:
        # In no context: the caller's would keep its client for as long.
        Context().run(self._loop.add_reader, self.fd, in_this_turn, deliver)

    def call(self, function: Callable[[], object]) -> bool:
        """Have the loop call ``function``; False if it is closed, so nobody waits."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def put(self, work: Work) -> None:
        """Have the loop handle ``work`` soon; nothing happens if it is closed."""
        self.works.append(work)
        if self.is_due:  # it comes to all that is there by then
            return
        self.is_due = True
        # A thread that was given up may come here late, when another file has the
        # number of a descriptor that was closed.
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)
                return
        self.call(self._deliver)

    def deliver_soon(self) -> None:
        """Have the loop come to what is left, in its next turn."""
        self._loop.call_soon(self._deliver)

    def close(self) -> None:
        """Give the descriptor back; earlier and later calls of `put` still work."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
            if self.is_due:
                self.deliver_soon()

    def __del__(self) -> None:
        if self.fd >= 0:  # the loop has ended before its scheduler was closed
            os.close(self.fd)


NICE = 10
"""The nice value of lanes for LOW work: a tenth of a busy processor is left to them.

From 15 on, that would be next to nothing beside a few busy threads of others.
"""

LONGEST_END_S = 10.0
"""Seconds that the end of the process waits for lanes that were left open."""


Ended: TypeAlias = tuple[Any, int | BaseException | None, int, int, int]
"""The token of a run that a lane has left; how it ended, or what it raises.

Then when the lane began and ended it, on the steady clock, and its processor time, in
nanoseconds. None stands for an end that the run itself knows all of.
"""


class ILane(Protocol):
    """A thread for runs of jobs; it ends when it is closed, or freed."""

    @property
    def has_ended(self) -> bool:
        """Whether there is no thread any more."""

    def close(self) -> None:
        """Have the thread end as soon as it has nothing to run."""


class ILanePort(Protocol):
    """Where lanes leave what has ended, and write to an eventfd that never blocks."""

    def lane(self, name: str, nice: int = 0) -> ILane:
        """Start a lane, with a name for the system's tools and a nice value.

        :raises OSError: if there can be none.
        """
        ...

    def drain(self, ended: list[Ended], /) -> None:
        """Read from that, and add what has ended, in this order."""

    def bring(self, ended: list[Ended], look: Callable[[], object], /) -> object:
        """Do that, then call ``look``: one call for the loop."""
        self.drain(ended)
        return look()


class NativeLane:
    """A thread and the work that was offered to it; one of ``idle`` without any.

    Work that ``is_aside`` makes way for other work without a stop.
    """

    __slots__ = ("idle", "is_aside", "is_dismissed", "thread", "work")

    def __init__(self, thread: Any, idle: "list[NativeLane]") -> None:
        self.thread = thread
        self.idle = idle
        self.work: Work | None = None
        self.is_aside = self.is_dismissed = False


class NativeLanes:
    """Up to ``count`` lanes of each kind, where ``make_port`` makes a port for these.

    ``returned`` have come back, and ``take_back`` has yet to look at them. Of work that
    has raised something, ``failures`` have yet to be reported. Those that
    are ``dismissed`` were given up with their work, the threads of those ``ending``
    have yet to end. What comes back wakes the loop as the inbox does. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        count: int,
        inbox: LoopInbox,
        make_port: Callable[[int], ILanePort] | None,
        take_back: Callable[[], None],
        nice: int,
    ) -> None:
        self._name = name
        self.nice = nice
        self._count = count
        self._inbox = inbox
        self._make_port = make_port
        self._take_back = take_back
        self.port: ILanePort | None = None
        self.returned: list[Ended] = []
        self.failures: list[tuple[Work, BaseException]] = []
        self.lanes: list[NativeLane] = []
        self.dismissed: list[NativeLane] = []
        self.ending: list[NativeLane] = []
        self.idle: list[NativeLane] = []
        self.idle_nice: list[NativeLane] = []

    def add(self, idle: list[NativeLane]) -> bool:
        """Start a lane that is idle; False if there can be none."""
        fd, make_port = self._inbox.fd, self._make_port
        there_are = sum(lane.idle is idle for lane in self.lanes)
        if make_port is None or fd < 0 or there_are >= self._count:
            return False
        try:
            if self.port is None:
                self.port = make_port(fd)
                self._inbox.listen_by(
                    partial(self.port.bring, self.returned, self._take_back)
                )
                _open.add(self)
            nice = self.nice + (NICE if idle is self.idle_nice else 0)
            lane = NativeLane(self.port.lane(self._name, nice), idle)
        except OSError:  # Python's do as well
            return False
        self.lanes.append(lane)
        idle.append(lane)
        return True

    def dismiss(self, lane: NativeLane) -> None:
        """End the thread of a lane, at once or when its work comes back."""
        lane.is_dismissed = True
        lane.thread.close()
        self.lanes.remove(lane)
        (self.ending if lane.work is None else self.dismissed).append(lane)

    def end_idle(self) -> None:
        """End the threads that have nothing to do."""
        self.have_ended()  # of those before
        for idle in self.idle, self.idle_nice:
            while idle:
                self.dismiss(idle.pop())

    def have_ended(self) -> bool:
        """Return whether no thread lives, but for those that were given up."""
        self.ending = [lane for lane in self.ending if not lane.thread.has_ended]
        return not (self.lanes or self.ending)

    def disown(self) -> None:
        """Forget all in a forked child."""
        self.port = None
        self.lanes = []

    def release(self) -> None:
        """Give the descriptor back, as the last act."""
        if not self.dismissed:  # one that is stuck may still want it
            self.port = None

    def end(self, due_s: float) -> None:
        """Have all come back before the process ends, and report nothing."""
        for lane in self.lanes:
            if lane.work is not None:
                lane.work.abort(ErrorStatus.DEVICE_UNAVAILABLE)
            lane.thread.close()
        while time.monotonic() < due_s and not all(
            lane.thread.has_ended for lane in self.lanes
        ):
            time.sleep(0.001)
        if self.port is not None:
            self.port.drain(self.returned)
        for lane, *end in self.returned:
            with suppress(Exception):
                if lane.work is not None and end[0] is not None:
                    lane.work.come_back(*end)


class _Open:
    """The lanes of this process, and its end.

    An engine's end waits for its graphs. A lane that nobody has closed gives back that
    of its work here only, where its loop does not come to that any more.
    """

    def __init__(self) -> None:
        self._lanes: WeakSet[NativeLanes] = WeakSet()

    def add(self, lanes: NativeLanes) -> None:
        if not self._lanes:
            # Called before the end of the engine, which was loaded earlier.
            atexit.register(self.end)
        self._lanes.add(lanes)

    def end(self) -> None:
        due_s = time.monotonic() + LONGEST_END_S
        for lanes in tuple(self._lanes):
            lanes.end(due_s)


_open = _Open()
