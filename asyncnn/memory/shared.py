"""Makes pools that other processes can map.

All are sealed against changes of size, so that a driver maps them without copying.
"""

import os

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.handles import (
    FIXED_CONTENTS,
    FIXED_SIZE,
    READ,
    READ_WRITE,
    Span,
    blob_handle,
    create_file,
    file_handle,
    seal,
)
from asyncnn.memory.pages import map_pages, os_errors
from asyncnn.memory.pools import owning, view


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

    It is a memory file like that of `allocate`, with the handle of a blob.

    :raises InvalidArgumentError: if ``size`` is negative or has more than 32 bits.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if size >= 1 << 32:
        raise InvalidArgumentError(f"a blob of {size} bytes is too wide")
    fd, data = create_sealed(size)
    return owning(Memory("hardware_buffer_blob", size, blob_handle(fd, size), data))


def shareable(memory: Memory) -> Memory:
    """Return a pool of the same bytes whose handle can travel to another process.

    That is ``memory`` itself if it has a descriptor. Otherwise it is a copy, to which
    later writes do not carry over in either direction: what another process puts into
    it must be copied back. The copy of a read-only pool can never be changed again.

    :raises InvalidArgumentError: if the pool has neither descriptor nor buffer.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if memory.handle.fds:
        return memory
    data = view(memory)[: memory.size]
    if data.readonly:
        return _immutable(data)
    copy = allocate(memory.size)
    view(copy)[:] = data
    return copy


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
            return fd, map_pages(Span(fd, READ_WRITE, 0, size), FIXED_SIZE)
        except BaseException:
            os.close(fd)
            raise


def _immutable(data: memoryview) -> Memory:
    size = len(data)
    with os_errors(f"copy of a pool of {size} bytes", size):
        fd = create_file("asyncnn-constants")
        try:
            written = 0
            while written < size:
                written += os.write(fd, data[written:])
            seal(fd, FIXED_CONTENTS)
            span = Span(fd, READ, 0, size)
            pages = map_pages(span, FIXED_CONTENTS)
            return owning(Memory("mmap_fd", size, file_handle(span), pages))
        except BaseException:
            os.close(fd)
            raise
