"""Pools in POSIX shared memory, which other processes can find by name.

Prefer `asyncnn.memory.allocate`: named memory cannot be sealed, so that a driver that
does not trust its client has to copy it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import posix_ipc  # type: ignore[import-not-found]

from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.handles import READ, READ_WRITE, Span
from asyncnn.memory.pages import map_pages, os_errors
from asyncnn.memory.pools import own

_OWNER_ONLY = 0o600
# posix_ipc 1.3.2 crashes on what cannot be encoded, and on null characters.
_NAME = re.compile(r"/[^/\0\ud800-\udfff]+")


class NamedPool(NamedTuple):
    """An ``ashmem`` pool, and the name that `open_named` finds it by."""

    name: str
    memory: Memory


def allocate_named(size: int, name: str | None = None) -> Memory:
    """Return a writable ``ashmem`` pool of ``size`` zeros in POSIX shared memory.

    Its name, by default a random one, is taken away as soon as it exists, so that none
    is left behind however the process ends.

    :raises InvalidArgumentError: if ``size`` is negative, or ``name`` not a slash and
        more, without another one.
    :raises GeneralFailureError: if the name is taken or too long.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    name, fd = _create(size, name)
    _unlink(name)
    return _fill(fd, size)


@contextmanager
def publish_named(size: int, name: str | None = None) -> Iterator[NamedPool]:
    """Make a pool like that of `allocate_named`; keep its name until the block ends.

    The pool stays usable afterwards. Only processes of the same user can open it. The
    name outlives a process that is killed within the block.

    :raises InvalidArgumentError: if ``size`` is negative, or ``name`` not a slash and
        more, without another one.
    :raises GeneralFailureError: if the name is taken or too long.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    name, fd = _create(size, name)
    try:
        yield NamedPool(name, _fill(fd, size))
    finally:
        _unlink(name)


def open_named(name: str, *, writable: bool = True) -> Memory:
    """Return the pool that another process has published, mapped as a whole.

    :raises InvalidArgumentError: if there cannot be such a name.
    :raises GeneralFailureError: if there is none or it may not be opened.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    _check(name)
    with _errors_of(name):
        fd = posix_ipc.SharedMemory(name, read_only=not writable).fd
        try:
            size = os.fstat(fd).st_size
            span = Span(fd, READ_WRITE if writable else READ, 0, size)
            return own(Memory("ashmem", size, Handle((fd,)), map_pages(span, 0)))
        except BaseException:
            os.close(fd)
            raise


def _create(size: int, name: str | None) -> tuple[str, int]:
    if size < 0:
        raise InvalidArgumentError(f"a pool of {size} bytes")
    if name is None:
        name = f"/asyncnn-{os.getpid()}-{os.urandom(8).hex()}"
    _check(name)
    with _errors_of(name):
        segment = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=_OWNER_ONLY)
    return name, segment.fd


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{name[:40]!r} is not a name of shared memory")


def _fill(fd: int, size: int) -> Memory:
    """Give an empty segment its size and map it; close it if that fails."""
    where = f"pool of {size} bytes"
    with os_errors(where):
        try:
            if size:
                # Where /dev/shm is full, fail here rather than at the first touch.
                os.posix_fallocate(fd, 0, size)
            data = map_pages(Span(fd, READ_WRITE, 0, size), 0)
            return own(Memory("ashmem", size, Handle((fd,)), data))
        except BaseException:
            os.close(fd)
            raise


def _unlink(name: str) -> None:
    with suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_shared_memory(name)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    with os_errors(f"shared memory {name!r}"):
        try:
            yield
        except posix_ipc.Error as error:
            message = f"shared memory {name!r}: {error}"
            raise GeneralFailureError(message) from error
