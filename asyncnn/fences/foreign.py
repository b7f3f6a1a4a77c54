"""Fences that came as a descriptor: of another process, the kernel, or other makers.

The kernel says of its own fences (``sync_file``) how and when they ended. Of other
descriptors the poll events and the bytes that wait are all that is known.

Source: Linux, include/uapi/linux/sync_file.h (SYNC_IOC_FILE_INFO).
"""

import ctypes
import fcntl
import os
import select
import stat
import struct
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from typing import TypeAlias

from asyncnn.fences.core import Callback, Core, FenceOutcome
from asyncnn.fences.local import OWNER_IS_GONE, bytes_waiting, outcome_in_pipe
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.memory.descriptors import ReceivedDescriptor
from asyncnn.memory.pages import failure

_FILE_INFO = struct.Struct("32siIIIQ")  # name, status, flags, fences, padding, address
_FENCE_INFO = struct.Struct("32s32siIQ")  # object, driver, status, flags, time in ns
_IOC_FILE_INFO = 3 << 30 | _FILE_INFO.size << 16 | ord(">") << 8 | 4
_MAX_FENCES = 1024

_LOWEST_FD = 3
"""So that a process without standard streams gets no fence in place of one."""

_LONGEST_POLL_MS = 2**31 - 1

OutcomeReader: TypeAlias = Callable[[int, int], FenceOutcome | None]
"""Returns the outcome behind a descriptor for the events that a poll found."""


class ForeignCore(Core):
    """A fence that is done when its descriptor polls as readable.

    Each loop that waits watches the descriptor with one reader, however many of its
    tasks wait, and only while any does.
    """

    __slots__ = ("_descriptor", "_read_outcome", "_watchers")

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._descriptor = ReceivedDescriptor(_duplicate(fd))
        self._read_outcome = _reader_of(self._descriptor.fd)
        self._watchers: dict[AbstractEventLoop, int] = {}

    def fileno(self) -> int:
        """Return the duplicate that this fence owns."""
        return self._descriptor.fd

    def look(self) -> FenceOutcome | None:
        """Poll the descriptor, unless the outcome is known."""
        if self.outcome is None:
            # Threads may poll at once: the first to resolve decides, and all read that.
            outcome = self._poll(0)
            if outcome is not None:
                self.resolve(outcome)
        return self.outcome

    def add_waiter(
        self, loop: AbstractEventLoop, callback: Callback | None = None
    ) -> "Future[None]":
        """Return a future, and watch the descriptor from now on."""
        future = super().add_waiter(loop, callback)
        watchers = self._watchers.get(loop, 0)
        self._watchers[loop] = watchers + 1
        if not watchers:
            self._watch(loop)
        return future

    def remove_waiter(self, future: "Future[None]") -> None:
        """Forget a future; the last one of its loop ends the watch."""
        super().remove_waiter(future)
        loop = future.get_loop()
        watchers = self._watchers.pop(loop, 0)
        if watchers > 1:
            self._watchers[loop] = watchers - 1
        elif watchers:
            loop.remove_reader(self.fileno())

    def disown(self) -> None:
        """Forget the loops that watch: a forked child shares the parent's selectors."""
        self._watchers.clear()

    def block(self, timeout: float | None) -> None:
        """Block this thread in a poll of the descriptor, for 24 days at most."""
        timeout_ms = None if timeout is None else min(timeout * 1000, _LONGEST_POLL_MS)
        outcome = self._poll(timeout_ms)
        if outcome is not None:
            self.resolve(outcome)

    def _watch(self, loop: AbstractEventLoop) -> None:
        disown_in_children(self)
        try:
            loop.add_reader(self.fileno(), self.look)
        except OSError as error:
            reason = f"a fence cannot be watched: {error.strerror}"
            self.resolve(FenceOutcome(ErrorStatus.GENERAL_FAILURE, reason, None))

    def _poll(self, timeout_ms: float | None) -> FenceOutcome | None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        for fd, events in poll.poll(timeout_ms):
            return self._read_outcome(fd, events)
        return None


def _duplicate(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    except (OSError, OverflowError, ValueError) as error:
        problem = failure(error, f"descriptor {fd} of a fence")
        if isinstance(problem, ResourceExhaustedTransientError):
            raise problem from error
        raise InvalidArgumentError(problem.message) from error


def _reader_of(fd: int) -> OutcomeReader:
    kind = os.fstat(fd).st_mode
    if stat.S_ISFIFO(kind):
        return outcome_in_pipe
    if stat.S_ISSOCK(kind):
        return _socket_outcome
    return outcome_of_sync_file if is_sync_file(fd) else _plain_outcome


def _socket_outcome(fd: int, _events: int) -> FenceOutcome | None:
    """Return success if a byte waits; a socket that ends without has lost its owner."""
    if bytes_waiting(fd):
        return FenceOutcome(ErrorStatus.NONE, "", None)
    return FenceOutcome(ErrorStatus.DEVICE_UNAVAILABLE, OWNER_IS_GONE, None)


def _plain_outcome(_fd: int, events: int) -> FenceOutcome | None:
    """Return success if the descriptor is readable: nothing more can be known."""
    if events & select.POLLIN:
        return FenceOutcome(ErrorStatus.NONE, "", None)
    return FenceOutcome(
        ErrorStatus.GENERAL_FAILURE, "the fence's descriptor failed", None
    )


def is_sync_file(fd: int) -> bool:
    """Return whether ``fd`` is a fence of the kernel."""
    try:
        _ask(fd, 0, 0)
    except OSError:
        return False
    return True


def outcome_of_sync_file(fd: int, _events: int = 0) -> FenceOutcome | None:
    """Return how a fence of the kernel ended, None while it is active.

    Its time is the last time of the fences that were merged into it.
    """
    status, count = _ask(fd, 0, 0)
    if status == 0:
        return None
    if status < 0:
        reason = f"the kernel's fence failed: {os.strerror(-status)}"
        return FenceOutcome(
            ErrorStatus.GENERAL_FAILURE, reason, _ended_at_ns(fd, count)
        )
    return FenceOutcome(ErrorStatus.NONE, "", _ended_at_ns(fd, count))


def _ended_at_ns(fd: int, count: int) -> int | None:
    if not 0 < count <= _MAX_FENCES:
        return None
    fences = ctypes.create_string_buffer(count * _FENCE_INFO.size)
    try:
        _ask(fd, count, ctypes.addressof(fences))
    except OSError:
        return None
    return max(at_ns for *_, at_ns in _FENCE_INFO.iter_unpack(fences.raw)) or None


def _ask(fd: int, room: int, address: int) -> tuple[int, int]:
    question = _FILE_INFO.pack(b"", 0, 0, room, 0, address)
    _, status, _, count, _, _ = _FILE_INFO.unpack(
        fcntl.ioctl(fd, _IOC_FILE_INFO, question)
    )
    return status, count
