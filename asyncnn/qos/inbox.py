"""How lanes notify the event loop that work has come to its end."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context

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
