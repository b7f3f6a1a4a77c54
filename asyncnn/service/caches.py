"""Cache files on their way from a client to its driver."""

import os
import stat
from collections.abc import Sequence

import msgspec

from asyncnn.devices.cache.cache_files import replace_together
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Handle
from asyncnn.memory.handles import FIXED_SIZE, access_of, create_file, seal
from asyncnn.memory.pages import Descriptor, os_errors
from asyncnn.memory.pools import map_file, view

_CHUNK = 2**20


class CacheInfo(msgspec.Struct, frozen=True, array_like=True):
    """The cache arguments of a call that travels, each file with one descriptor.

    The descriptors beside the message are those of the model files, then of the data
    files.
    """

    model_files: int
    data_files: int
    token: bytes


NO_CACHE = CacheInfo(0, 0, b"")


class SentCache(msgspec.Struct, frozen=True):
    """Cache arguments with their descriptors, which stay the caller's."""

    info: CacheInfo = NO_CACHE
    fds: tuple[int, ...] = ()


NOTHING_SENT = SentCache()


def to_send(
    model_cache: Sequence[Handle],
    data_cache: Sequence[Handle],
    token: bytes,
    needed: tuple[int, int],
) -> SentCache:
    """Return the arguments of a call; the driver needs so many files of each kind.

    :raises InvalidArgumentError: if they are not as many, not one descriptor each, or
        one file twice.
    :raises GeneralFailureError: if the driver caches no models, or one is not open.
    """
    if needed == (0, 0):
        raise GeneralFailureError("the driver does not cache models")
    handles = (*model_cache, *data_cache)
    counts = len(model_cache), len(data_cache)
    if counts != needed or any(len(handle.fds) != 1 for handle in handles):
        raise InvalidArgumentError(
            f"{counts[0]} model and {counts[1]} data cache files, but {needed[0]} and "
            f"{needed[1]} with one descriptor each are needed"
        )
    fds = tuple(handle.fds[0] for handle in handles)
    files: set[tuple[int, int]] = set()
    for fd in fds:
        try:
            status = os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise GeneralFailureError(f"cache file {fd} is not open") from error
        files.add((status.st_dev, status.st_ino))
    if len(files) < len(fds):
        raise InvalidArgumentError("a file cannot be two of a model's cache files")
    return SentCache(CacheInfo(*counts, bytes(token)), fds)


class KeptCache:
    """Cache arguments to use again, when the caller may have closed its descriptors.

    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """

    def __init__(self, sent: SentCache) -> None:
        self._files = duplicated(sent.fds)
        handles = _handles(self._files)
        self.model_cache = handles[: sent.info.model_files]
        self.data_cache = handles[sent.info.model_files :]
        self.token = sent.info.token


class ReceivedCache:
    """Cache arguments that a client sent; ``fds`` stay the caller's.

    The files may be slow, or change at any moment, and their owner is not trusted. So a
    device gets copies in memory, which `read` makes before and `write` takes back
    afterwards: on a thread, as either may block.

    :raises InvalidArgumentError: if the descriptors do not match.
    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """

    def __init__(self, info: CacheInfo, fds: Sequence[int]) -> None:
        if min(info.model_files, info.data_files) < 0 or len(fds) != (
            info.model_files + info.data_files
        ):
            raise InvalidArgumentError("cache files and descriptors do not match")
        self._files = duplicated(fds)
        self._model_files = info.model_files
        self._copies: list[Descriptor] = []
        self.token = info.token

    @property
    def descriptors(self) -> int:
        """How many it keeps open: those of the files and of their copies."""
        return 2 * len(self._files)

    @property
    def model_cache(self) -> list[Handle]:
        """The copies of the model files, none before they are made."""
        return _handles(self._copies[: self._model_files])

    @property
    def data_cache(self) -> list[Handle]:
        """Those of the data files."""
        return _handles(self._copies[self._model_files :])

    def prepare_to_write(self) -> bool:
        """Make empty copies; False, and none, if nothing can or is to be written."""
        if not self._files or any(
            access_of(file.fd) != os.O_RDWR for file in self._files
        ):
            return False
        self._copies = [_copy() for _ in self._files]
        return True

    def read(self, most_bytes: int) -> None:
        """Copy the files, which must not have more bytes altogether.

        :raises GeneralFailureError: if one cannot be read.
        """
        for file in self._files:
            copy = _copy()
            with os_errors("a cache file"):
                size = _copy_contents(file.fd, copy.fd, most_bytes)
                seal(copy.fd, FIXED_SIZE)
            most_bytes -= size
            self._copies.append(copy)

    def write(self) -> None:
        """Write all copies back, or empty the files; keep them if nothing was saved.

        :raises GeneralFailureError: if that fails.
        """
        if not all(os.fstat(copy.fd).st_size for copy in self._copies):
            return
        contents = [view(map_file(copy.fd)) for copy in self._copies]
        replace_together(self._files, [[(0, content)] for content in contents])


def duplicated(fds: Sequence[int]) -> list[Descriptor]:
    """Return as many descriptors of the same files, which close with the list.

    :raises ResourceExhaustedTransientError: if there are not so many left.
    """
    try:
        return [Descriptor(os.dup(fd)) for fd in fds]
    except OSError as error:
        raise ResourceExhaustedTransientError(str(error.strerror)) from error


def _handles(descriptors: Sequence[Descriptor]) -> list[Handle]:
    return [Handle((descriptor.fd,)) for descriptor in descriptors]


def _copy() -> Descriptor:
    with os_errors("a copy of a cache file"):
        return Descriptor(create_file("asyncnn-cache"))


def _copy_contents(source: int, target: int, most_bytes: int) -> int:
    """Copy a regular file from its start and return its size.

    :raises GeneralFailureError: if it is none, or has too many bytes.
    """
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
        raise GeneralFailureError("a cache file is none, or is too large")
    done = 0
    # One byte more than there is: what is appended meanwhile is not overlooked.
    while chunk := os.pread(source, min(status.st_size + 1 - done, _CHUNK), done):
        done += os.pwrite(target, chunk, done)
    return done
