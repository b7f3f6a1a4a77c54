"""Makes pools that other processes can map.

All are sealed against changes of size, so that a driver maps them without copying.
What is in a file that has a name is copied into such a pool: whoever may write to the
file can cut it short, and to touch what is gone of a mapping ends the process. A
private mapping is no better, nor is a lock, which others need not ask for.
"""

import mmap
import os
from collections.abc import Iterable

import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import (
    FIXED_CONTENTS,
    FIXED_SIZE,
    READ,
    READ_WRITE,
    MappedSpan,
    blob_handle,
    create_file,
    is_immutable,
    keeps_its_bytes,
    seal,
    seals_of,
)
from asyncnn.memory.pages import (
    ALL_ROOMS_BYTES,
    copy_bytes,
    finished,
    map_over,
    map_pages,
    misfit_of,
    new_pages,
    os_errors,
    read_into,
    read_pages,
    write_all,
)
from asyncnn.memory.pools import from_buffer, map_file, open_file, owning, view


def allocate(size: int) -> Memory:
    """Return a writable ``ashmem`` pool of ``size`` zero bytes, mapped in this process.

    The pool owns its descriptor, which goes with it; the mapping goes with the last
    view of it. Pages take up memory once they have been touched.

    :raises InvalidArgumentError: if ``size`` is negative.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    fd, data = create_sealed(size)
    return owning(Memory("ashmem", size, Handle((fd,)), data))


def allocate_blob(size: int) -> Memory:
    """Return a writable ``hardware_buffer_blob`` pool of ``size`` zero bytes.

    It is a memory file as of `allocate`, with the handle of a blob.

    :raises InvalidArgumentError: if ``size`` is negative or has more than 32 bits.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if size >= 1 << 32:
        raise InvalidArgumentError(f"a blob of {size} bytes is too wide")
    fd, data = create_sealed(size)
    return owning(Memory("hardware_buffer_blob", size, blob_handle(fd, size), data))


def shareable(memory: Memory) -> Memory:
    """Return a pool of the same bytes whose handle can travel to another process.

    That is ``memory`` itself if it has a descriptor, and a file that was read becomes
    one with its pages. Otherwise it is a copy, to which later writes do not carry over
    in either direction: what another process puts into it must be copied back. The copy
    of a read-only pool can never be changed again.

    :raises InvalidArgumentError: if the pool has neither descriptor nor buffer.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if memory.handle.fds:
        return memory
    data = view(memory)[: memory.size]
    if data.readonly:
        known = read_pages(data)
        if known is None:
            return final_of([data], len(data))
        known.file = known.file or _moved(data)
        return known.file
    copy = allocate(memory.size)
    view(copy)[:] = data
    return copy


def _moved(data: memoryview) -> Memory:
    """Return a pool of a new file with the bytes of pages, which are its from now on.

    Others may read them meanwhile.
    """
    assert isinstance(data.obj, mmap.mmap)
    with os_errors(f"copy of a pool of {len(data)} bytes", len(data)):
        draft = Descriptor(create_file("asyncnn-constants"))
        for at in range(0, len(data), _MOVED_BYTES):
            part = data[at : at + _MOVED_BYTES]
            write_all(draft.fd, part, at)
            span = MappedSpan(draft.fd, READ, at, len(part))
            map_over(data.obj, span, mmap.MAP_PRIVATE, ALL_ROOMS_BYTES + at)
    return final_pool(draft)


def create_sealed(size: int, name: str = "asyncnn-pool") -> tuple[int, memoryview]:
    """Return the descriptor of a new memory file of fixed size, and its bytes.

    :raises InvalidArgumentError: if ``size`` is negative.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if size < 0:
        raise InvalidArgumentError(f"a pool of {size} bytes")
    with os_errors(f"pool of {size} bytes", size):
        fd = create_file(name)
        try:
            os.ftruncate(fd, size)
            seal(fd, FIXED_SIZE)
            return fd, map_pages(MappedSpan(fd, READ_WRITE, 0, size), FIXED_SIZE)
        except BaseException:
            os.close(fd)
            raise


_SMALL_BYTES = 1 << 21
"""Bytes that are had sooner than pages."""

_MOVED_BYTES = 1 << 21
"""Bytes that are there twice at a time, while they become a file's."""


class FileReader:
    """Reads a file that others may change meanwhile; slices are its bytes, read anew.

    Nothing of it is mapped: to touch what is gone of a file ends the process. It closes
    with this object.

    :raises InvalidArgumentError: if it is not a regular file.
    :raises GeneralFailureError: if it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._where = os.fspath(path)
        with os_errors(self._where):
            self._file = Descriptor(open_file(path))
            self._status = status = os.fstat(self._file.fd)
        misfit = misfit_of(MappedSpan(self._file.fd, READ, 0, len(self)), status)
        if misfit:
            raise InvalidArgumentError(f"{self._where}: {misfit}")

    def __len__(self) -> int:
        return self._status.st_size

    def __getitem__(self, part: slice) -> memoryview:
        """Return bytes of the file.

        :raises GeneralFailureError: if it has become shorter, or cannot be read.
        """
        start, stop, _ = part.indices(len(self))
        with os_errors(self._where):
            data = np.empty(max(stop - start, 0), np.uint8).data
            if read_into(data, self._file.fd, start) < len(data):
                raise self._changed()
        return data.toreadonly()

    def copy(self) -> Memory:
        """Return a pool of all bytes, which nothing changes.

        A file in memory that is sealed is mapped, and not copied.

        :raises GeneralFailureError: if it cannot be read, or has changed.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        fd = self._file.fd
        with os_errors(self._where):
            if self._is_sealed():
                return map_file(fd)
            # Refused where there is not as much memory; a file may be mostly holes.
            mmap.mmap(-1, max(len(self), 1), mmap.MAP_PRIVATE).close()
            draft = Descriptor(create_file("asyncnn-constants"))
            if copy_bytes(fd, draft.fd, len(self)) < len(self):
                raise self._changed()
        self.check_unchanged()
        return final_pool(draft)

    def _is_sealed(self) -> bool:
        seals = seals_of(self._file.fd)
        return is_immutable(seals) and keeps_its_bytes(seals, self._status.st_dev)

    def read(self) -> Memory:
        """Return the same in memory of this process, a file's as soon as it is sent.

        Pages of files in memory take several times as long to be had.

        :raises AsyncnnError: as `copy`.
        """
        size = len(self)
        with os_errors(self._where):
            data: bytes | memoryview
            if size <= _SMALL_BYTES:
                data = os.pread(self._file.fd, size, 0)
                done = len(data)
            elif self._is_sealed():
                return map_file(self._file.fd)
            else:
                pages, data = new_pages(size)
                done = read_into(data, self._file.fd, 0)
                data = finished(pages, data)
        if done < size:
            raise self._changed()
        self.check_unchanged()
        return from_buffer(data)

    def check_unchanged(self) -> None:
        """Check that nobody has written to the file since it was opened.

        :raises GeneralFailureError: if anybody has, as far as its times show.
        """
        with os_errors(self._where):
            now = os.fstat(self._file.fd)
        # Not the time of status changes: to replace a file is one of the old file.
        before = self._status.st_size, self._status.st_mtime_ns
        if (now.st_size, now.st_mtime_ns) != before:
            raise self._changed()

    def _changed(self) -> GeneralFailureError:
        return GeneralFailureError(
            f"{self._where}: the file was changed while it was read",
            hint="replace files in use by renaming new ones: mv, os.replace",
        )


def final_pool(draft: Descriptor) -> Memory:
    """Seal a file from `create_file`; return a read-only pool of its bytes.

    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    with os_errors("a pool of constants"):
        seal(draft.fd, FIXED_CONTENTS)
        return map_file(draft.fd)


def final_of(parts: Iterable[bytes | memoryview], size: int) -> Memory:
    """Return a read-only pool of all parts, one after the other, ``size`` bytes.

    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    with os_errors(f"copy of a pool of {size} bytes", size):
        draft, place = Descriptor(create_file("asyncnn-constants")), 0
        for part in parts:
            write_all(draft.fd, memoryview(part), place)
            place += len(part)
    return final_pool(draft)
