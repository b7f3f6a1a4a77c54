"""Fences that are signalled within this process."""

import fcntl
import os
import select
import stat
import struct
import termios
import threading
import time
import weakref
from contextlib import suppress

from asyncnn.fences.core import Core, Outcome, Producer
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.pages import Descriptor, os_errors

OWNER_IS_GONE = "the owner of the fence is gone"

_MOST_BYTES = 1 + max(ErrorStatus)
_COUNT = struct.Struct("i")


class WriteEnd:
    """The end of the pipe that the owner holds; it closes with the last reference."""

    __slots__ = ("__weakref__", "_close")

    def __init__(self, fd: int) -> None:
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False
        _write_ends.add(self)

    @classmethod
    def received(cls, fd: int) -> "WriteEnd":
        """Take a duplicate of an end that a peer sent, and that he cannot make block.

        :raises InvalidArgumentError: if ``fd`` is no pipe that can be written.
        """
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise InvalidArgumentError(f"descriptor {fd} is not a pipe")
            # Flags are shared by all duplicates of an end: open one of our own.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return cls(os.open(f"/proc/self/fd/{fd}", flags))
        except OSError as error:
            raise InvalidArgumentError(
                f"descriptor {fd} cannot signal a fence: {error.strerror}"
            ) from error

    def write(self, outcome: Outcome) -> None:
        """Write how the fence ended and close; does nothing the second time.

        What a peer with another write end has said before stays the outcome.
        """
        detached = self._close.detach()
        if detached is None:
            return
        _, close, (fd,), _ = detached
        # A reader may be gone, and a peer may have filled or locked his own pipe.
        with suppress(OSError):
            if not bytes_waiting(fd):
                if outcome.at_ns is not None:
                    with suppress(OSError):
                        os.utime(fd, ns=(outcome.at_ns, outcome.at_ns))
                os.write(fd, bytes(1 + outcome.status))
        close(fd)

    def close(self) -> None:
        """Close without a word, which readers take for the owner's death."""
        self._close()


_write_ends: "weakref.WeakSet[WriteEnd]" = weakref.WeakSet()


def open_pipe() -> tuple[int, int]:
    """Return the descriptors of the read end and the write end of a new pipe.

    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """
    with os_errors("a fence's pipe"):
        return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def outcome_in_pipe(fd: int, events: int) -> Outcome | None:
    """Return what the owner wrote; ``events`` are those that a poll found."""
    if not events & select.POLLIN:
        if events & select.POLLHUP:
            return Outcome(ErrorStatus.DEVICE_UNAVAILABLE, OWNER_IS_GONE, None)
        return None
    count = bytes_waiting(fd)
    if not 1 <= count <= _MOST_BYTES:
        reason = f"the pipe of a fence holds {count} bytes, which stand for no status"
        return Outcome(ErrorStatus.GENERAL_FAILURE, reason, None)
    return Outcome(ErrorStatus(count - 1), "", _written_at_ns(fd))


def bytes_waiting(fd: int) -> int:
    """Return how many bytes of a pipe or a socket wait to be read."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(_COUNT.size))
    return int(_COUNT.unpack(answer)[0])


def _written_at_ns(fd: int) -> int | None:
    """Return the noted time. One that is still to come is the clock on the wall's."""
    at_ns = os.fstat(fd).st_atime_ns
    return at_ns if 0 < at_ns <= time.monotonic_ns() else None


def _forsake_write_ends() -> None:
    """Leave the pipes of the parent to it: a copy here would hide its death."""
    for end in list(_write_ends):
        end.close()


os.register_at_fork(after_in_child=_forsake_write_ends)


_opening = threading.RLock()
os.register_at_fork(
    before=_opening.acquire,
    after_in_parent=_opening.release,
    after_in_child=_opening.release,
)


class LocalCore(Core):
    """A fence whose pipe is opened when its descriptor is asked for.

    A producer then takes the write end. Without one the outcome is written from here.
    ``write_end`` is that of a pipe which somebody else has opened.
    """

    __slots__ = ("_read_end", "_write_end")

    def __init__(
        self,
        producer: Producer | None = None,
        write_end: WriteEnd | None = None,
    ) -> None:
        super().__init__(producer)
        self._read_end: Descriptor | None = None
        self._write_end = write_end

    def look(self) -> Outcome | None:
        """Return the outcome, which is known here first."""
        return self.outcome

    def fileno(self) -> int:
        """Return the read end of the pipe."""
        with _opening:
            if self._read_end is not None:
                return self._read_end.fd
            fd, writer = open_pipe()
            self._read_end = Descriptor(fd)
        self._place(writer)
        return fd

    def _place(self, writer: int) -> None:
        producer = self.producer
        if producer is not None:
            producer.hand_over(writer)
            return
        self._write_end = WriteEnd(writer)
        if self.outcome is not None:
            self._write_end.write(self.outcome)

    def _publish(self, outcome: Outcome) -> None:
        if self._write_end is not None:
            self._write_end.write(outcome)
