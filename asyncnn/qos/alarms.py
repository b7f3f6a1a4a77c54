"""Calls at absolute times of the steady clock, on an event loop, to within 0.1 ms.

A timer of the loop is late by up to a millisecond: its selector waits for whole ones.
That is as long as several parts of a model, so a run that has missed its deadline would
keep its lane for several times what it must. And a loop that has one sets an alarm of
the system each time it waits, and cancels it when it wakes up: on a virtual machine
that costs some microseconds, twice per execution. The system's own timer, a descriptor
that the loop watches, costs nothing until it fires; and it is set for the earliest time
alone, so most deadlines cost no system call at all.
"""

import asyncio
import contextlib
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from contextvars import Context
from itertools import count
from weakref import WeakKeyDictionary, ref

from asyncnn.interpreter_hooks import disown_in_children

_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_NS = 1_000_000_000

_NEVER = 2**63
_FURTHEST_S = 2**31
"""Set for a later time, the timer is set anew when it has fired."""

_MOST_STALE = 64


class _Setting(ctypes.Structure):
    """struct itimerspec, of a system whose long is its time_t."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None)


def _new_timer() -> int:
    """Return a descriptor, or a negative number if there is none."""
    fd: int = _libc.timerfd_create(_MONOTONIC, _FLAGS)
    return fd


class Alarm:
    """One call that is due; `Alarms.call_at` makes it."""

    __slots__ = ("_alarms", "callback")

    def __init__(self, alarms: "Alarms", callback: Callable[[], None]) -> None:
        self._alarms = alarms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call; nothing happens if it was called already."""
        if self.callback is not None:
            self.callback = None
            self._alarms.forget_one()


class Alarms:
    """The alarms of one event loop, by one descriptor. Belongs to the loop.

    The descriptor is open while an alarm is set. If none is to be had, a timer of the
    loop takes its place, and alarms may be a millisecond late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[int, int, Alarm]] = []
        self._serial = count()
        self._set = 0
        self._fd = -1
        self._at_ns = _NEVER
        self._fallback: asyncio.TimerHandle | None = None
        self._is_ours = True
        disown_in_children(self)

    def __len__(self) -> int:
        """Return how many are remembered, cancelled ones among them."""
        return len(self._due)

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Alarm:
        """Call ``callback`` at a time of `time.monotonic_ns`, at once if it is past."""
        alarm = Alarm(self, callback)
        heapq.heappush(self._due, (at_ns, next(self._serial), alarm))
        self._set += 1
        if at_ns < self._at_ns and self._is_ours:
            self._arm(at_ns)
        return alarm

    def forget_one(self) -> None:
        """Let go of an alarm that was cancelled."""
        self._set -= 1
        # The timer stays as it is: to fire once in vain costs less than to set it anew.
        stale = len(self._due) - self._set
        if not self._set:
            self.close()
        elif stale > _MOST_STALE and stale > self._set:
            self._due = [entry for entry in self._due if entry[-1].callback is not None]
            heapq.heapify(self._due)

    def close(self) -> None:
        """Give the descriptor back, and call nothing; the next alarm opens another."""
        for *_, alarm in self._due:
            alarm.callback = None
        self._due.clear()
        self._set = 0
        if self._fallback is not None:
            self._fallback.cancel()
            self._fallback = None
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd, self._at_ns = -1, _NEVER

    def disown(self) -> None:
        """Leave the descriptor to the parent of this forked child."""
        self._fd, self._is_ours = -1, False

    def __del__(self) -> None:
        if self._fd >= 0:  # the loop has ended before it was closed
            os.close(self._fd)

    def _arm(self, at_ns: int) -> None:
        self._at_ns = at_ns
        if self._fd < 0:
            self._open()
        if self._fd >= 0:
            # A time of 0 would switch the timer off.
            seconds, rest_ns = divmod(max(at_ns, 1), _NS)
            setting = _Setting(0, 0, min(seconds, _FURTHEST_S), rest_ns)
            _libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(setting), None)
            return
        if self._fallback is not None:
            self._fallback.cancel()
        delay_s = max(at_ns - time.monotonic_ns(), 0) / _NS
        self._fallback = self._loop.call_later(delay_s, self._fire)

    def _open(self) -> None:
        fd = _new_timer()
        if fd < 0:
            return
        try:
            # In no context: the caller's would keep its client for as long.
            Context().run(self._loop.add_reader, fd, self._read)
        except OSError:  # there is no room among what the system watches
            os.close(fd)
            return
        self._fd = fd

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has been set anew meanwhile
            os.read(self._fd, 8)
        self._fire()

    def _fire(self) -> None:
        """Call what is due, and set the timer for what comes next."""
        self._fallback, self._at_ns = None, _NEVER
        now_ns = time.monotonic_ns()
        try:
            # What is called may set alarms, cancel some, close this, or raise.
            while self._due:
                at_ns, _, alarm = self._due[0]
                if alarm.callback is not None and at_ns > now_ns:
                    break
                heapq.heappop(self._due)
                self._call(alarm)
        finally:
            if not self._set:
                self.close()
            elif self._due[0][0] < self._at_ns:
                self._arm(self._due[0][0])

    def _call(self, alarm: Alarm) -> None:
        callback, alarm.callback = alarm.callback, None
        if callback is not None:
            self._set -= 1
            callback()


# A loop keeps its alarms while one is set, or they would keep the loop.
_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Alarms]]
_of_loops = WeakKeyDictionary()


def loop_alarms() -> Alarms:
    """Return the alarms of the running loop, which all in it have in common."""
    loop = asyncio.get_running_loop()
    known = _of_loops.get(loop)
    alarms = None if known is None else known()
    if alarms is None:
        alarms = Alarms(loop)
        _of_loops[loop] = ref(alarms)
    return alarms
