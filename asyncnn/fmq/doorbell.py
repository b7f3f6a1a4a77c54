"""Doorbells: what a sleeping end waits for, and what its peer rings.

The two ends do not trust each other alike. The end that opens a queue, usually a
driver, must not come to a halt whatever its peer does to the doorbells. That rules out
an eventfd for it to ring: a process that has another descriptor of it can fill it and
make the writer block. It also rules out a socket for it to listen at, whose other
holders can keep a reader waiting. Hence the end that created the queue is woken
through a datagram socket, and the end that opened it through an eventfd, which is read
without waiting.
"""

import contextlib
import fcntl
import os
import select
import socket
from typing import TypeAlias

from asyncnn.fmq.layout import MemoryOrderError
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.descriptors import close_received, hang_up

_EVENTFD = "anon_inode:[eventfd]"
_RING = b"\0"


class EventDoorbell:
    """The doorbell of the end that opens a queue: an eventfd."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffers = [bytearray(8)]

    @classmethod
    def create(cls) -> "EventDoorbell":
        """Return a new doorbell.

        :raises OSError: if descriptors have run out.
        """
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    @classmethod
    def received(cls, fd: int) -> "EventDoorbell":
        """Return the doorbell to listen at that a peer sent; ``fd`` is duplicated.

        :raises InvalidArgumentError: if that is no eventfd.
        :raises MemoryOrderError: if this Linux cannot read one without waiting.
        :raises OSError: if descriptors have run out.
        """
        if os.readlink(f"/proc/self/fd/{fd}") != _EVENTFD:
            raise InvalidArgumentError("a doorbell of a queue is no eventfd")
        doorbell = cls(_duplicate(fd))
        try:
            doorbell.silence()
        except OSError as error:
            doorbell.close()
            raise MemoryOrderError(
                f"an eventfd cannot be read without waiting: {error.strerror}",
                hint="queues need Linux 5.8",
            ) from error
        return doorbell

    def fileno(self) -> int:
        """Return the eventfd."""
        return self._fd

    def ring(self) -> None:
        """Wake the end that opened the queue, unless that has spoilt its eventfd."""
        with contextlib.suppress(OSError):  # a full one was rung before
            os.eventfd_write(self._fd, 1)

    def silence(self) -> None:
        """Take back all rings so far, whatever flags the eventfd has."""
        # The peer shares the flags and may have cleared O_NONBLOCK: ask in each call.
        with contextlib.suppress(BlockingIOError):
            os.preadv(self._fd, self._buffers, -1, os.RWF_NOWAIT)

    def close(self) -> None:
        """Close the eventfd."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SocketDoorbell:
    """Either side of the doorbell of the end that created a queue: a socket pair."""

    def __init__(self, side: socket.socket, *, is_received: bool = False) -> None:
        self._side = side
        self._is_received = is_received

    @classmethod
    def pair(cls) -> "tuple[SocketDoorbell, SocketDoorbell]":
        """Return the side to listen at and the one to ring.

        :raises OSError: if descriptors have run out.
        """
        listener, ringer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return cls(listener), cls(ringer)

    @classmethod
    def received(cls, fd: int) -> "SocketDoorbell":
        """Return the side to ring that a peer sent; ``fd`` is duplicated.

        :raises InvalidArgumentError: if that is no Unix datagram socket.
        :raises OSError: if descriptors have run out.
        """
        duplicate = _duplicate(fd)
        try:
            side = socket.socket(fileno=duplicate)
        except OSError as error:
            close_received([duplicate])
            raise InvalidArgumentError(
                "the doorbell of a queue is no socket"
            ) from error
        if (side.family, side.type) != (socket.AF_UNIX, socket.SOCK_DGRAM):
            close_received([side.detach()])
            raise InvalidArgumentError("a doorbell of a queue is no datagram socket")
        return cls(side, is_received=True)

    def fileno(self) -> int:
        """Return the descriptor of this side."""
        return self._side.fileno()

    def ring(self) -> None:
        """Wake the end that created the queue, if it is there and listens."""
        # The peer chose the socket and may do anything to it: what was written stays
        # written whether or not the peer can be woken.
        with contextlib.suppress(OSError):
            self._side.send(_RING, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def silence(self) -> None:
        """Take back one ring; a sleeper is rung once, any more are spurious."""
        with contextlib.suppress(OSError):
            self._side.recv(1, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close this side."""
        if self._is_received:
            # Who shares this side may go on ringing, and nobody listens at it.
            hang_up(self._side, socket.SHUT_RD)
        else:
            self._side.close()


Doorbell: TypeAlias = EventDoorbell | SocketDoorbell


def wait_for(doorbell: Doorbell, timeout_ms: float | None) -> None:
    """Block this thread until ``doorbell`` is rung or time is over, and silence it."""
    poll = select.poll()
    poll.register(doorbell.fileno(), select.POLLIN)
    poll.poll(timeout_ms)
    doorbell.silence()


def _duplicate(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
