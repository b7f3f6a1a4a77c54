"""The shared memory of a queue, the handle that leads to it, and what can go wrong.

====================  =========  ====================================================
bytes                 written    content
====================  =========  ====================================================
0                     by reader  ``READ``: bytes read since the beginning
128                   by writer  ``WRITTEN``: bytes written since the beginning
256                   by both    ``READER_SLEEPS``: 1 asks the writer to ring
384                   by both    ``WRITER_SLEEPS``: 1 asks the reader to ring
4096 and on           by writer  the ring: ``quantum * count`` bytes
====================  =========  ====================================================

The regions come in the order in which the HAL has them. Words have 64 bits and stand in
pairs of cache lines of their own, since processors fetch lines in pairs. The file ends
with a whole page and is sealed, so that its bytes cannot go away beneath a process that
has it mapped.

The handle has three descriptors, the file, the doorbell of the end that opens the queue
and of the end that created it, and two integers, ``quantum`` and ``count``.

Source: hidl/MQDescriptor.h, HAL 1.2/types.hal (FmqRequestDatum).
"""

import mmap
import os
from typing import NamedTuple

import msgspec

from asyncnn.hal.errors import (
    BusyError,
    DeviceClosedError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.memory.handles import (
    FIXED_SIZE,
    READ_WRITE,
    access_of,
    create_file,
    keeps_its_bytes,
    rights_of,
    seal,
    seals_of,
)

READ, WRITTEN, READER_SLEEPS, WRITER_SLEEPS = 0, 16, 32, 48
"""Indices of the words, each of 8 bytes."""

RING_OFFSET = 4096
"""Where the ring begins in the file, in bytes."""

MAX_RING_BYTES = 1 << 26
"""Bytes of a ring at most; the HAL's bursts have 1024 elements of 24 bytes."""

_MAX_POSITION = 1 << 62


class MemoryOrderError(GeneralFailureError):
    """This platform does not order memory the way a queue needs."""


class QueueClosedError(DeviceClosedError):
    """This end of the queue was closed by its own process."""


class QueueBrokenError(GeneralFailureError):
    """The peer put something impossible into the queue, which is closed now."""


class QueueBusyError(BusyError):
    """Another task or callback waits at this end of the queue already."""


class Geometry(msgspec.Struct, frozen=True):
    """Bytes of an element (``quantum``), and how many elements fit in (``count``)."""

    quantum: int
    count: int

    @property
    def capacity(self) -> int:
        """Bytes of the ring."""
        return self.quantum * self.count

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        size = RING_OFFSET + self.capacity
        return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE

    def check(self) -> None:
        """Check that a queue can have this geometry.

        :raises InvalidArgumentError: if it is empty or too large.
        """
        quantum, count = self.quantum, self.count
        if quantum < 1 or count < 1 or quantum * count > MAX_RING_BYTES:
            raise InvalidArgumentError(
                f"a queue of {count} elements of {quantum} bytes; "
                f"it may have 1 to {MAX_RING_BYTES} bytes"
            )


class Pages(NamedTuple):
    """A mapped queue: its words, its ring, and the counters when it was mapped.

    The mapping goes with the last view of it.
    """

    words: memoryview
    ring: memoryview
    read: int
    written: int


def create_pages(geometry: Geometry) -> int:
    """Return the descriptor of a new file for a queue.

    :raises OSError: if memory or descriptors have run out.
    """
    fd = create_file("asyncnn-queue")
    try:
        os.ftruncate(fd, geometry.file_bytes)
        seal(fd, FIXED_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_pages(fd: int, geometry: Geometry) -> Pages:
    """Map the file of a queue, which may come from a malicious peer.

    :raises InvalidArgumentError: if it is not a memory file of the right size that is
        sealed against changes of it and that both ends may write to, or if a counter
        is about to overflow.
    :raises OSError: if memory has run out.
    """
    # Seals cannot be taken back, so what holds here holds for as long as it is mapped.
    seals = seals_of(fd)
    if not seals & FIXED_SIZE == FIXED_SIZE:
        raise InvalidArgumentError("the memory of a queue is not sealed in its size")
    status = os.fstat(fd)
    if not keeps_its_bytes(seals, status.st_dev):
        raise InvalidArgumentError("the memory of a queue is no ordinary memory file")
    if status.st_size != geometry.file_bytes:
        raise InvalidArgumentError(
            f"the memory of a queue has {status.st_size} bytes, not "
            f"{geometry.file_bytes}"
        )
    if rights_of(access_of(fd), seals) != READ_WRITE:
        raise InvalidArgumentError("the memory of a queue cannot be written to")
    data = memoryview(mmap.mmap(fd, status.st_size))
    words = data[:RING_OFFSET].cast("Q")
    ring = data[RING_OFFSET : RING_OFFSET + geometry.capacity]
    pages = Pages(words, ring, words[READ], words[WRITTEN])
    if max(pages.read, pages.written) > _MAX_POSITION:
        raise InvalidArgumentError("the counters of a queue are out of range")
    return pages
