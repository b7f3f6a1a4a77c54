"""What a client may have mapped, and the count of what it has."""

import mmap
import weakref
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.errors import (
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
)

_MIB = 1 << 20


class MappingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may have mapped, and how far it is trusted.

    ``max_pools`` and ``max_bytes`` bound all mappings and copies that are alive, cached
    or in use; each costs a file descriptor. Unused mappings are kept up to
    ``max_cached_bytes``, and the latest in any case. ``max_copied_bytes`` bounds the
    copies; 0 refuses pools that cannot be mapped.

    ``trust_same_uid`` maps files of this process's user even if they are not sealed.
    Set it only for a peer that runs as that user, which could as well send it a signal.

    :raises InvalidArgumentError: if a limit is out of range.
    """

    max_pools: int = 256
    max_bytes: int = 4096 * _MIB
    max_cached_bytes: int = 512 * _MIB
    max_copied_bytes: int = 256 * _MIB
    trust_same_uid: bool = False

    def __post_init__(self) -> None:
        if self.max_pools < 1:
            raise InvalidArgumentError("max_pools must be at least 1")
        if min(self.max_bytes, self.max_cached_bytes, self.max_copied_bytes) < 0:
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


class Holdings:
    """Counts mapped and copied memory for as long as anything views it.

    Views may end in any thread; all else is done by one at a time.
    """

    def __init__(self, policy: MappingPolicy) -> None:
        self._policy = policy
        self._mapped: dict[int, int] = {}
        self._copied: dict[int, int] = {}

    def add_mapping(self, pages: mmap.mmap) -> None:
        """Count a mapped file."""
        self._add(self._mapped, pages)

    def add_copy(self, copy: NDArray[np.uint8]) -> None:
        """Count memory of the driver's own."""
        self._add(self._copied, copy)

    def make_room(self, length: int, evict: Callable[[], bool]) -> None:
        """Call ``evict`` until ``length`` bytes fit in, or it returns False.

        :raises ResourceExhaustedPersistentError: if they exceed it by themselves.
        :raises ResourceExhaustedTransientError: if they do along with what is in use.
        """
        limit = self._policy.max_bytes
        if length > limit:
            raise ResourceExhaustedPersistentError(
                f"a pool of {length} bytes; the limit is {limit}"
            )
        while self._exceeds(length):
            if not evict():
                raise ResourceExhaustedTransientError("too many pools are in use")

    def make_room_for_copy(self, length: int, evict: Callable[[], bool]) -> None:
        """Like `make_room`, within the limit of copies as well."""
        limit = self._policy.max_copied_bytes
        if length > limit:
            raise ResourceExhaustedPersistentError(
                f"a pool of {length} bytes has to be copied; the limit is {limit}",
                hint="seal its file against shrinking",
            )
        if _total(self._copied) + length > limit:
            raise ResourceExhaustedTransientError("too many copies of pools are in use")
        self.make_room(length, evict)

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
        total = _total(self._mapped) + _total(self._copied)
        count = len(self._mapped) + len(self._copied)
        policy = self._policy
        return count >= policy.max_pools or total + length > policy.max_bytes


def _total(sizes: dict[int, int]) -> int:
    return sum(list(sizes.values()))
