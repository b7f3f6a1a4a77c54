"""Timers for what happens rarely, which cost the event loop nothing until they fire.

A loop that has a timer of its own sets an alarm of the system each time it waits, and
cancels it when it wakes up: on a virtual machine that costs some microseconds, twice
per execution. Here one thread sleeps for all loops of the process; it exists while
there are timers. Where no thread can be started, the loop's own timers take its place.
"""

import asyncio
import contextlib
import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count

from asyncnn.errors import ResourceExhaustedTransientError
from asyncnn.offload import start_thread


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
