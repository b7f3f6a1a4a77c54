"""The system calls that map and copy spans of files, with their errors translated.

A mapping keeps no descriptor: a file that is mapped can be closed. A `CopiedSpan` is
for files that cannot be mapped safely: reading from one that has been truncated merely
comes back short.

What is in a dma-buf may lie in caches of a processor or of a device. So who touches it
notifies the kernel of both ends. It cannot be read and written like a file,
nor does it shrink. Source: the kernel's documentation of dma-buf.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn import hal
from asyncnn.hal.errors import shortage_of
from asyncnn.memory.descriptors import Descriptor, ReceivedDescriptor
from asyncnn.memory.handles import (
    READ_WRITE,
    MappedSpan,
    access_of,
    is_immutable,
    label,
    rights_of,
    seals_of,
    span_of,
)

TAIL_BYTES = 64
"""Bytes behind each mapping that can be read: vectorised kernels read past the end of
arrays, XNNPACK's up to 16 bytes.
"""

_CHUNK_BYTES = 2**18
_COMPARED_BYTES = 2**20
"""Bytes that are compared at a time."""

_LINE_BYTES = 64

SYNC = 0x4008_6200
"""Number of the call: begins or ends an access."""

SYNC_READ, SYNC_WRITE = 1, 2
SYNC_START, SYNC_END = 0, 4

_FLAGS = struct.Struct("Q")
_NAME = "/dmabuf:"

ROOM_BYTES, _ROOMS = 1 << 16, 32
ALL_ROOMS_BYTES = ROOM_BYTES * _ROOMS
"""Memory in front of what never changes; see `Room`."""

_ROOMY_BYTES = 1 << 20
"""Shorter files are copied sooner; there may be many, and a process maps so many."""


class Final(msgspec.Struct, eq=False):
    """What is known of pages that never change: the ``rooms`` in front that are free.

    Of pages that were read, ``is_read``, the ``file`` in memory that they are now.
    """

    rooms: list[int]
    is_read: bool = False
    file: hal.Memory | None = None


_final: WeakKeyDictionary[mmap.mmap, Final] = WeakKeyDictionary()

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def checked_span(memory: hal.Memory, seals: int, status: os.stat_result) -> MappedSpan:
    """Return the span of a regular file or dma-buf that a pool's handle stands for.

    :raises InvalidArgumentError: if the kind is unknown.
    :raises GeneralFailureError: if the handle is malformed, the pool is not within such
        a file, or the descriptor does not grant the protection.
    """
    span, where = span_of(memory), label(memory)
    misfit = misfit_of(span, status)
    if misfit:
        raise hal.GeneralFailureError(f"{where}: {misfit}")
    return granted(span, seals, where)


def check_mappable(memory: hal.Memory) -> None:
    """Check that the handle of a pool can be decoded and its bytes accessed.

    :raises InvalidArgumentError: if the kind is unknown.
    :raises GeneralFailureError: as `checked_span`, or if its descriptor is not open.
    """
    if memory.buffer is None:
        fd = span_of(memory).fd
        with os_errors(label(memory)):
            checked_span(memory, seals_of(fd), os.fstat(fd))


def map_pages(span: MappedSpan, seals: int) -> memoryview:
    """Map a span that has been checked; the mapping goes with the last view of it.

    `TAIL_BYTES` behind it can be read, of the file or of a page of zeros.
    """
    if not span.length:
        return memoryview(b"")
    skipped = span.offset % mmap.ALLOCATIONGRANULARITY
    length = skipped + span.length
    tail = TAIL_BYTES if -length % mmap.PAGESIZE < TAIL_BYTES else 0
    # Linux before 6.7 shares a file sealed against writing with no one who could have
    # written it; nobody can distinguish a private mapping of it from a shared one.
    is_final = is_immutable(seals)
    flags = mmap.MAP_PRIVATE if is_final else mmap.MAP_SHARED
    room = ALL_ROOMS_BYTES if is_final and length >= _ROOMY_BYTES else 0
    # Python's own mapping of a file would keep a duplicate of the descriptor open. So
    # it maps none, and owns the addresses that the file is mapped to afterwards.
    pages = mmap.mmap(
        *(-1, room + length + tail),
        flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
        prot=READ_WRITE if room else span.protection,
    )
    beginning = span._replace(offset=span.offset - skipped, length=length)
    map_over(pages, beginning, flags, room)
    data = memoryview(pages)[room + skipped : room + length]
    return finished(pages, data, bool(room), is_read=False) if is_final else data


def new_pages(size: int) -> tuple[mmap.mmap, memoryview]:
    """Return memory of this process, to be filled and `finished`: its pages, its bytes.

    It is had in large pages, where the system has them.
    """
    # Not without reservation: refused where there is not as much memory.
    end = ALL_ROOMS_BYTES + size
    pages = mmap.mmap(-1, end + TAIL_BYTES, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # not the rooms, most of which stay untouched
        pages.madvise(mmap.MADV_HUGEPAGE, ALL_ROOMS_BYTES)
    return pages, memoryview(pages)[ALL_ROOMS_BYTES:end]


def finished(
    pages: mmap.mmap, data: memoryview, has_room: bool = True, *, is_read: bool = True
) -> memoryview:
    """Return bytes of pages that nobody is going to write to from now on."""
    _final[pages] = Final([*range(_ROOMS * has_room)], is_read)
    return data.toreadonly()


def read_pages(data: memoryview) -> Final | None:
    """Return what is known of `new_pages` that these are all bytes of; else None."""
    pages = data.obj
    if not isinstance(pages, mmap.mmap):
        return None
    known, size = _final.get(pages), len(pages) - ALL_ROOMS_BYTES - TAIL_BYTES
    return known if known and known.is_read and len(data) == size else None


class Room:
    """Memory in front of an array that never changes, taken until this goes.

    What lies there, and refers to what is behind it, ends at ``end``, and the array
    begins ``distance`` bytes later. There are `ROOM_BYTES`.
    """

    def __init__(self, free: list[int], number: int, begin: int, array: int) -> None:
        self._free, self._number = free, number
        self.end = begin + ALL_ROOMS_BYTES - number * ROOM_BYTES
        self.distance = array - self.end

    def __del__(self) -> None:
        self._free.append(self._number)


def room_before(array: NDArray[Any]) -> Room | None:
    """Take room in front of an array; None if there is none."""
    owner = owner_of(array)
    if not isinstance(owner, mmap.mmap):
        return None
    try:
        free = _final[owner].rooms
        number = free.pop()
    except LookupError:
        return None
    begin = np.frombuffer(owner, np.uint8).ctypes.data
    return Room(free, number, begin, array.ctypes.data)


def is_dma_buf(fd: int, status: os.stat_result) -> bool:
    """Return whether a descriptor, which has this status, is a dma-buf's."""
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return False
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(_NAME)
    except OSError:
        return False


def accessed(fd: int, *, writes: bool) -> Callable[[], None]:
    """Notify the kernel that an access begins; calling the result, that it ends.

    The descriptor may be closed before.

    :raises OSError: if descriptors have run out, or the exporter fails at it.
    """
    file = Descriptor(os.dup(fd))
    kind = SYNC_READ | SYNC_WRITE if writes else SYNC_READ
    _sync(file, SYNC_START | kind)
    return partial(_sync, file, SYNC_END | kind)


def _sync(file: Descriptor, flags: int) -> None:
    while True:
        try:
            fcntl.ioctl(file.fd, SYNC, _FLAGS.pack(flags))
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN):
                raise
        else:
            return


def map_accessed(span: MappedSpan) -> memoryview:
    """Map a span of a dma-buf, of some length; the last view of it ends the access.

    :raises OSError: if that fails, or its exporter does.
    """
    ended = accessed(span.fd, writes=span.protection == READ_WRITE)
    try:
        data = map_pages(span, 0)
    except BaseException:
        ended()
        raise
    # Not at exit, when there may be views yet: the file, which goes then, ends it.
    weakref.finalize(data.obj, ended).atexit = False
    return data


@contextmanager
def _accessed(span: MappedSpan) -> Iterator[memoryview]:
    """Map a span of a dma-buf for an access that lasts as long as the block."""
    ended = accessed(span.fd, writes=span.protection == READ_WRITE)
    try:
        yield map_pages(span, 0)
    finally:
        ended()


def owner_of(array: NDArray[Any]) -> object:
    """Return what has the memory of an array; None if that is an array itself."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


def is_final(array: NDArray[Any]) -> bool:
    """Return whether nobody can change the elements of an array any more."""
    owner = owner_of(array)
    return isinstance(owner, bytes) or (
        isinstance(owner, mmap.mmap) and owner in _final
    )


def are_equal(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Return whether arrays [n] have equal bytes, with little memory for the answer."""
    if one.size != other.size:
        return False
    return one.ctypes.data == other.ctypes.data or all(
        np.array_equal(one[at : at + _COMPARED_BYTES], other[at : at + _COMPARED_BYTES])
        for at in range(0, one.size, _COMPARED_BYTES)
    )


def granted(span: MappedSpan, seals: int, where: str) -> MappedSpan:
    """Return ``span`` with the protection to map it with.

    :raises GeneralFailureError: if the descriptor does not grant what it asks for.
    """
    rights = rights_of(access_of(span.fd), seals)
    protection = span.protection or rights
    if not rights or protection & ~rights:
        raise hal.GeneralFailureError(
            f"{where}: Permission denied: the descriptor grants "
            f"{'reading only' if rights else 'no reading'}"
        )
    return span._replace(protection=protection)


def misfit_of(span: MappedSpan, status: os.stat_result) -> str:
    """Return why ``span`` is not within the file of ``status``; empty if so.

    That is a regular file, or a dma-buf.
    """
    if stat.S_ISDIR(status.st_mode):
        return "a directory, not a file"
    if not stat.S_ISREG(status.st_mode) and not is_dma_buf(span.fd, status):
        return "not a regular file"
    _, _, offset, length = span
    if offset < 0 or length < 0 or offset + length > status.st_size:
        return (
            f"{length} bytes at offset {offset} are not within "
            f"a file of {status.st_size} bytes"
        )
    return ""


@contextmanager
def os_errors(where: str, wanted_bytes: int = 0) -> Iterator[None]:
    """Turn errors of the system into errors of the HAL.

    :raises ResourceExhaustedPersistentError: if it wants more bytes than there can be.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    :raises GeneralFailureError: for any other reason.
    """
    try:
        yield
    except hal.AsyncnnError:  # some are errors of the system as well
        raise
    except (ImportError, MemoryError, OSError, OverflowError, ValueError) as error:
        raise failure(error, where, wanted_bytes) from error


def failure(error: Exception, where: str, wanted_bytes: int = 0) -> hal.AsyncnnError:
    """Return the error of the HAL for one of the system's."""
    if shortage_of(error) is not None:
        return hal.failure_of(error, where, wanted_bytes)
    reason = getattr(error, "strerror", None) or error
    return hal.GeneralFailureError(f"{where}: {reason}")


class CopiedSpan(msgspec.Struct, frozen=True, eq=False):
    """A span of a file that pools are copied from and written back to.

    ``kind`` is the pool's, for messages. The descriptor is kept for the span. A
    dma-buf is mapped for each copy, and the kernel notified of the access.
    """

    kind: str
    _span: MappedSpan
    _descriptor: Descriptor
    _is_dma_buf: bool

    @classmethod
    def open(cls, memory: hal.Memory) -> Self:
        """Return the span that a pool's handle stands for; duplicate its descriptor.

        :raises InvalidArgumentError: if the kind is unknown.
        :raises GeneralFailureError: if the handle is malformed, the pool not within a
            regular file, or it cannot be used as its handle demands.
        """
        fd = span_of(memory).fd
        with os_errors(label(memory)):
            descriptor = ReceivedDescriptor(os.dup(fd))
            status = os.fstat(fd)
            span = checked_span(memory, seals_of(fd), status)
            is_shared = is_dma_buf(fd, status)
        span = span._replace(fd=descriptor.fd)
        return cls(memory.name, span, descriptor, is_shared)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._span.length

    @property
    def _is_writable(self) -> bool:
        return self._span.protection == READ_WRITE

    def read(self, copy: NDArray[np.uint8]) -> memoryview:
        """Fill ``copy`` from the file; return its bytes, read-only if the span is.

        :raises GeneralFailureError: if the file has become too short or unreadable.
        """
        data = copy.data
        with os_errors(f"{self.kind} pool"):
            if self._is_dma_buf:
                with _accessed(self._span) as mapped:
                    data[:] = mapped
                return data if self._is_writable else data.toreadonly()
            done = read_into(data, self._span.fd, self._span.offset)
            if done < self.size:
                raise hal.GeneralFailureError(
                    f"the file of the {self.kind} pool ends {self.size - done} "
                    "bytes early"
                )
        return data if self._is_writable else data.toreadonly()

    def write(self, data: memoryview, offset: int) -> None:
        """Write ``data`` back to the file, ``offset`` bytes into the span.

        :raises InvalidArgumentError: if the span may not be written.
        :raises GeneralFailureError: if the file cannot be.
        """
        if not self._is_writable:
            raise hal.InvalidArgumentError(f"the {self.kind} pool is read-only")
        with os_errors(f"{self.kind} pool"):
            if self._is_dma_buf:
                with _accessed(self._span) as mapped:
                    mapped[offset : offset + len(data)] = data
            else:
                write_all(self._span.fd, data, self._span.offset + offset)


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Return ``size`` uninitialised bytes that begin on a cache line."""
    raw = np.empty(size + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + size]


def read_into(data: memoryview, fd: int, offset: int) -> int:
    """Fill ``data`` from a file; return how many bytes there were.

    :raises OSError: if that fails.
    """
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write ``data`` to a place of a file.

    :raises OSError: if that fails.
    """
    done = 0
    while done < len(data):
        done += os.pwritev(fd, [data[done:]], offset + done)


def copy_bytes(source: int, target: int, size: int) -> int:
    """Copy the first bytes of a file to another; return how many there were.

    :raises OSError: if that fails.
    """
    chunk = memoryview(bytearray(min(size, _CHUNK_BYTES)))
    done = 0
    while count := read_into(chunk[: size - done], source, done):
        write_all(target, chunk[:count], done)
        done += count
    return done


def map_over(pages: mmap.mmap, span: MappedSpan, flags: int, at: int) -> None:
    """Map a span in place of pages, from there on.

    :raises OSError: if that fails.
    """
    address = np.frombuffer(pages, np.uint8).ctypes.data + at
    found = _mmap(
        address, span.length, span.protection, flags | _MAP_FIXED, span.fd, span.offset
    )
    if found != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
