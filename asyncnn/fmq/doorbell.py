"""Doorbells: what a sleeping end waits for, and what its peer rings.

The two ends do not trust each other alike. The one that opens a queue, usually a
driver, must not come to a halt whatever the other one does to the bells. That rules out
an eventfd for it to ring: who holds another descriptor of the same eventfd can fill it
and have it block. It also rules out a socket for it to listen at, whose other holders
can keep a reader waiting. Hence the end that created the queue is woken through a
datagram socket, and the one that opened it through an eventfd, which is read without
waiting.
"""

import contextlib
import fcntl
import os
import select
import socket
from typing import Protocol

from asyncnn.fmq.layout import MemoryOrderError
from asyncnn.hal.errors import InvalidArgumentError

_EVENTFD = "anon_inode:[eventfd]"
_RING = b"\0"


class Bell(Protocol):
    """One end's bell, owned with its descriptor."""

    def fileno(self) -> int:
        """Return the descriptor, which polls readable once the bell has rung."""
        ...

    def ring(self) -> None:
        """Wake whoever listens; never waits, and never fails."""
        ...

    def silence(self) -> None:
        """Take back what has been rung; never waits."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class EventBell:
    """The bell of the end that opens a queue."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffers = [bytearray(8)]

    @classmethod
    def create(cls) -> "EventBell":
        """Return a new bell.

        :raises OSError: if descriptors have run out.
        """
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def fileno(self) -> int:
        """Return the eventfd."""
        return self._fd

    def ring(self) -> None:
        """Wake the end that opened the queue, if it plays fair."""
        with contextlib.suppress(OSError):  # full: it has been rung
            os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        """Take back all rings so far, whatever flags the eventfd has."""
        with contextlib.suppress(BlockingIOError):
            os.preadv(self._fd, self._buffers, -1, os.RWF_NOWAIT)

    def close(self) -> None:
        """Close the eventfd."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SocketBell:
    """Either side of the bell of the end that created a queue."""

    def __init__(self, side: socket.socket) -> None:
        self._side = side

    @classmethod
    def pair(cls) -> "tuple[SocketBell, SocketBell]":
        """Return the side to listen at and the one to ring.

        :raises OSError: if descriptors have run out.
        """
        listener, ringer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return cls(listener), cls(ringer)

    def fileno(self) -> int:
        """Return the descriptor of this side."""
        return self._side.fileno()

    def ring(self) -> None:
        """Wake the end that created the queue, if it is there and listens."""
        # A stranger chose the socket and may do with it as he likes: what was written
        # stays written whether or not he can be told.
        with contextlib.suppress(OSError):
            self._side.send(_RING, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def silence(self) -> None:
        """Take back one ring; a sleeper is rung once, more are spurious."""
        with contextlib.suppress(OSError):
            self._side.recv(1, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close this side."""
        self._side.close()


def received_event_bell(fd: int) -> EventBell:
    """Return the bell to listen at whose descriptor a stranger sent.

    It has a duplicate of ``fd``.

    :raises InvalidArgumentError: if that is no eventfd.
    :raises MemoryOrderError: if this Linux cannot read one without waiting.
    :raises OSError: if descriptors have run out.
    """
    if os.readlink(f"/proc/self/fd/{fd}") != _EVENTFD:
        raise InvalidArgumentError("the bell of a queue is no eventfd")
    bell = EventBell(_duplicate(fd))
    try:
        bell.silence()
    except OSError as error:
        bell.close()
        raise MemoryOrderError(
            f"an eventfd cannot be read without waiting: {error.strerror}",
            hint="queues need Linux 5.8",
        ) from error
    return bell


def received_socket_bell(fd: int) -> SocketBell:
    """Return the bell to ring whose descriptor a stranger sent.

    It has a duplicate of ``fd``.

    :raises InvalidArgumentError: if that is no Unix datagram socket.
    :raises OSError: if descriptors have run out.
    """
    duplicate = _duplicate(fd)
    try:
        side = socket.socket(fileno=duplicate)
    except OSError as error:
        os.close(duplicate)
        raise InvalidArgumentError("the bell of a queue is no socket") from error
    if (side.family, side.type) != (socket.AF_UNIX, socket.SOCK_DGRAM):
        side.close()
        raise InvalidArgumentError("the bell of a queue is no datagram socket")
    return SocketBell(side)


def wait_for(bell: Bell, timeout_ms: float | None) -> None:
    """Block this thread until ``bell`` has rung or time is over, and silence it."""
    poll = select.poll()
    poll.register(bell.fileno(), select.POLLIN)
    poll.poll(timeout_ms)
    bell.silence()


def _duplicate(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
