"""How a model cache is closed, and what tells at once that one was changed.

A file is the tag (a keyed hash) of all that follows, the digest (one that anybody can
make) of all that follows it, `MAGIC`, the token, and the content. Only the tag protects
a driver. But the digest needs no key: a client sees by it, without asking its driver,
that a file of its own is damaged.

The HAL has a changed model cache refused by the call that loads it, not only by the
callback. So files of up to `MOST_AT_ONCE_BYTES` are read within the call, unless their
file system waits for others than this machine: no loop may wait for those.

Source: HAL 1.2/IDevice.hal (prepareModelFromCache).
"""

import hashlib
import hmac
import mmap
import os
import stat
from collections.abc import Callable, Sequence

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import BYTE_SIZE_OF_CACHE_TOKEN
from asyncnn.memory.handles import access_of, seals_of

TAG_BYTES = 32
"""Length of what `cache_format.CacheKey.tag` returns."""

MAGIC = b"asyncnnM"

MOST_BYTES = 2**28
"""A model cache that is longer is neither written nor read."""

MOST_AT_ONCE_BYTES = 2**23
"""A longer one, of some 45,000 operations, is read beside the event loop."""

READABLE = frozenset({os.O_RDONLY, os.O_RDWR})

_DIGEST = "sha256"
_DIGEST_BYTES = 32
_DIGEST_END = TAG_BYTES + _DIGEST_BYTES
_MAGIC_END = _DIGEST_END + len(MAGIC)
_HEADER_BYTES = _MAGIC_END + BYTE_SIZE_OF_CACHE_TOKEN
_WORTH_PAGES_BYTES = 2**16


def closed(
    parts: Sequence[bytes], token: bytes, tag: Callable[[bytes], bytes]
) -> bytes:
    """Return the bytes of a model cache; ``tag`` makes the tag.

    :raises GeneralFailureError: if they would be too many.
    """
    if _HEADER_BYTES + sum(map(len, parts)) > MOST_BYTES:
        raise GeneralFailureError("the model is too large to be cached")
    rest = b"".join((MAGIC, token, *parts))
    rest = hashlib.new(_DIGEST, rest).digest() + rest
    return tag(rest) + rest


def content_of(data: memoryview, token: bytes) -> memoryview:
    """Return the content of a model cache whose tag or digest was checked.

    :raises GeneralFailureError: if it is none, or that of another token.
    """
    if data[_DIGEST_END:_MAGIC_END] != MAGIC:
        raise GeneralFailureError("not a model cache")
    if data[_MAGIC_END:_HEADER_BYTES] != token:
        raise GeneralFailureError("the model cache has another token")
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
        raise GeneralFailureError("the model cache is not as it was written")
    content_of(data, token)


def read_at_once(fd: int) -> memoryview | None:
    """Return the contents of a file, None if it is long or may not answer soon.

    :raises GeneralFailureError: if it is no regular file, or cannot be read.
    """
    try:
        status, access = os.fstat(fd), access_of(fd)
    except (OSError, OverflowError) as error:
        raise GeneralFailureError(f"cache file {fd}: {error}") from error
    # Before it is asked anything: a pipe could keep its reader waiting.
    if access not in READABLE or not stat.S_ISREG(status.st_mode):
        raise GeneralFailureError(f"cache file {fd} is not a file that can be read")
    if status.st_size > MOST_AT_ONCE_BYTES or not _is_of_this_machine(fd):
        return None
    return read_all(fd, MOST_AT_ONCE_BYTES)


def read_all(fd: int, most: int = MOST_BYTES) -> memoryview:
    """Return the contents of a file, read once.

    :raises GeneralFailureError: if there are more bytes than ``most``, or none can be
        read.
    """
    size = os.fstat(fd).st_size
    if size > most:
        raise GeneralFailureError(f"a cache file of {size} bytes")
    try:
        # One byte more than there is: what is appended meanwhile is not overlooked.
        buffer = _short_lived(size + 1)
        return buffer[: os.preadv(fd, [buffer], 0)].toreadonly()
    except OSError as error:
        raise GeneralFailureError(f"a cache file: {error.strerror}") from error


def is_at_hand(fd: int) -> bool:
    """Tell whether a file is in memory, or on a disk of this machine that was read."""
    try:
        return bool(seals_of(fd)) or _is_in_memory(fd)
    except OSError:
        return False


def _is_of_this_machine(fd: int) -> bool:
    try:
        return bool(seals_of(fd)) or _is_in_memory(fd)
    except BlockingIOError:  # it is on a disk, and was not read yet
        return True
    except OSError:
        return False


def _is_in_memory(fd: int) -> bool:
    # File systems that wait for others than this machine refuse this flag.
    os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    return True


def _short_lived(size: int) -> memoryview:
    """Return memory that goes back to the system at once if it is much."""
    is_much = size >= _WORTH_PAGES_BYTES
    return memoryview(mmap.mmap(-1, size) if is_much else bytearray(size))
