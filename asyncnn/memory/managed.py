"""The state of buffers that a device manages: contents, claims and accounting.

A buffer has contents or is uninitialised. Executions and copies claim it for as long as
they run, any number to read it or one to write it. Claims never wait; one that cannot
be had is an error. Only the event loop claims, whereas memory is reserved on the thread
that computes the contents.

A writer that fails takes the memory with it, as a thread that could not be stopped may
still be writing. The next writer gets other memory.

Source: HAL 1.3/IDevice.hal (allocate) and 1.3/IBuffer.hal.
"""

import math
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import GeneralFailureError, ResourceExhaustedTransientError
from asyncnn.hal.types import BufferToken, Dimensions, Memory

_NOTHING = np.empty(0, np.uint8)


class Account:
    """Counts the ``used_bytes`` of one client's buffers. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
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
            raise ResourceExhaustedTransientError(f"no {size} bytes left") from error
        weakref.finalize(memory, self._give_back, size)
        return memory

    def _give_back(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size


class Storage:
    """Memory of a buffer, which grows when more is needed."""

    def __init__(self, account: Account) -> None:
        self._account = account
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
        return self._memory[:size]

    def pool(self, size: int) -> Memory:
        """Return the first ``size`` bytes as a pool, the same one for as long as it is.

        :raises ResourceExhaustedTransientError: as `reserve`.
        """
        pool = self._pool
        if pool is None or pool.size != size:
            data = self.reserve(size).data
            pool = self._pool = Memory("ashmem", size, buffer=data)
        return pool


class ClaimedBuffer(BufferToken, frozen=True):
    """A token as a pool of a request that is executed, and the memory behind it."""

    storage: Storage


class ManagedBuffer:
    """The state of a buffer; ``current`` are its dimensions, None if uninitialised."""

    def __init__(self, token: int, dtype: np.dtype[Any], account: Account) -> None:
        self.token = token
        self.dtype = dtype
        self.current: Dimensions | None = None
        self._account = account
        self._storage = Storage(account)
        self._claimed: ClaimedBuffer | None = None
        self._readers = 0
        self._is_written = False

    @property
    def claimed(self) -> ClaimedBuffer:
        """What the holder of a claim executes with."""
        claimed = self._claimed
        if claimed is None or claimed.storage is not self._storage:
            claimed = self._claimed = ClaimedBuffer(self.token, self._storage)
        return claimed

    def size_bytes(self, dimensions: Dimensions) -> int:
        """Return the bytes of contents of these dimensions."""
        return math.prod(dimensions) * self.dtype.itemsize

    def reserve(self, dimensions: Dimensions) -> None:
        """Reserve the memory for contents that are to come.

        :raises ResourceExhaustedTransientError: if there is none.
        """
        self._storage.reserve(self.size_bytes(dimensions))

    def begin_reading(self) -> ClaimedBuffer:
        """Claim the buffer, with others, until `end_reading`.

        :raises GeneralFailureError: if it is uninitialised, or being written.
        """
        if self._is_written:
            raise GeneralFailureError(f"buffer {self.token} is being written")
        if self.current is None:
            raise GeneralFailureError(f"buffer {self.token} is uninitialised")
        self._readers += 1
        return self.claimed

    def end_reading(self) -> None:
        """Give up a claim to read."""
        self._readers -= 1

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
        self.check_unused()
        self._is_written = True
        self.current = None
        return self.claimed

    def end_writing(self, dimensions: Dimensions | None) -> None:
        """Give up the claim to write: with contents of ``dimensions``, or failed."""
        self._is_written = False
        self.current = dimensions
        if dimensions is None:
            self._storage = Storage(self._account)

    def discard(self) -> None:
        """Become uninitialised; readers keep the memory that they have."""
        if not self._is_written:
            self.end_writing(None)
