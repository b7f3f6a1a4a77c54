"""How much memory one client may have mapped, and the accounting of what it has."""

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn import hal
from asyncnn.hal.errors import check_least, too_many

_MIB = 1 << 20


class MappingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may have mapped, and how far it is trusted.

    ``max_pools`` and ``max_pool_bytes`` bound all mappings and copies that are alive,
    cached or in use. Unused mappings are kept up to ``max_cached_bytes``, and the
    latest in any case. ``max_copied_bytes`` bounds the copies; 0 refuses what cannot be
    mapped.

    ``trust_same_uid`` maps files of this process's user even if they are not sealed.
    Set it only for a peer that runs as that user, which could as well send it a signal.
    Errors name a limit with ``name`` before it.

    :raises InvalidArgumentError: if a limit is negative.
    """

    name: str = "MappingPolicy"
    max_pools: int = 256
    max_pool_bytes: int = 4096 * _MIB
    max_cached_bytes: int = 512 * _MIB
    max_copied_bytes: int = 256 * _MIB
    trust_same_uid: bool = False

    def __post_init__(self) -> None:
        check_least(self, 0, "max_pools", "max_pool_bytes")
        check_least(self, 0, "max_cached_bytes", "max_copied_bytes")


class MapperStatistics(msgspec.Struct, frozen=True):
    """What a `Mapper` holds at the moment.

    ``cached`` mappings are kept for later requests. ``mapped`` and ``mapped_bytes``
    count them and those that are merely still in use; ``copied`` and ``copied_bytes``
    count the copies in use.
    """

    cached: int
    mapped: int
    mapped_bytes: int
    copied: int
    copied_bytes: int


class _Alive:
    """Counts objects that are alive and their bytes. Thread-safe."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._lock = threading.Lock()
        # The collector may end a view wherever it likes, while this lock is held, too:
        # what has changed is put down without it.
        self._changes: deque[tuple[int, int]] = deque()

    def note(self, count: int, size: int) -> None:
        self._changes.append((count, size))

    def totals(self) -> tuple[int, int]:
        """Return how many there are, and their bytes."""
        with self._lock:
            while self._changes:
                count, size = self._changes.popleft()
                self._count += count
                self._bytes += size
            return self._count, self._bytes


class CommonBytes:
    """Bounds the bytes of ``what`` that several clients have together. Thread-safe.

    ``limit`` names the setting.
    """

    def __init__(self, most: int, what: str, limit: str) -> None:
        self.most = most
        self.alive = _Alive()
        self._what = what
        self._limit = limit

    def __str__(self) -> str:
        return f"{self._what}: {self._limit} is {self.most}"

    def has_room(self, length: int) -> bool:
        """Return whether so many more bytes fit in."""
        return self.alive.totals()[1] + length <= self.most


class Accounting:
    """Counts mapped and copied memory of one client for as long as anything views it.

    Views may end in any thread; methods are called by one thread at a time. If
    ``common`` is given, the bytes count there as well.
    """

    def __init__(
        self, policy: MappingPolicy, common: CommonBytes | None = None
    ) -> None:
        self._policy = policy
        self._common = common
        self._mapped = _Alive()
        self._copied = _Alive()

    @property
    def bytes(self) -> int:
        """Bytes of all mappings and copies."""
        return self._mapped.totals()[1] + self._copied.totals()[1]

    def add_mapping(self, pages: mmap.mmap, size: int) -> None:
        """Count ``size`` mapped bytes of a file, until their pages go."""
        self._add(self._mapped, pages, size)

    def add_copy(self, copy: NDArray[np.uint8]) -> None:
        """Count a copy in memory of this process."""
        self._add(self._copied, copy, copy.size)

    def make_room(self, length: int, evict: Callable[[], bool]) -> None:
        """Call ``evict`` until ``length`` bytes fit in, or it returns False.

        :raises ResourceExhaustedPersistentError: if they exceed it by themselves.
        :raises ResourceExhaustedTransientError: if they do along with what is in use.
        """
        limit, name = self._policy.max_pool_bytes, self._policy.name
        if length > limit:
            raise hal.ResourceExhaustedPersistentError(
                f"a pool of {length} bytes: {name}.max_pool_bytes is {limit}"
            )
        common = self._common
        if common is not None and length > common.most:
            raise hal.ResourceExhaustedPersistentError(
                f"a pool of {length} bytes exceeds the {common}"
            )
        while self._exceeds(length):
            if not evict():
                raise hal.ResourceExhaustedTransientError(
                    f"the pools in use and {length} bytes more are too many: "
                    f"{name}.max_pool_bytes is {limit}, {name}.max_pools "
                    f"{self._policy.max_pools}"
                )
        while common is not None and not common.has_room(length):
            if not evict():
                raise hal.ResourceExhaustedTransientError(f"too many {common}")

    def make_room_for_copy(self, length: int, evict: Callable[[], bool]) -> None:
        """Like `make_room`, within the limit of copies as well."""
        limit, name = self._policy.max_copied_bytes, self._policy.name
        if length > limit:
            raise hal.ResourceExhaustedPersistentError(
                f"a pool of {length} bytes has to be copied: "
                f"{name}.max_copied_bytes is {limit}",
                hint="seal its file against shrinking",
            )
        if self._copied.totals()[1] + length > limit:
            raise too_many(
                "bytes in copies of pools", f"{name}.max_copied_bytes", limit
            )
        self.make_room(length, evict)

    @property
    def mappings(self) -> int:
        """How many mapped files there are."""
        return self._mapped.totals()[0]

    def statistics(self, cached: int) -> MapperStatistics:
        """Return the counts, with the number of cached mappings."""
        return MapperStatistics(cached, *self._mapped.totals(), *self._copied.totals())

    def _add(
        self, alive: _Alive, owner: mmap.mmap | NDArray[np.uint8], size: int
    ) -> None:
        common = () if self._common is None else (self._common.alive,)
        for each in (alive, *common):
            each.note(1, size)
            weakref.finalize(owner, each.note, -1, -size)

    def _exceeds(self, length: int) -> bool:
        count = self._mapped.totals()[0] + self._copied.totals()[0]
        policy = self._policy
        return count >= policy.max_pools or self.bytes + length > policy.max_pool_bytes
