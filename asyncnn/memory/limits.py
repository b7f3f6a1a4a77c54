"""How much memory one client may have mapped, and the accounting of what it has."""

import mmap
import threading
import weakref
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import (
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    too_many,
)

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
        bounds = self.max_pool_bytes, self.max_cached_bytes, self.max_copied_bytes
        if min(self.max_pools, *bounds) < 0:
            raise InvalidArgumentError("a limit of MappingPolicy is negative")


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


class CommonBytes:
    """Bounds the bytes of ``what`` that several clients have together. Thread-safe.

    ``limit`` names the setting.
    """

    def __init__(self, most: int, what: str, limit: str) -> None:
        self.most = most
        self._what = what
        self._limit = limit
        self._parts: weakref.WeakSet[Accounting] = weakref.WeakSet()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self._what}: {self._limit} is {self.most}"

    def join(self, part: "Accounting") -> None:
        """Count the bytes of ``part``, as long as it exists."""
        with self._lock:
            self._parts.add(part)

    def has_room(self, length: int) -> bool:
        """Tell whether so many more bytes fit in."""
        with self._lock:
            return sum(part.bytes for part in self._parts) + length <= self.most


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
        self._mapped: dict[int, int] = {}
        self._copied: dict[int, int] = {}
        if common is not None:
            common.join(self)

    @property
    def bytes(self) -> int:
        """Bytes of all mappings and copies."""
        return _total(self._mapped) + _total(self._copied)

    def add_mapping(self, pages: mmap.mmap) -> None:
        """Count a mapped file."""
        self._add(self._mapped, pages)

    def add_copy(self, copy: NDArray[np.uint8]) -> None:
        """Count a copy in memory of this process."""
        self._add(self._copied, copy)

    def make_room(self, length: int, evict: Callable[[], bool]) -> None:
        """Call ``evict`` until ``length`` bytes fit in, or it returns False.

        :raises ResourceExhaustedPersistentError: if they exceed it by themselves.
        :raises ResourceExhaustedTransientError: if they do along with what is in use.
        """
        limit, name = self._policy.max_pool_bytes, self._policy.name
        if length > limit:
            raise ResourceExhaustedPersistentError(
                f"a pool of {length} bytes: {name}.max_pool_bytes is {limit}"
            )
        common = self._common
        if common is not None and length > common.most:
            raise ResourceExhaustedPersistentError(
                f"a pool of {length} bytes exceeds the {common}"
            )
        while self._exceeds(length):
            if not evict():
                raise ResourceExhaustedTransientError(
                    f"the pools in use and {length} bytes more are too many: "
                    f"{name}.max_pool_bytes is {limit}, {name}.max_pools "
                    f"{self._policy.max_pools}"
                )
        while common is not None and not common.has_room(length):
            if not evict():
                raise ResourceExhaustedTransientError(f"too many {common}")

    def make_room_for_copy(self, length: int, evict: Callable[[], bool]) -> None:
        """Like `make_room`, within the limit of copies as well."""
        limit, name = self._policy.max_copied_bytes, self._policy.name
        if length > limit:
            raise ResourceExhaustedPersistentError(
                f"a pool of {length} bytes has to be copied: "
                f"{name}.max_copied_bytes is {limit}",
                hint="seal its file against shrinking",
            )
        if _total(self._copied) + length > limit:
            raise too_many(
                "bytes in copies of pools", f"{name}.max_copied_bytes", limit
            )
        self.make_room(length, evict)

    @property
    def mappings(self) -> int:
        """How many mapped files there are."""
        return len(self._mapped)

    def statistics(self, cached: int) -> MapperStatistics:
        """Return the counts, and that of cached mappings."""
        return MapperStatistics(
            cached,
            len(self._mapped),
            _total(self._mapped),
            len(self._copied),
            _total(self._copied),
        )

    def _add(self, sizes: dict[int, int], owner: mmap.mmap | NDArray[np.uint8]) -> None:
        key = id(owner)
        sizes[key] = len(owner)
        weakref.finalize(owner, sizes.pop, key, None)

    def _exceeds(self, length: int) -> bool:
        count = len(self._mapped) + len(self._copied)
        policy = self._policy
        return count >= policy.max_pools or self.bytes + length > policy.max_pool_bytes


def _total(sizes: dict[int, int]) -> int:
    # A list first: the collector may end a view in the midst of a sum.
    return sum(list(sizes.values()))
