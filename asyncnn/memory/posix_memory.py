"""Named POSIX shared memory and semaphores: who owns them, and what was left behind.

The objects of this project are called ``/asyncnn-UID-NAME``, and only their user can
open them. Their owner holds a lock on the byte `OWNER`, which the kernel releases
however that process ends. So a name whose lock is free was left behind, and the next
owner takes it: what a killed process leaves in /dev/shm lasts until then, at most.

POSIX has no way to keep such an object from shrinking, unlike a memory file with seals.
Any process of its user can cut it short, and touching a mapping of what is gone ends
the process that does.

Locks are of open file descriptions. Unlike a process's locks they outlast the
closing of other descriptors of the object, and count between two parts of a process.

Any language opens an array in such memory by ``shm_open``. Where both ends run Python,
`asyncnn.named_array` is better: its memory is sealed, and no name is left behind.
"""

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Self

import numpy as np
import posix_ipc  # type: ignore[import-not-found]
from numpy.typing import DTypeLike, NDArray

from asyncnn.hal.errors import (
    BusyError,
    GeneralFailureError,
    InvalidArgumentError,
    WrongTypeError,
)
from asyncnn.hal.types import Memory
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import create_file
from asyncnn.memory.pages import copy_bytes, os_errors
from asyncnn.memory.pools import map_file
from asyncnn.memory.shared import final_pool
from asyncnn.memory.slabs import array_in

MAX_NAME_BYTES = 64

OWNER = 0
"""The byte whose lock the owner of an object holds."""

PRODUCER = 1
"""The byte whose lock the producer of a frame queue holds."""

_MOST_BYTES = 240
"""Of any name: NAME_MAX, less what is added for semaphores."""

_MODE = 0o600
_OTHERS = 0o077
_ATTEMPTS = 16
_FLOCK = "hhqqi"


class OwnedObject:
    """A new object of zeros of an `own_name`, which ends with it.

    It and the semaphores with these suffixes go by `close`, with this object, or at the
    end of the interpreter. Until then this holds the owner's lock.

    :raises GeneralFailureError: if the name is taken.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """

    def __init__(self, name: str, size: int, suffixes: Sequence[str] = ()) -> None:
        fd = _create(name)
        semaphores = [name + suffix for suffix in suffixes]
        self._end = weakref.finalize(self, _unlink, name, semaphores, fd)
        try:
            with os_errors(f"{name} of {size} bytes", size):
                # Pages are had now: one that is missing later ends who touches it.
                os.posix_fallocate(fd.fd, 0, size)
        except BaseException:
            self.close()
            raise
        disown_in_children(self)

    def disown(self) -> None:
        """Leave the names to the process that this one was forked from.

        The child closes its copy of the descriptor: it would hold the lock, too.
        """
        self._end.detach()

    def close(self) -> None:
        """Remove the names; who has the object by then keeps it."""
        self._end()


class Semaphore:
    """A named POSIX semaphore that other processes can take and post, too."""

    def __init__(self, opened: posix_ipc.Semaphore) -> None:
        self._opened = opened
        self._end = weakref.finalize(self, opened.close)
        self._end.atexit = False  # a thread may be waiting for it

    @classmethod
    def make(cls, name: str, value: int) -> Self:
        """Make one for an object that is owned; one left behind is removed.

        :raises GeneralFailureError: if another user has one of that name.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        with _posix_errors(name):
            with suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_semaphore(name)
            return cls(posix_ipc.Semaphore(name, posix_ipc.O_CREX, _MODE, value))

    @classmethod
    def open(cls, name: str) -> Self:
        """Open one of an object.

        :raises GeneralFailureError: if there is none, or it cannot be opened.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        with _posix_errors(name):
            return cls(posix_ipc.Semaphore(name))

    @property
    def value(self) -> int:
        """How often it can be taken at once."""
        return int(self._opened.value)

    def take(self, timeout: float | None) -> bool:
        """Wait until it was posted, for some seconds at most, or until a signal."""
        try:
            self._opened.acquire(timeout)
        except (posix_ipc.BusyError, posix_ipc.SignalError):
            return False
        return True

    def post(self) -> None:
        """Wake who waits. One that is as high as it can be wakes anyway."""
        with suppress(posix_ipc.Error, OSError, ValueError):
            self._opened.release()

    def close(self) -> None:
        """Close it; nobody may be using it, nor do so later."""
        self._end()


def own_name(name: str) -> str:
    """Return what POSIX calls an object that this user may make.

    :raises InvalidArgumentError: if there cannot be such a name.
    """
    _require_text(name)
    return _checked(name, f"/asyncnn-{os.geteuid()}-{name}", MAX_NAME_BYTES)


def posix_name(name: str) -> str:
    """Return what POSIX calls an object: of this project, or with a slash in front any.

    :raises InvalidArgumentError: if there cannot be such a name.
    """
    _require_text(name)
    if name.startswith("/"):
        return _checked(name[1:], name, _MOST_BYTES)
    return own_name(name)


def _require_text(name: object) -> None:
    if not isinstance(name, str):
        raise WrongTypeError(f"{name!r} is no name of shared memory", hint="take text")


def _checked(own: str, name: str, most: int) -> str:
    with suppress(UnicodeEncodeError):
        # The library that opens objects does not survive a NUL.
        if 0 < len(own.encode()) <= most and not {"/", "\0"} & {*own}:
            return name
    raise InvalidArgumentError(
        f"{own[:40]!r} is no name of shared memory",
        hint=f"take 1 to {most} bytes without a slash",
    )


def open_object(name: str) -> Descriptor:
    """Open an object of this user, by a name of `posix_name`.

    :raises GeneralFailureError: if there is none, or others may access it.
    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """
    found = _open(name)
    if found is None:
        raise GeneralFailureError(
            f"there is no shared memory {name!r}",
            hint="the process that makes it has to run; names of programs without "
            "asyncnn are given with a slash in front",
        )
    return found


def lock(fd: int, byte: int) -> bool:
    """Lock a byte of an object for this descriptor; False if another one has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(fd: int, byte: int) -> bool:
    """Return whether another descriptor than this one holds a byte's lock."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, byte))
    return bool(struct.unpack_from(_FLOCK, found)[0] != fcntl.F_UNLCK)


def _create(name: str) -> Descriptor:
    """Make an object without bytes, and lock it.

    What another process takes for left behind, as it is not locked yet, is made again:
    an object is its owner's who holds the lock while the name stands for it.
    """
    for _ in range(_ATTEMPTS):
        found = _open(name)
        if found is not None:
            _remove_left(name, found)
        with _posix_errors(name), suppress(posix_ipc.ExistentialError):
            made = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=_MODE)
            fd = Descriptor(made.fd)
            if lock(fd.fd, OWNER) and _stands_for(name, fd):
                return fd
    raise BusyError(f"the name {name!r} is being taken by others")


def _remove_left(name: str, found: Descriptor) -> None:
    """Remove an object whose owner has gone."""
    if not lock(found.fd, OWNER):
        raise GeneralFailureError(f"the name {name!r} is taken")
    if _stands_for(name, found):
        with suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(name)


def _open(name: str) -> Descriptor | None:
    with _posix_errors(name):
        try:
            found = Descriptor(posix_ipc.SharedMemory(name).fd)
        except posix_ipc.ExistentialError:
            return None
    status = os.fstat(found.fd)
    if status.st_uid != os.geteuid():
        raise GeneralFailureError(f"{name} belongs to user {status.st_uid}")
    if status.st_mode & _OTHERS:
        raise GeneralFailureError(
            f"{name}: others than its user may access it", hint="make it with mode 0600"
        )
    return found


def _stands_for(name: str, fd: Descriptor) -> bool:
    """Needs no descriptor, and no access: names also go where those are missing."""
    with suppress(OSError):
        found = os.stat(f"/dev/shm{name}", follow_symlinks=False)
        return os.path.samestat(found, os.fstat(fd.fd))
    return False


def _unlink(name: str, semaphores: Sequence[str], fd: Descriptor) -> None:
    """Remove names. The lock is held until they have gone, by ``fd``."""
    for each in semaphores:
        with suppress(posix_ipc.Error, OSError):
            posix_ipc.unlink_semaphore(each)
    with suppress(posix_ipc.Error, OSError):
        if _stands_for(name, fd):
            posix_ipc.unlink_shared_memory(name)


@contextmanager
def _posix_errors(name: str) -> Iterator[None]:
    """Turn errors of the library and the system into the HAL's."""
    with os_errors(name):
        try:
            yield
        except posix_ipc.Error as error:
            raise GeneralFailureError(f"{name}: {error}") from error
        except OSError as error:
            if error.errno is None:  # so the library says that descriptors ran out
                raise OSError(errno.EMFILE, str(error)) from error
            raise


def _flock(kind: int, byte: int) -> bytes:
    return struct.pack(f"{_FLOCK}4x", kind, os.SEEK_SET, byte, 1, 0)


@contextmanager
def posix_array(
    name: str, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32
) -> Iterator[NDArray[Any]]:
    """Yield a new array of zeros in the shared memory ``/asyncnn-UID-NAME``.

    As an argument of a run it is used where it is, by devices of this process and by
    drivers that trust their user (`asyncnn serve --trust-same-uid`); others copy it.
    Its name goes with the block. If this process is killed, the next owner of the name
    removes what is left.

    Processes of this user can open it, and only they. They are trusted: one that cuts
    the memory short ends each process that touches what is gone.

    :raises InvalidArgumentError: if there cannot be such a name or array.
    :raises GeneralFailureError: if the name is taken.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    dimensions, element, size = dimensions_of(shape, dtype)
    path = own_name(name)
    with closing(OwnedObject(path, size)):
        # A descriptor of its own: the array, which may live on, takes no lock along.
        own = open_object(path)
        pool = map_file(own.fd, 0, size, writable=True)
        yield array_in(pool, element, dimensions)


def dimensions_of(
    shape: int | tuple[int, ...], dtype: DTypeLike
) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and dtype of an array, and the bytes that hold it, at least 1.

    :raises InvalidArgumentError: if there is no such array, or it would hold objects.
    """
    try:
        array = np.broadcast_to(np.zeros((), dtype), shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"there is no array of shape {shape!r} and dtype {dtype!r}: {error}"
        ) from None
    if array.dtype.hasobject:
        raise InvalidArgumentError("an array of objects cannot lie in shared memory")
    return array.shape, array.dtype, max(1, array.nbytes)


def open_posix_array(
    name: str,
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.float32,
    *,
    trusted: bool = False,
) -> NDArray[Any]:
    """Return an array of what another process of this user has put into shared memory.

    It is a copy that nothing changes, in sealed memory, which drivers use where it is.
    The array of a ``trusted`` process is the memory itself, as of `posix_array`.

    :param name: a `posix_array`'s, or with a slash in front one that another
        program has chosen.
    :raises InvalidArgumentError: if there cannot be such a name or array.
    :raises GeneralFailureError: if there is no such memory, it is too short, or others
        than this user may access it.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    dimensions, element, size = dimensions_of(shape, dtype)
    path = posix_name(name)
    found = open_object(path)
    with os_errors(path):
        if os.fstat(found.fd).st_size < size:
            raise GeneralFailureError(f"{path} has less than {size} bytes")
        if trusted:
            pool = map_file(found.fd, 0, size, writable=True)
        else:
            pool = _copied(path, found, size)
    return array_in(pool, element, dimensions)


def _copied(path: str, source: Descriptor, size: int) -> Memory:
    draft = Descriptor(create_file("asyncnn-array"))
    if copy_bytes(source.fd, draft.fd, size) < size:
        raise GeneralFailureError(f"{path} has been cut short")
    return final_pool(draft)
