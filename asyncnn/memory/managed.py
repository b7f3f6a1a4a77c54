"""The state of buffers that a device manages: contents, claims and accounting.

A buffer has contents or is uninitialised. Executions and copies claim it for as long as
they run, any number to read it or one to write it. Claims never wait; one that cannot
be had is an error. Only the event loop claims, whereas memory is reserved on the thread
that computes the contents.

A writer that fails takes the memory with it, as a thread that could not be stopped may
still be writing. The next writer gets other memory, as it does where what is read was
left to a thread that may still be reading.

Source: HAL 1.3/IDevice.hal (allocate) and 1.3/IBuffer.hal.
"""

import math
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import (
    GeneralFailureError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.hal.types import BufferToken, Dimensions, Memory

_NOTHING = np.empty(0, np.uint8)


class _CountedLease(weakref.ref[NDArray[np.uint8]]):
    """Watches memory that is counted; as small as can be, as there may be many."""

    __slots__ = ("size",)

    size: int

    # By itself: arrays have no hash.
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Account:
    """Counts the ``used_bytes`` of one client's buffers. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._leases: set[_CountedLease] = set()
        # One for all of them, and it keeps no account alive that nobody uses.
        self._end_lease = partial(_ended, weakref.ref(self))
        # Reentrant: the collector may give memory back within `allocate`.
        self._lock = threading.RLock()
        self.used_bytes = 0

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Return memory that is counted for as long as anything views it.

        :raises ResourceExhaustedTransientError: if it exceeds the limit, or there is
            none left.
        """
        with self._lock:
            if self.used_bytes + size > self._limit_bytes:
                raise ResourceExhaustedTransientError(
                    f"{size} bytes more than {self.used_bytes} in buffers: "
                    f"DeviceSettings.max_buffer_bytes is {self._limit_bytes}"
                )
            self.used_bytes += size
        try:
            memory = np.empty(size, np.uint8)
        except MemoryError as error:
            self._give_back(size)
            raise failure_of(error, f"a buffer of {size} bytes", size) from error
        lease = _CountedLease(memory, self._end_lease)
        lease.size = size
        self._leases.add(lease)
        return memory

    def end(self, lease: _CountedLease) -> None:
        """Count memory no more, which nothing views any longer."""
        self._leases.discard(lease)
        self._give_back(lease.size)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size


def _ended(
    account: weakref.ref[Account], lease: weakref.ref[NDArray[np.uint8]]
) -> None:
    of = account()
    if of is not None and isinstance(lease, _CountedLease):
        of.end(lease)


class Storage:
    """Memory of a buffer, which grows when more is needed."""

    __slots__ = ("_account", "_memory", "_pool", "is_left")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.is_left = False  # to a reader that may never end
        self._memory = _NOTHING
        self._pool: Memory | None = None

    def reserve(self, size: int) -> NDArray[np.uint8]:
        """Return the first ``size`` bytes; what they held is lost if they grow.

        A writer may reserve any size, a reader no more than the contents have.

        :raises ResourceExhaustedTransientError: if there is no memory for it.
        """
        if size > self._memory.nbytes:
            self._pool = None
            self._memory = _NOTHING
            self._memory = self._account.allocate(size)
        return self._memory if size == self._memory.nbytes else self._memory[:size]

    def pool(self, size: int) -> Memory:
        """Return the first ``size`` bytes as a pool, the same one for as long as it is.

        :raises ResourceExhaustedTransientError: as `reserve`.
        """
        pool = self._pool
        if pool is None or pool.size != size:
            # An array is a buffer, too, and there may be very many of these.
            data: Any = self.reserve(size)
            pool = self._pool = Memory("ashmem", size, buffer=data)
        return pool


class ClaimedBuffer(BufferToken, frozen=True):
    """A token as a pool of a request that is executed, and the memory behind it."""

    storage: Storage


class ManagedBuffer:
    """The state of a buffer; ``current`` are its dimensions, None if uninitialised."""

    __slots__ = (
        *("__weakref__", "_account", "_is_written", "_readers"),
        *("current", "dtype", "storage", "token"),
    )

    def __init__(self, token: int, dtype: np.dtype[Any], account: Account) -> None:
        self.token = token
        self.dtype = dtype
        self.current: Dimensions | None = None
        self._account = account
        self.storage = Storage(account)
        self._readers = 0
        self._is_written = False

    @property
    def claimed(self) -> ClaimedBuffer:
        """What the holder of a claim executes with."""
        return ClaimedBuffer(self.token, self.storage)

    def size_bytes(self, dimensions: Dimensions) -> int:
        """Return the bytes of contents of these dimensions."""
        return math.prod(dimensions) * self.dtype.itemsize

    def reserve(self, dimensions: Dimensions) -> None:
        """Reserve the memory for contents that are to come.

        :raises ResourceExhaustedTransientError: if there is none.
        """
        self.storage.reserve(self.size_bytes(dimensions))

    def begin_reading(self) -> ClaimedBuffer:
        """Claim the buffer, with others, until `end_reading`.

        :raises GeneralFailureError: as `check_readable`.
        """
        begin_all((self,), ())
        return self.claimed

    def check_readable(self) -> None:
        """Check that the buffer has contents, which nobody is writing.

        :raises GeneralFailureError: if it is uninitialised, or being written.
        """
        if self._is_written:
            raise GeneralFailureError(f"buffer {self.token} is being written")
        if self.current is None:
            raise GeneralFailureError(f"buffer {self.token} is uninitialised")

    def end_reading(self, is_left: bool = False) -> None:
        """Give up a claim to read; a thread to which it ``is_left`` may go on."""
        self._readers -= 1
        self.storage.is_left |= is_left

    def check_unused(self) -> None:
        """Check that the buffer is neither read nor written.

        :raises GeneralFailureError: if it is.
        """
        if self._is_written or self._readers:
            raise GeneralFailureError(
                f"buffer {self.token} is in use",
                hint="await the execution or copy that uses it",
            )

    def begin_writing(self) -> ClaimedBuffer:
        """Claim the buffer exclusively, until `end_writing`.

        :raises GeneralFailureError: if it is in use.
        """
        begin_all((), (self,))
        return self.claimed

    def end_writing(self, dimensions: Dimensions | None) -> None:
        """Give up the claim to write: with contents of ``dimensions``, or failed."""
        self._is_written = False
        self.current = dimensions
        if dimensions is None:
            self.storage = Storage(self._account)

    def discard(self) -> None:
        """Become uninitialised; readers keep the memory that they have."""
        if not self._is_written:
            self.end_writing(None)


def begin_all(
    reads: Sequence[ManagedBuffer], writes: Sequence[ManagedBuffer]
) -> list[Storage]:
    """Claim buffers to read and others to write; return what they hold, in that order.

    All or none: what can fail comes first.

    :raises GeneralFailureError: as `ManagedBuffer.begin_reading` and `begin_writing`.
    """
    # By their members, as a call for each would be felt with tiny models.
    for buffer in reads:
        if buffer._is_written or buffer.current is None:
            buffer.check_readable()
    for buffer in writes:
        if buffer._is_written or buffer._readers:
            buffer.check_unused()
    for buffer in reads:
        buffer._readers += 1
    for buffer in writes:
        buffer._is_written = True
        buffer.current = None
        if buffer.storage.is_left:  # whoever may still read it keeps it
            buffer.storage = Storage(buffer._account)
    return [buffer.storage for buffer in (*reads, *writes)]


def end_all(
    reads: Sequence[ManagedBuffer],
    writes: Sequence[ManagedBuffer],
    dimensions: Sequence[Dimensions] | None,
    is_left: bool = False,
) -> None:
    """Give up these claims: with contents of ``dimensions`` each, or failed."""
    for buffer in reads:
        buffer._readers -= 1
    if dimensions is None:
        for buffer in reads if is_left else ():
            buffer.storage.is_left = True
        for buffer in writes:
            buffer.end_writing(None)
        return
    for buffer, shape in zip(writes, dimensions, strict=True):
        buffer._is_written = False
        buffer.current = shape
