"""Fences that are signalled in this process, and the pipe that other processes see.

The owner of a pipe writes once: one byte for success, one more than the status for an
error. The number of bytes that wait in a pipe can be asked for without reading them, so
any number of processes find the same answer there, for ever. If the owner dies nothing
is written and the pipe reports its end. When it was written lies in the access time of
the pipe, which no reader changes, on the steady clock.

Rejected: an eventfd, which does not show that its owner died, and whose value is gone
once read; a socket pair, which costs a system call and a copy at each look.
"""

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

from asyncnn.fences.core import Core, FenceOutcome, Producer
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.pages import os_errors

OWNER_IS_GONE = "the owner of the fence is gone"

_MAX_BYTES = 1 + max(ErrorStatus)
_COUNT = struct.Struct("i")

_write_ends: "weakref.WeakSet[WriteEnd]" = weakref.WeakSet()

# Reentrant, as the collector runs arbitrary code within any statement. Held across
# forks, so that a child finds it free and no pipe half made.
pipe_lock = threading.RLock()
os.register_at_fork(
    before=pipe_lock.acquire,
    after_in_parent=pipe_lock.release,
    after_in_child=pipe_lock.release,
)


class LocalCore(Core):
    """A fence whose pipe is opened when its descriptor is asked for.

    A producer that is remote then gets the write end; else this process writes.
    ``write_end`` is the end of a pipe which another process has opened.
    """

    __slots__ = ("_read_end", "_write_end")

    def __init__(
        self, producer: Producer | None = None, write_end: "WriteEnd | None" = None
    ) -> None:
        super().__init__(producer)
        self._read_end: Descriptor | None = None
        self._write_end = write_end

    def look(self) -> FenceOutcome | None:
        """Return the outcome, which is known here first."""
        return self.outcome

    def fileno(self) -> int:
        """Return the read end of the pipe."""
        with pipe_lock:
            if self._read_end is not None:
                return self._read_end.fd
            fd, writer = open_pipe()
            self._read_end = Descriptor(fd)
            producer, end = self.producer, None
            if producer is None or not producer.is_remote:
                producer = None
                # Known before a fork can copy it, so that the child closes its copy.
                end = self._write_end = WriteEnd(writer)
        if producer is not None:
            # Without the lock: what a producer does, or waits for, is its own affair.
            producer.hand_over(writer)
        elif end is not None and self.outcome is not None:
            # Resolved meanwhile: `_publish` may have come too early to see the end.
            end.write(self.outcome)
        return fd

    def _publish(self, outcome: FenceOutcome) -> None:
        if self._write_end is not None:
            self._write_end.write(outcome)


class WriteEnd:
    """The owner's end of a pipe, which closes with the last reference to it."""

    __slots__ = ("__weakref__", "_close")

    def __init__(self, fd: int) -> None:
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False
        _write_ends.add(self)

    @classmethod
    def received(cls, fd: int) -> "WriteEnd":
        """Return an end that a peer sent, opened anew so that the peer cannot block it.

        :raises InvalidArgumentError: if ``fd`` is no pipe that can be written.
        """
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise InvalidArgumentError(f"descriptor {fd} is not a pipe")
            # The peer could clear O_NONBLOCK of a duplicate, which shares its flags.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return cls(os.open(f"/proc/self/fd/{fd}", flags))
        except OSError as error:
            raise InvalidArgumentError(
                f"descriptor {fd} cannot signal a fence: {error.strerror}"
            ) from error

    def write(self, outcome: FenceOutcome) -> None:
        """Write how the fence ended and close; does nothing the second time.

        What a peer has written before through another write end stays the outcome.
        """
        detached = self._close.detach()
        if detached is None:
            return
        _, close, (fd,), _ = detached
        # The reader may be gone, and a peer may have filled or locked its own pipe.
        with suppress(OSError):
            if not bytes_waiting(fd):
                # The time before the byte: who sees the byte reads the time at once.
                if outcome.at_ns is not None:
                    with suppress(OSError):  # the time is optional
                        os.utime(fd, ns=(outcome.at_ns, outcome.at_ns))
                os.write(fd, bytes(1 + outcome.status))
        close(fd)

    def close(self) -> None:
        """Close without writing, which readers take for the owner's death."""
        self._close()


def open_pipe() -> tuple[int, int]:
    """Return the descriptors of the read end and the write end of a new pipe.

    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """
    with os_errors("a fence's pipe"):
        return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def outcome_in_pipe(fd: int, events: int) -> FenceOutcome | None:
    """Return the outcome in a pipe; ``events`` are those that a poll found."""
    # Asked first: a writer that has written is gone, so both may be found.
    if not events & select.POLLIN:
        if events & select.POLLHUP:
            return FenceOutcome(ErrorStatus.DEVICE_UNAVAILABLE, OWNER_IS_GONE, None)
        return None
    count = bytes_waiting(fd)
    if not 1 <= count <= _MAX_BYTES:
        reason = f"the pipe of a fence holds {count} bytes, which stand for no status"
        return FenceOutcome(ErrorStatus.GENERAL_FAILURE, reason, None)
    return FenceOutcome(ErrorStatus(count - 1), "", _written_at_ns(fd))


def bytes_waiting(fd: int) -> int:
    """Return how many bytes of a pipe or a socket wait to be read."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(_COUNT.size))
    return int(_COUNT.unpack(answer)[0])


def _written_at_ns(fd: int) -> int | None:
    """Return the time noted in the pipe; one in the future is of the wall clock."""
    at_ns = os.fstat(fd).st_atime_ns
    return at_ns if 0 < at_ns <= time.monotonic_ns() else None


def _close_write_ends() -> None:
    """Close the parent's write ends in a forked child, which would hide its death."""
    for end in list(_write_ends):
        end.close()


os.register_at_fork(after_in_child=_close_write_ends)
