"""Makes memory pools, and maps those that come as file descriptors.

Source: HAL 1.0/types.hal (hidl_memory) and the handle layouts its utilities decode.
"""

import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory

_WORD = 0xFFFF_FFFF
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class _Span(NamedTuple):
    """Bytes of a file and how to map them."""

    fd: int
    protection: int
    offset: int
    length: int

    def handle(self) -> Handle:
        words = (self.protection, self.offset & _WORD, self.offset >> 32)
        return Handle((self.fd,), words)


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
    with _os_errors(where):
        fd = _open(source, writable=writable)
        try:
            span = _Span(
                fd,
                _READ_WRITE if writable else mmap.PROT_READ,
                offset,
                _file_size(fd, where) - offset if length is None else length,
            )
            memory = Memory(
                "mmap_fd", span.length, span.handle(), buffer=_map(span, where)
            )
            weakref.finalize(memory, os.close, fd)
        except BaseException:
            os.close(fd)
            raise
    return memory


def part_of(memory: Memory, offset: int, length: int) -> Memory:
    """Return a pool over bytes of ``memory``, which it keeps alive.

    :raises InvalidArgumentError: if the bytes do not lie within ``memory``.
    :raises GeneralFailureError: if ``memory`` cannot be mapped.
    """
    if not 0 <= offset <= offset + length <= memory.size:
        raise InvalidArgumentError(
            f"{length} bytes at {offset} are not within a pool of {memory.size} bytes"
        )
    data = view(memory)[offset : offset + length]
    if memory.name != "mmap_fd":
        return Memory(memory.name, length, buffer=data)
    whole = _span_of(memory)
    span = whole._replace(offset=whole.offset + offset, length=length)
    part = Memory("mmap_fd", length, span.handle(), buffer=data)
    # The descriptor is the whole pool's: this reference holds it open.
    weakref.finalize(part, id, memory)
    return part


def view(memory: Memory) -> memoryview:
    """Return the bytes of a pool; one without a buffer is mapped anew by each call.

    :raises InvalidArgumentError: if the handle is malformed or its file shorter than
        the pool.
    :raises GeneralFailureError: if the pool cannot be mapped.
    """
    if memory.buffer is not None:
        return memory.buffer
    with _os_errors(f"{memory.name} pool"):
        return _map(_span_of(memory), f"{memory.name} pool")


def _open(source: str | os.PathLike[str] | int, *, writable: bool) -> int:
    if isinstance(source, int):
        return os.dup(source)
    # Opening a FIFO would block without O_NONBLOCK; regular files ignore it.
    access = os.O_RDWR if writable else os.O_RDONLY
    return os.open(source, access | os.O_NONBLOCK | os.O_CLOEXEC)


def _span_of(memory: Memory) -> _Span:
    fds, ints = memory.handle.fds, memory.handle.ints
    if memory.name not in ("mmap_fd", "ashmem"):
        raise GeneralFailureError(f"a {memory.name} pool cannot be mapped")
    if len(fds) != 1 or len(ints) != (3 if memory.name == "mmap_fd" else 0):
        raise InvalidArgumentError(
            f"the handle of a {memory.name} pool has {len(fds)} descriptors and "
            f"{len(ints)} integers"
        )
    if not ints:
        return _Span(fds[0], _access(fds[0]), 0, memory.size)
    protection, low, high = ints
    if protection & ~_READ_WRITE:
        raise InvalidArgumentError(f"{protection:#x} is not a protection of memory")
    return _Span(fds[0], protection, (high & _WORD) << 32 | low & _WORD, memory.size)


def _map(span: _Span, where: str) -> memoryview:
    size = _file_size(span.fd, where)
    if span.offset < 0 or span.length < 0 or span.offset + span.length > size:
        raise InvalidArgumentError(
            f"{where}: {span.length} bytes at offset {span.offset} are not within "
            f"a file of {size} bytes"
        )
    if not span.length:
        return memoryview(b"")
    skipped = span.offset % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(
        span.fd,
        span.length + skipped,
        prot=span.protection,
        offset=span.offset - skipped,
    )
    return memoryview(pages)[skipped:]


def _file_size(fd: int, where: str) -> int:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise InvalidArgumentError(f"{where}: a directory, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{where}: not a regular file")
    return status.st_size


def _access(fd: int) -> int:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    return _READ_WRITE if flags & os.O_ACCMODE == os.O_RDWR else mmap.PROT_READ


@contextmanager
def _os_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GeneralFailureError(f"{where}: {reason}") from error
