"""Maps the pools that a client sends, so that it cannot harm the driver with them.

A client may truncate the file of a pool while the driver works on it, which would kill
the driver if it had mapped the file. Hence only files that cannot shrink are mapped:
memory files with the seal for it and, on request, files of the driver's own user. All
others are copied, at a cost, with reads and writes that fail without a signal. So are
dma-bufs, as the kernel has to know when each access begins and ends.

A request brings a descriptor of its own for a pool that may be mapped already. The
identity of the file shows, which costs one ``fstat``: descriptors are reused, whereas a
mapped file cannot give up its identity.
"""

import mmap
import os
import threading
from collections import OrderedDict
from typing import Self, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from asyncnn.hal.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.logs import MEMORY
from asyncnn.memory import pages
from asyncnn.memory.handles import (
    SHRINK,
    access_of,
    keeps_its_bytes,
    label,
    malformed,
    seals_of,
)
from asyncnn.memory.limits import (
    Accounting,
    CommonBytes,
    MapperStatistics,
    MappingPolicy,
)
from asyncnn.memory.pages import CopiedSpan, checked_span, failure, map_pages, os_errors
from asyncnn.offload import call_on_thread

_OTHERS_WRITE = 0o022

_Key: TypeAlias = tuple[str, int, tuple[int, ...], int, int, int, int]
"""Kind, size, integers of the handle, device, inode, access and seals of the file."""

LARGE_BYTES = 2**24
"""Mappings from here on are unmapped on a thread: the system takes milliseconds."""


class Mapper:
    """Maps the pools of one connection, each of them once.

    Several may have bytes in ``common``.

    Any thread may call any method. Closing it is final; memory still in use, by a
    request or an array, goes with its last user.
    """

    def __init__(
        self, policy: MappingPolicy | None = None, common: CommonBytes | None = None
    ) -> None:
        self._policy = policy or MappingPolicy()
        self._lock = threading.Lock()
        self._cached: OrderedDict[_Key, Memory] = OrderedDict()
        self._alive: WeakValueDictionary[_Key, Memory] = WeakValueDictionary()
        self._copies: WeakKeyDictionary[Memory, CopiedSpan] = WeakKeyDictionary()
        self._accounting = Accounting(self._policy, common)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, memory: Memory) -> Memory:
        """Return ``memory`` as a pool with its bytes in ``buffer`` and no handle.

        The caller may close the descriptors afterwards. A pool that has to be copied
        holds what the file held at the time of the call, and reading it may block; call
        this again for each execution, with the copy if the descriptors are gone.
        Memory that has a buffer of its own is returned as it is.

        :raises InvalidArgumentError: if the kind is unknown.
        :raises GeneralFailureError: if the handle is malformed, the pool not within a
            regular file, or it cannot be mapped as its handle demands.
        :raises ResourceExhaustedPersistentError: if it exceeds a limit by itself.
        :raises ResourceExhaustedTransientError: if it does along with those in use.
        :raises DeviceUnavailableError: if the mapper is closed.
        """
        found = self.map_nowait(memory)
        return self._copy(memory) if found is None else found

    def map_nowait(self, memory: Memory) -> Memory | None:
        """Like `map`, but return None where the pool has to be copied.

        Asks no file system that could keep it waiting.
        """
        if memory.buffer is not None:
            return None if memory in self._copies else memory
        if len(memory.handle.fds) != 1:
            raise malformed(memory)
        (fd,) = memory.handle.fds
        try:
            seals = seals_of(fd)
            if not (seals & SHRINK or self._policy.trust_same_uid):
                return None
            access = access_of(fd)
            status = os.fstat(fd)
        except (OSError, OverflowError, ValueError) as error:
            raise failure(error, label(memory)) from error
        identity = status.st_dev, status.st_ino, access, seals
        key = memory.name, memory.size, memory.handle.ints, *identity
        with self._lock:
            found = self._cached.get(key)
            if found is not None:
                self._cached.move_to_end(key)
                return found
            self._check_open()
            return self._map_anew(key, memory, status)

    def flush(self, memory: Memory, offset: int = 0, length: int | None = None) -> None:
        """Hand bytes written to a pool from `map` to the client, by default all.

        Only those bytes are, so that copies of the same pool do not undo each other's
        work. A mapped pool needs no flush. May block.

        :raises InvalidArgumentError: if the pool is read-only or shorter.
        :raises GeneralFailureError: if a copy cannot be written back.
        :raises DeviceUnavailableError: if the mapper is closed.
        """
        copied = self._copies.get(memory)
        if copied is None:
            self._check_open()
            return
        end = copied.size if length is None else offset + length
        if not 0 <= offset <= end <= copied.size or memory.buffer is None:
            raise InvalidArgumentError(
                f"bytes {offset} to {end} are not within a pool of {copied.size}"
            )
        copied.write(memory.buffer[offset:end], offset)

    def trim(self) -> None:
        """Give back the mappings that nothing uses, much of them on a thread."""
        with self._lock:
            cached = list(self._cached.values())
            self._cached.clear()
        _give_back(cached)

    def close(self) -> None:
        """Give back every mapping, copy and descriptor, but those in use by others."""
        with self._lock:
            self._is_closed = True
            cached = list(self._cached.values())
            self._cached.clear()
            self._copies.clear()
        _give_back(cached)

    def statistics(self) -> MapperStatistics:
        """Return what is held at the moment."""
        with self._lock:
            return self._accounting.statistics(len(self._cached))

    @property
    def mappings(self) -> int:
        """How many mappings there are."""
        return self._accounting.mappings

    def _check_open(self) -> None:
        if self._is_closed:
            raise DeviceUnavailableError("the connection's pools are closed")

    def _map_anew(
        self, key: _Key, memory: Memory, status: os.stat_result
    ) -> Memory | None:
        """Map a pool that is not cached; return None if it must be copied."""
        mapped = self._alive.get(key)
        if mapped is None:
            seals = key[-1]
            span = checked_span(memory, seals, status)
            if not self._is_safe(seals, status) or pages.is_dma_buf(span.fd, status):
                return None
            self._accounting.make_room(span.length, self._evict)
            with os_errors(f"{label(memory)} of {span.length} bytes", span.length):
                data = map_pages(span, seals)
            if isinstance(data.obj, mmap.mmap):
                self._accounting.add_mapping(data.obj, span.length)
            mapped = Memory(memory.name, span.length, Handle(), data)
            MEMORY("mapped", pool=memory.name, size=span.length)
            self._alive[key] = mapped
        self._cached[key] = mapped
        self._shrink_cache()
        return mapped

    def _is_safe(self, seals: int, status: os.stat_result) -> bool:
        if keeps_its_bytes(seals, status.st_dev):
            return True
        if not self._policy.trust_same_uid or status.st_uid != os.geteuid():
            return False
        # Others can open only a file that has a name.
        return not (status.st_nlink and status.st_mode & _OTHERS_WRITE)

    def _copy(self, memory: Memory) -> Memory:
        copied = self._copies.get(memory) or CopiedSpan.open(memory)
        with self._lock:
            self._check_open()
            self._accounting.make_room_for_copy(copied.size, self._evict)
            with os_errors(f"copy of a pool of {copied.size} bytes", copied.size):
                # The heap, unlike fresh pages, has often been paged in already.
                owned = np.empty(copied.size, np.uint8)
            self._accounting.add_copy(owned)
        copy = Memory(copied.kind, copied.size, Handle(), copied.read(owned))
        MEMORY("copied", pool=memory.name, size=copied.size)
        with self._lock:
            self._check_open()  # again: it may have been closed during the read
            self._copies[copy] = copied
        return copy

    def _evict(self) -> bool:
        """Drop the least recently used mapping of the cache; False if it is empty."""
        if not self._cached:
            return False
        self._cached.popitem(last=False)
        return True

    def _shrink_cache(self) -> None:
        excess = sum(memory.size for memory in self._cached.values())
        excess -= self._policy.max_cached_bytes
        dropped: list[Memory] = []
        while excess > 0 and len(self._cached) > 1:
            dropped.append(self._cached.popitem(last=False)[1])
            excess -= dropped[-1].size
        _give_back(dropped)


def _give_back(mapped: list[Memory]) -> None:
    if sum(memory.size for memory in mapped) >= LARGE_BYTES:
        call_on_thread(mapped.clear)
    else:
        mapped.clear()
