"""Threads without an interpreter, which run what an engine computes alone.

There are as many as lanes of Python, and as many again with a nice value for LOW work:
the system has these make way at once, where others do at a boundary. A thread cannot
take its nice value back, so it is of one kind for good. None ever takes the interpreter
lock: one with a nice value that did would keep all others waiting for a processor.
"""

import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.inbox import LoopInbox
from asyncnn.qos.work import Work

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
    ) -> None:
        self._name = name
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
            nice = NICE if idle is self.idle_nice else 0
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
        """Tell whether no thread lives, but for those that were given up."""
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
