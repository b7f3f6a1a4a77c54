"""Pools over memory of this process and over its files, and views of any pool.

Nothing here distrusts the file beneath a pool; `Mapper` does.

Source: HAL 1.0/types.hal (hidl_memory).
"""

import math
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.input_files import open_input
from asyncnn.logs import MEMORY
from asyncnn.memory import pages
from asyncnn.memory.handles import (
    READ,
    READ_WRITE,
    MappedSpan,
    file_handle,
    label,
    seals_of,
    span_of,
)
from asyncnn.memory.pages import (
    checked_span,
    granted,
    map_accessed,
    map_pages,
    misfit_of,
    os_errors,
)


def from_buffer(
    buffer: bytes | bytearray | memoryview | mmap.mmap | NDArray[Any],
) -> Memory:
    """Return an ``ashmem`` pool over memory of this process, without copying it.

    The pool keeps ``buffer`` alive and is writable if ``buffer`` is.

    :raises InvalidArgumentError: if the memory is not contiguous.
    """
    whole = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    if not whole.c_contiguous:
        raise InvalidArgumentError("the memory of a pool must be contiguous")
    flat = whole.cast("B") if whole.nbytes else memoryview(b"")
    return Memory("ashmem", flat.nbytes, buffer=flat)


def map_file(
    source: str | os.PathLike[str] | int,
    offset: int = 0,
    length: int | None = None,
    *,
    writable: bool = False,
) -> Memory:
    """Return an ``mmap_fd`` pool over ``length`` bytes of a file, by default the rest.

    ``source`` is a path or a file descriptor, which is duplicated. The pool owns its
    descriptor; the descriptor goes with the pool, the mapping with the last view. The
    file must not shrink meanwhile: touching lost pages kills the process.

    :raises InvalidArgumentError: if the bytes do not lie within a regular file.
    :raises GeneralFailureError: if the file cannot be opened or mapped.
    """
    where = f"descriptor {source}" if isinstance(source, int) else os.fspath(source)
    with os_errors(where):
        fd = open_file(source, writable=writable)
        try:
            if length is None:
                length = os.fstat(fd).st_size - offset
            span = MappedSpan(fd, READ_WRITE if writable else READ, offset, length)
            misfit = misfit_of(span, os.fstat(fd))
            if misfit:
                raise InvalidArgumentError(f"{where}: {misfit}")
            seals = seals_of(fd)
            data = map_pages(granted(span, seals, where), seals)
            return owning(Memory("mmap_fd", length, file_handle(span), data))
        except BaseException:
            os.close(fd)
            raise


def part_of(memory: Memory, offset: int, length: int) -> Memory:
    """Return a pool over bytes of ``memory``, which it keeps alive.

    It is of kind ``mmap_fd`` if ``memory`` has a descriptor.

    :raises InvalidArgumentError: if the bytes do not lie within ``memory``.
    :raises GeneralFailureError: if ``memory`` cannot be mapped.
    """
    if not 0 <= offset <= offset + length <= memory.size:
        raise InvalidArgumentError(
            f"{length} bytes at {offset} are not within a pool of {memory.size} bytes"
        )
    data = view(memory)[offset : offset + length]
    if not memory.handle.fds:
        return Memory(memory.name, length, buffer=data)
    whole = span_of(memory)
    span = MappedSpan(
        whole.fd, READ if data.readonly else READ_WRITE, whole.offset + offset, length
    )
    part = Memory("mmap_fd", length, file_handle(span), data)
    # The descriptor is the whole pool's: the finalizer's reference keeps that open.
    weakref.finalize(part, id, memory)
    return part


def view(memory: Memory) -> memoryview:
    """Return the bytes of a pool; one without a buffer is mapped anew by each call.

    A dma-buf is accessed, and its devices know it, until the last view of it goes.

    :raises InvalidArgumentError: if the kind is unknown.
    :raises GeneralFailureError: if the handle is malformed, its file shorter than the
        pool, or it cannot be mapped.
    """
    if memory.buffer is not None:
        return memory.buffer
    fd = span_of(memory).fd
    with os_errors(label(memory)):
        seals, status = seals_of(fd), os.fstat(fd)
        span = checked_span(memory, seals, status)
        if span.length and pages.is_dma_buf(fd, status):
            return map_accessed(span)
        return map_pages(span, seals)


def mapped(memory: Memory) -> Memory:
    """Return ``memory`` if it has a buffer, else a pool of its bytes without a handle.

    The descriptor may be closed afterwards.

    :raises AsyncnnError: as `view`.
    """
    if memory.buffer is not None:
        return memory
    data = view(memory)
    MEMORY("mapped", pool=memory.name, size=memory.size)
    return Memory(memory.name, memory.size, buffer=data)


def as_array(
    memory: Memory, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0
) -> NDArray[Any]:
    """Return an array over bytes of a pool, without copying them.

    It is read-only if the pool is, and unaligned if ``offset`` is.

    :raises InvalidArgumentError: if the array does not lie within the pool or cannot
        be made of bytes.
    :raises GeneralFailureError: if the pool cannot be mapped.
    """
    element = np.dtype(dtype)
    length = math.prod(shape) * element.itemsize
    # NumPy would take some negative numbers, and pointers from the pool.
    if offset < 0 or offset + length > memory.size or min(shape, default=0) < 0:
        raise InvalidArgumentError(
            f"{element} {list(shape)} at {offset} does not lie within a pool of "
            f"{memory.size} bytes"
        )
    if element.hasobject:
        raise InvalidArgumentError("an array of objects cannot lie in a pool")
    data = view(memory) if memory.buffer is None else memory.buffer
    try:
        return np.ndarray(shape, element, data, offset)
    except ValueError as error:
        raise InvalidArgumentError(f"{element} {list(shape)}: {error}") from error


def owning(memory: Memory) -> Memory:
    """Return ``memory``, whose descriptor closes from now on when the pool is gone."""
    weakref.finalize(memory, os.close, memory.handle.fds[0])
    return memory


def open_file(source: str | os.PathLike[str] | int, *, writable: bool = False) -> int:
    """Open a path, or duplicate a descriptor.

    :raises OSError: if that fails.
    """
    if isinstance(source, int):
        return os.dup(source)
    return open_input(source, os.O_RDWR if writable else os.O_RDONLY)
