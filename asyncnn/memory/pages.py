"""The system calls that map files, checked before and translated after."""

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from asyncnn.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory.handles import Span, label, span_of
from asyncnn.memory.sealing import access_of, is_immutable, rights_of

_EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT}
)


def checked_span(memory: Memory, seals: int, status: os.stat_result) -> Span:
    """Return the span of a regular file that a pool's handle stands for.

    :raises InvalidArgumentError: if the kind is unknown, the handle malformed or the
        pool not within a regular file.
    :raises GeneralFailureError: if the descriptor does not grant the protection.
    """
    span = span_of(memory)
    check_within(span, status, label(memory))
    return granted(span, seals, label(memory))


def map_pages(span: Span, seals: int) -> memoryview:
    """Map a span that has been checked; the mapping goes with the last view of it."""
    if not span.length:
        return memoryview(b"")
    skipped = span.offset % mmap.ALLOCATIONGRANULARITY
    # Linux before 6.7 shares a file sealed against writing with no one who could have
    # written it; nobody can tell a private mapping of it from a shared one.
    flags = mmap.MAP_PRIVATE if is_immutable(seals) else mmap.MAP_SHARED
    pages = mmap.mmap(
        span.fd,
        span.length + skipped,
        flags=flags,
        prot=span.protection,
        offset=span.offset - skipped,
    )
    return memoryview(pages)[skipped:]


def granted(span: Span, seals: int, where: str) -> Span:
    """Return ``span`` with the protection to map it with.

    :raises GeneralFailureError: if the descriptor does not grant what it asks for.
    """
    rights = rights_of(access_of(span.fd), seals)
    protection = span.protection or rights
    if not rights or protection & ~rights:
        raise GeneralFailureError(
            f"{where}: Permission denied: the descriptor grants "
            f"{'reading only' if rights else 'no reading'}"
        )
    return span._replace(protection=protection)


def check_within(span: Span, status: os.stat_result, where: str) -> None:
    """Check that ``span`` lies within the regular file that ``status`` describes.

    :raises InvalidArgumentError: if it does not.
    """
    if stat.S_ISDIR(status.st_mode):
        raise InvalidArgumentError(f"{where}: a directory, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"{where}: not a regular file")
    _, _, offset, length = span
    if offset < 0 or length < 0 or offset + length > status.st_size:
        raise InvalidArgumentError(
            f"{where}: {length} bytes at offset {offset} are not within "
            f"a file of {status.st_size} bytes"
        )


@contextmanager
def os_errors(where: str) -> Iterator[None]:
    """Turn errors of the system into those of the HAL.

    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    :raises GeneralFailureError: for any other reason.
    """
    try:
        yield
    except (MemoryError, OSError, OverflowError, ValueError) as error:
        raise failure(error, where) from error


def failure(error: Exception, where: str) -> AsyncnnError:
    """Return the error of the HAL for one of the system's."""
    reason = getattr(error, "strerror", None) or error
    code = getattr(error, "errno", None)
    if code in _EXHAUSTED or isinstance(error, MemoryError):
        return ResourceExhaustedTransientError(f"{where}: {reason}")
    return GeneralFailureError(f"{where}: {reason}")
