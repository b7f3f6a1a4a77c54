"""The files of one cached model, as the handles of a call give them.

Other processes may have mapped a file that they loaded a model from. Truncating it
would kill them, so each holds a shared lock for as long as it maps, and writing takes
an exclusive one. A lock belongs to an open file, so mappings open one of their own
instead of sharing it with the client.

A model cache is the tag (a keyed hash) of all that follows, the digest (one that
anybody can make) of all that follows it, `MAGIC`, the token, and the content. Only the
tag protects a driver. But the digest needs no key: a client sees by it, without asking
its driver, that a file of its own is damaged.

The HAL has a changed model cache refused by the call that loads it, not only by the
callback. So caches of up to `MOST_AT_ONCE_BYTES` are read within the call, unless their
file system waits for others than this machine: no loop may wait for those.

Source: HAL 1.2/IDevice.hal (prepareModelFromCache).
"""

import errno
import fcntl
import hashlib
import hmac
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import ParamSpec, TypeAlias, TypeVar

import msgspec

from asyncnn import hal
from asyncnn.deadlines import deadline_after
from asyncnn.hal.refusals import CacheArguments, checked_descriptors
from asyncnn.input_files import PATIENCE_S, abandonable_steps, in_one
from asyncnn.memory.descriptors import Descriptor, ReceivedDescriptor
from asyncnn.memory.handles import access_of, is_memory_file, keeps_its_bytes, seals_of
from asyncnn.memory.pages import (
    TAIL_BYTES,
    aligned_bytes,
    os_errors,
    read_into,
    write_all,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import Steps

MODEL_FILES = 1
DATA_FILES = 1

TAG_BYTES = 32
"""Length of what `cache_format.CacheKey.tag` returns."""

MAGIC = b"asyncnnM"

MOST_BYTES = 2**28
"""A model cache that is longer is neither written nor read."""

MOST_AT_ONCE_BYTES = 2**23
"""A longer one, of some 45,000 operations, is read beside the event loop."""

_READABLE = frozenset({os.O_RDONLY, os.O_RDWR})

_DIGEST = "sha256"
_DIGEST_BYTES = 32
_DIGEST_END = TAG_BYTES + _DIGEST_BYTES
_MAGIC_END = _DIGEST_END + len(MAGIC)
_HEADER_BYTES = _MAGIC_END + hal.BYTE_SIZE_OF_CACHE_TOKEN
_WORTH_PAGES_BYTES = 2**16

_OTHERS_WRITE = 0o022

P = ParamSpec("P")
T = TypeVar("T")

Chunks: TypeAlias = Sequence[tuple[int, memoryview]]
"""Contents of a file: bytes and where they lie."""


class CacheFiles(msgspec.Struct, frozen=True, eq=False):
    """Duplicates of a client's descriptors, and the token that goes with them.

    ``data_file`` identifies the file of the data: device and inode. It is
    what the handle of a copy says, in its integers, that it is a copy of.
    """

    model: Descriptor
    data: Descriptor
    token: bytes
    data_file: tuple[int, ...] = ()


def opened_for_saving(cache: CacheArguments) -> CacheFiles | None:
    """Return the files to save a model in; None if the client wants no cache.

    :raises InvalidArgumentError: if they are not what the driver needs.
    :raises GeneralFailureError: if one cannot be read and written.
    """
    if not cache.model_cache and not cache.data_cache:
        return None
    return _opened(cache, frozenset({os.O_RDWR}))


def opened_empty(cache: CacheArguments) -> CacheFiles:
    """Return the files to save a model in that was prepared before.

    :raises InvalidArgumentError: if they are not what the driver needs, or not empty.
    :raises GeneralFailureError: if one is no file.
    """
    files = _opened(cache, _READABLE | {os.O_WRONLY})
    check_empty((files.model, files.data))
    return files


def check_empty(files: Iterable[Descriptor]) -> None:
    """Check that files can be read and written, are empty and at offset 0. May block.

    :raises InvalidArgumentError: if one is not so.
    :raises GeneralFailureError: if one is no file.
    """
    for file in files:
        status = os.fstat(file.fd)
        if not stat.S_ISREG(status.st_mode):
            raise hal.GeneralFailureError("a cache file is not a regular file")
        if (
            access_of(file.fd) != os.O_RDWR
            or status.st_size
            or os.lseek(file.fd, 0, os.SEEK_CUR)
        ):
            raise hal.InvalidArgumentError(
                "a cache file is not empty, at offset 0 and open for both ways"
            )


def opened_for_loading(cache: CacheArguments) -> CacheFiles:
    """Return the files to load a model from.

    :raises InvalidArgumentError: if they are not what the driver needs.
    :raises GeneralFailureError: if one cannot be read.
    """
    return _opened(cache, _READABLE)


def _opened(cache: CacheArguments, accesses: frozenset[int]) -> CacheFiles:
    model, data = (
        _duplicate(fd, accesses)
        for fd in checked_descriptors(cache, (MODEL_FILES, DATA_FILES))
    )
    if os.path.sameopenfile(model.fd, data.fd):
        raise hal.InvalidArgumentError("model and data cache are the same file")
    data_file = cache.data_cache[0].ints or file_of(data.fd)
    return CacheFiles(model, data, bytes(cache.token), data_file)


def file_of(fd: int) -> tuple[int, int]:
    """Return device and inode of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def closing(fd: int) -> Descriptor:
    """Return what closes ``fd``: at once, but for files that may keep it waiting."""
    return (Descriptor if _is_at_hand(fd) else ReceivedDescriptor)(fd)


def _duplicate(fd: int, accesses: frozenset[int]) -> Descriptor:
    try:
        descriptor = closing(os.dup(fd))
        access = access_of(descriptor.fd)
        status = os.fstat(descriptor.fd)
    except (OSError, OverflowError) as error:
        raise hal.GeneralFailureError(f"cache file {fd}: {error}") from error
    if access not in accesses or not stat.S_ISREG(status.st_mode):
        raise hal.GeneralFailureError(
            f"cache file {fd} is not a file that may be used as it has to be"
        )
    return descriptor


@contextmanager
def locked_for_writing(*descriptors: Descriptor) -> Iterator[None]:
    """Keep others from writing to files and from mapping them.

    :raises GeneralFailureError: if one is being written or is mapped.
    """
    with ExitStack() as locks:
        for descriptor in descriptors:
            _lock(descriptor.fd, fcntl.LOCK_EX)
            locks.callback(fcntl.flock, descriptor.fd, fcntl.LOCK_UN)
        yield


def asking(
    files: Sequence[Descriptor],
    function: Callable[P, T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Steps[T]:
    """Call what uses files, in steps: the file system of one may not answer.

    :raises GeneralFailureError: then.
    """
    if all(_is_at_hand(file.fd) for file in files):
        return function(*args, **kwargs)
    what, limit = "using cache files", deadline_after(PATIENCE_S)
    try:
        return (
            yield from abandonable_steps(
                what, in_one(function, *args, **kwargs), deadline=limit
            )
        )
    except (hal.MissedDeadlineError, hal.ResourceExhaustedError) as error:
        raise hal.GeneralFailureError(error.message) from error


def replace_together(files: Sequence[Descriptor], contents: Sequence[Chunks]) -> None:
    """Write all files anew, the first one last, or empty them if that fails.

    :raises GeneralFailureError: if it does; or if one is in use, and then all are as
        before.
    """
    with locked_for_writing(*files):
        try:
            os.ftruncate(files[0].fd, 0)
            for file, chunks in reversed(list(zip(files, contents, strict=True))):
                _replace_contents(file.fd, chunks)
        except OSError as error:
            for file in files:
                with suppress(OSError):
                    os.ftruncate(file.fd, 0)
            raise hal.GeneralFailureError(f"not cached: {error.strerror}") from error


def _replace_contents(fd: int, chunks: Chunks) -> None:
    """Write a file anew: each chunk of bytes at its offset, zeros in between."""
    os.ftruncate(fd, 0)
    for offset, chunk in chunks:
        write_all(fd, chunk, offset)
    os.fdatasync(fd)


def read(file: Descriptor) -> memoryview:
    """Return the contents of a file, which stays open until it was read.

    :raises GeneralFailureError: if there are too many bytes, or none can be read.
    """
    return _read(file.fd)


def read_or_map(
    file: Descriptor, size: int, header: bytes, *, may_map: bool
) -> hal.Memory:
    """Return a pool of the bytes of a data cache: mapped if that is safe, else a copy.

    Mapping is safe if the file cannot shrink, or if only this user could do that and
    ``may_map`` says that it will not.

    :raises GeneralFailureError: if there are not ``size`` bytes, they do not begin with
        ``header``, or they are being written.
    """
    fd = file.fd
    try:
        mapped = _map(fd, size, header) if may_map or _never_shrinks(fd) else None
        return mapped or _copy(fd, size, header)
    except (OSError, ValueError) as error:
        raise hal.GeneralFailureError(f"the data cache: {error}") from error


def _map(fd: int, size: int, header: bytes) -> hal.Memory | None:
    """Map a file that holds ``size`` bytes; None if that would not be safe."""
    try:
        # An open file of its own, whose lock goes with the mapping.
        own = Descriptor(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None
    _lock(own.fd, fcntl.LOCK_SH)
    status = os.fstat(own.fd)
    _check_size(status, size)
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
    if not is_ours and not _never_shrinks(fd):
        return None
    # Not by way of the mapping: the system would also map what lies around the header.
    _check_header(os.pread(own.fd, len(header), 0), header)
    return from_buffer(mmap.mmap(own.fd, size, access=mmap.ACCESS_READ))


def _copy(fd: int, size: int, header: bytes) -> hal.Memory:
    _check_size(os.fstat(fd), size)
    with os_errors("the data cache", size):
        copy = aligned_bytes(size + TAIL_BYTES)[:size]
        if read_into(copy.data, fd, 0) < size:
            raise hal.GeneralFailureError("the data cache has lost bytes")
    # Read last: writers write it first, so none began before the copy was complete.
    _check_header(os.pread(fd, len(header), 0), header)
    copy.flags.writeable = False
    return from_buffer(copy)


def _check_header(found: bytes, header: bytes) -> None:
    if found != header:
        raise hal.GeneralFailureError("the data cache belongs to another compilation")


def _check_size(status: os.stat_result, size: int) -> None:
    if status.st_size != size:
        raise hal.GeneralFailureError(
            f"the data cache has {status.st_size} bytes instead of {size}"
        )


def _never_shrinks(fd: int) -> bool:
    return keeps_its_bytes(seals_of(fd), os.fstat(fd).st_dev)


def _lock(fd: int, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise hal.GeneralFailureError("a cache file is in use") from error
        raise hal.GeneralFailureError(f"a cache file: {error.strerror}") from error


def closed(
    parts: Sequence[bytes], token: bytes, tag: Callable[[bytes], bytes]
) -> bytes:
    """Return the bytes of a model cache; ``tag`` makes the tag.

    :raises GeneralFailureError: if they would be too many.
    """
    if _HEADER_BYTES + sum(map(len, parts)) > MOST_BYTES:
        raise hal.GeneralFailureError("the model is too large to be cached")
    rest = b"".join((MAGIC, token, *parts))
    rest = hashlib.new(_DIGEST, rest).digest() + rest
    return tag(rest) + rest


def content_of(data: memoryview, token: bytes) -> memoryview:
    """Return the content of a model cache whose tag or digest was checked.

    :raises GeneralFailureError: if it is none, or of another token.
    """
    if data[_DIGEST_END:_MAGIC_END] != MAGIC:
        raise hal.GeneralFailureError("not a model cache")
    if data[_MAGIC_END:_HEADER_BYTES] != token:
        raise hal.GeneralFailureError("the model cache has another token")
    return data[_HEADER_BYTES:]


def check_unchanged(fd: int, token: bytes) -> None:
    """Check a model cache without the key, unless that takes long.

    :raises GeneralFailureError: if the file is none that can be read, was changed since
        it was written, or is for another token.
    """
    data = read_at_once(fd)
    if data is not None:
        check_digest(data, token)


def check_digest(data: memoryview, token: bytes) -> None:
    """Check all bytes of a model cache against one another.

    :raises GeneralFailureError: if they were changed, or are for another token.
    """
    found = hashlib.new(_DIGEST, data[_DIGEST_END:]).digest()
    if not hmac.compare_digest(data[TAG_BYTES:_DIGEST_END], found):
        raise hal.GeneralFailureError("the model cache is not as it was written")
    content_of(data, token)


def read_at_once(fd: int) -> memoryview | None:
    """Return the contents of a file, None if it is long or may not answer soon.

    :raises GeneralFailureError: if it is no regular file, or cannot be read.
    """
    try:
        status, access = os.fstat(fd), access_of(fd)
    except (OSError, OverflowError) as error:
        raise hal.GeneralFailureError(f"cache file {fd}: {error}") from error
    # Before it is asked anything: a pipe could keep its reader waiting.
    if access not in _READABLE or not stat.S_ISREG(status.st_mode):
        raise hal.GeneralFailureError(f"cache file {fd} is not a file that can be read")
    if status.st_size > MOST_AT_ONCE_BYTES or not _is_at_hand(fd, if_unread=True):
        return None
    return _read(fd, MOST_AT_ONCE_BYTES)


def _read(fd: int, most: int = MOST_BYTES) -> memoryview:
    """Return the contents of a file, read once."""
    size = os.fstat(fd).st_size
    if size > most:
        raise hal.GeneralFailureError(f"a cache file of {size} bytes")
    try:
        # One byte more than there is: what is appended meanwhile is not overlooked.
        buffer = _short_lived(size + 1)
        return buffer[: os.preadv(fd, [buffer], 0)].toreadonly()
    except OSError as error:
        raise hal.GeneralFailureError(f"a cache file: {error.strerror}") from error


def _is_at_hand(fd: int, *, if_unread: bool = False) -> bool:
    """Return whether a file is in memory, or on a disk of this machine that was read.

    One on such a disk that was not read yet is so ``if_unread``.
    """
    try:
        if not is_memory_file(fd):
            # File systems that wait for others than this machine refuse this flag.
            os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return if_unread
    except OSError:
        return False
    return True


def _short_lived(size: int) -> memoryview:
    """Return memory that goes back to the system at once if it is much."""
    is_much = size >= _WORTH_PAGES_BYTES
    return memoryview(mmap.mmap(-1, size) if is_much else bytearray(size))
