"""How lanes tell the event loop that work has come to its end."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context

from asyncnn.qos.work import Work
from asyncnn.turn import in_this_turn


class LoopInbox:
    """Has an event loop ``handle`` each piece of work that any thread has `put` here.

    Before it does, it has the lanes ``collect`` what has ended without any thread.

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
        self.collect: Callable[[], Iterable[Work]] = tuple

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

    @property
    def fd(self) -> int:
        """The descriptor; -1 if there is none."""
        return self._fd

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
        works.extend(self.collect())
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
