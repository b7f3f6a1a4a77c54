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
_PROTECTIONS = mmap.PROT_READ | mmap.PROT_WRITE


class _Span(NamedTuple):
    """Bytes of a file and how to map them."""

    fd: int
    protection: int
    offset: int
    length: int


def from_buffer(
    buffer: bytes | bytearray | memoryview | mmap.mmap | NDArray[Any],
) -> Memory:
    """Return an ``ashmem`` pool over memory of this process, without copying it.

    The pool keeps ``buffer`` alive; it is writable if ``buffer`` is.

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
    descriptor and mapping; both go when the pool and all views of it are gone. The
    file must not shrink meanwhile: touching lost pages kills the process.

    :raises InvalidArgumentError: if the bytes do not lie within a regular file.
    :raises GeneralFailureError: if the file cannot be opened or mapped.
    """
    access = os.O_RDWR if writable else os.O_RDONLY
    with _os_errors(f"cannot open {source}"):
        # A FIFO would block without O_NONBLOCK; regular files ignore it.
        fd = (
            os.dup(source)
            if isinstance(source, int)
            else os.open(source, access | os.O_NONBLOCK)
        )
    try:
        rest = _file_size(fd) - offset
        span = _Span(
            fd,
            _PROTECTIONS if writable else mmap.PROT_READ,
            offset,
            rest if length is None else length,
        )
        ints = (span.protection, offset & _WORD, offset >> 32)
        memory = Memory("mmap_fd", span.length, Handle((fd,), ints), _map(span))
    except BaseException:
        os.close(fd)
        raise
    weakref.finalize(memory, os.close, fd)
    return memory


def view(memory: Memory) -> memoryview:
    """Return the bytes of a pool; one without a buffer is mapped anew by each call.

    :raises InvalidArgumentError: if the handle is malformed or its file shorter than
        the pool.
    :raises GeneralFailureError: if the pool cannot be mapped.
    """
    if memory.buffer is not None:
        return memory.buffer
    return _map(_span_of(memory))


def _span_of(memory: Memory) -> _Span:
    fds, ints = memory.handle.fds, memory.handle.ints
    if memory.name not in ("mmap_fd", "ashmem"):
        raise GeneralFailureError(f"pools of kind {memory.name!r} cannot be mapped")
    if len(fds) != 1 or len(ints) != (3 if memory.name == "mmap_fd" else 0):
        raise InvalidArgumentError(
            f"the handle of a {memory.name} pool cannot have {len(fds)} descriptors "
            f"and {len(ints)} integers"
        )
    if not ints:
        return _Span(fds[0], _access_of(fds[0]), 0, memory.size)
    protection, low, high = ints
    if protection & ~_PROTECTIONS:
        raise InvalidArgumentError(f"{protection:#x} is not a memory protection")
    return _Span(fds[0], protection, (high & _WORD) << 32 | low & _WORD, memory.size)


def _map(span: _Span) -> memoryview:
    size = _file_size(span.fd)
    if span.offset < 0 or span.length < 0 or span.offset + span.length > size:
        raise InvalidArgumentError(
            f"{span.length} bytes at offset {span.offset} are not within "
            f"a file of {size} bytes"
        )
    if not span.length:
        return memoryview(b"")
    skipped = span.offset % mmap.ALLOCATIONGRANULARITY
    with _os_errors(f"cannot map {span.length} bytes"):
        pages = mmap.mmap(
            span.fd,
            span.length + skipped,
            prot=span.protection,
            offset=span.offset - skipped,
        )
    return memoryview(pages)[skipped:]


def _file_size(fd: int) -> int:
    with _os_errors(f"cannot examine descriptor {fd}"):
        status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError("only regular files can be mapped")
    return status.st_size


def _access_of(fd: int) -> int:
    with _os_errors(f"cannot examine descriptor {fd}"):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    return _PROTECTIONS if flags & os.O_ACCMODE == os.O_RDWR else mmap.PROT_READ


@contextmanager
def _os_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GeneralFailureError(f"{what}: {reason}") from error
