"""Slabs, and arrays that are shared with other processes.

A slab is a memory file that many small pools lie in, at one descriptor and one mapping.
A small pool is a `Part` of a slab: a pool like any other in this process, whereas
another process is given the slab, and the part's offset in it. All parts of one slab
have room for the same number of bytes.

The bytes of a part are free again once nothing views them: neither the pool, nor an
array or memoryview over it, on whichever thread the last of them goes. Code that
has another process work on a part keeps the pool until that has ended, and calls
`retire` if it cannot know whether it has.

What ties a `shared_array` to its pool is the array's ``base``, so that a view of the
array has a pool too (`place_of`), and the pool goes with the last of them.
"""

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn import hal
from asyncnn.memory.pools import as_array, owning
from asyncnn.memory.shared import allocate, create_sealed

MIN_PART_BYTES = 64
"""Parts are aligned to this at least."""

MAX_PART_BYTES = 64 * 1024
"""Larger pools have a file of their own."""

FIRST_SLAB_BYTES = 256 * 1024
"""Size of the first slab for parts of one size; the next has the size of all so far."""

MAX_SLAB_BYTES = 16 * 2**20
MAX_IDLE_BYTES = 2**20
"""A slab without parts is kept for the next one if it is no larger, and the only one
that has room."""

_Bytes = NDArray[np.uint8]
_Array = NDArray[np.generic]


class Slab(hal.Memory, frozen=True):
    """A pool that other pools are parts of: a process that gets it can see them all."""


class Part(hal.Memory, frozen=True, kw_only=True):
    """A pool that lies ``offset`` bytes into ``slab``, and has no handle of its own."""

    slab: Slab
    offset: int


_S = TypeVar("_S", bound=np.generic)


@overload
def shared_array(
    shape: int | tuple[int, ...], *, isolated: bool = False
) -> NDArray[np.float32]: ...


@overload
def shared_array(
    shape: int | tuple[int, ...],
    dtype: type[_S] | np.dtype[_S],
    *,
    isolated: bool = False,
) -> NDArray[_S]: ...


@overload
def shared_array(
    shape: int | tuple[int, ...], dtype: DTypeLike, *, isolated: bool = False
) -> NDArray[Any]: ...


def shared_array(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.float32,
    *,
    isolated: bool = False,
) -> _Array:
    """Return a new array of zeros in memory that is shared with driver processes.

    As an input or output of a run, the array, or a contiguous view of it, is used where
    it is instead of being copied. In all else it is an ordinary array.

    Arrays of up to 64 KiB share slabs of memory. A driver of this user or of root that
    is given one of them could see, and change, others of the slab. A driver of another
    user gets copies of such arrays; it works on an ``isolated`` array where it is.

    :param isolated: lay the array in memory of its own, whatever its size.
    :raises InvalidArgumentError: if there is no such array, or it would hold objects.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    try:
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise ValueError("an array of objects cannot lie in a pool")
        if min(dimensions, default=0) < 0:
            raise ValueError(f"an axis of {shape!r} is negative")
        # The view of an empty pool would be read-only.
        size = max(1, math.prod(dimensions) * dtype.itemsize)
        memory = allocate(size) if isolated else allocate_in_slab(size)
        array = np.ndarray(dimensions, dtype, memory.buffer)
    except hal.AsyncnnError:  # some are a ValueError as well
        raise
    except (TypeError, ValueError) as error:
        raise hal.InvalidArgumentError(
            f"there is no array of shape {shape!r} and dtype {dtype!r}: {error}"
        ) from None
    return np.asarray(_Owner(memory, array))


def array_in(memory: hal.Memory, dtype: DTypeLike, shape: tuple[int, ...]) -> _Array:
    """Return a shared array at the beginning of a pool that can be sent.

    :raises InvalidArgumentError: if there is no such array, or it would hold objects.
    """
    return np.asarray(_Owner(memory, as_array(memory, dtype, shape)))


def isolated_array(shape: tuple[int, ...], dtype: DTypeLike) -> _Array:
    """Return a new `shared_array` in memory of its own.

    :raises AsyncnnError: as `shared_array`.
    """
    return shared_array(shape, dtype, isolated=True)


def place_of(array: _Array) -> tuple[hal.Memory, int] | None:
    """Return the pool that an array of `shared_array` lies in, and its offset there.

    None for any other array.
    """
    base: object = array.base
    if isinstance(base, _Owner):
        return base.memory, 0
    owner: object = base.base if isinstance(base, np.ndarray) else None
    if not isinstance(owner, _Owner):
        return None
    start, _ = owner.__array_interface__["data"]
    return owner.memory, array.__array_interface__["data"][0] - start


def allocate_in_slab(size: int) -> hal.Memory:
    """Return a writable pool of ``size`` zero bytes: a `Part` if it is small.

    :raises InvalidArgumentError: if ``size`` is negative.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """
    if 0 < size <= MAX_PART_BYTES:
        return _slabs.allocate(size)
    return allocate(size)


def retire(pools: Iterable[object]) -> None:
    """Have the bytes of the parts among ``pools`` not be used again.

    For parts that another process may still be writing to.
    """
    for pool in pools:
        if type(pool) is Part:
            _slabs.retire(pool.slab)


def trim() -> None:
    """Give back the slabs that have no parts."""
    _slabs.trim()


def in_slabs(request: hal.Request) -> hal.Request:
    """Return ``request`` with slabs in place of parts, so that it can be sent."""
    shifts: list[int] = []
    pools: list[hal.Memory | hal.BufferToken] = []
    has_parts = False
    for pool in request.pools:
        if type(pool) is Part:
            has_parts = True
            shifts.append(pool.offset)
            pools.append(pool.slab)
        else:
            shifts.append(0)
            pools.append(pool)
    if not has_parts:
        return request
    return hal.Request(
        _shifted(request.inputs, shifts),
        _shifted(request.outputs, shifts),
        tuple(pools),
    )


class _Places:
    """The places for parts of ``part_bytes`` in one slab."""

    def __init__(self, slab: Slab, part_bytes: int) -> None:
        self.slab = slab
        self.part_bytes = part_bytes
        self.places = slab.size // part_bytes
        self.fresh = 0
        self.free: list[int] = []
        self.is_retired = False

    @property
    def is_empty(self) -> bool:
        return len(self.free) == self.fresh


class _Lease(weakref.ref[_Bytes]):
    """Watches the bytes of one part; every view of them refers to these."""

    __slots__ = ("offset", "places")

    offset: int
    places: _Places


class Slabs:
    """Makes parts of slabs. Thread-safe.

    The garbage collector may end a part in the midst of any statement, `allocate`
    included. So that takes no lock: the part is put into a queue, which the thread that
    has the lock works off, or this one if it gets the lock at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[weakref.ref[_Bytes]] = deque()
        self._leases: dict[int, _Lease] = {}
        self._all: dict[Slab, _Places] = {}
        self._with_room: dict[int, list[_Places]] = {}

    def allocate(self, size: int) -> Part:
        """Return a writable pool of ``size`` zero bytes, `MAX_PART_BYTES` at most.

        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        part_bytes = max(MIN_PART_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            emptied = self._take_back() if self._returned else []
            open_ = self._with_room.setdefault(part_bytes, [])
            places = open_[-1] if open_ else self._add_slab(part_bytes)
            is_fresh = not places.free
            if is_fresh:
                offset = places.fresh * part_bytes
                places.fresh += 1
            else:
                offset = places.free.pop()
            if not places.free and places.fresh == places.places:
                open_.remove(places)
            assert places.slab.buffer is not None
            whole = np.frombuffer(places.slab.buffer, np.uint8, size, offset)
            lease = _Lease(whole, self._settle)
            lease.places, lease.offset = places, offset
            self._leases[id(lease)] = lease
        del emptied
        if self._returned:
            self._settle()
        if not is_fresh:
            whole.fill(0)
        return Part("ashmem", size, buffer=whole.data, slab=places.slab, offset=offset)

    def retire(self, slab: Slab) -> None:
        """Have the bytes of a slab not be used for other parts, now or later."""
        with self._lock:
            places = self._all.pop(slab, None)
            if places is not None:
                self._close(places)
        self._settle()

    def trim(self) -> None:
        """Give back the slabs that have no parts."""
        with self._lock:
            emptied = self._take_back()
            for places in tuple(self._all.values()):
                if places.is_empty:
                    emptied.append(places)
                    del self._all[places.slab]
                    self._close(places)
        del emptied
        self._settle()

    def abandon(self) -> None:
        """Drop slabs without parts; the others go with their parts, and are not reused.

        Does nothing while another thread makes a part.
        """
        if self._lock.acquire(blocking=False):
            try:
                emptied = self._all, self._leases
                self._all, self._leases, self._with_room = {}, {}, {}
            finally:
                self._lock.release()
            del emptied

    def _add_slab(self, part_bytes: int) -> _Places:
        same = [p.slab.size for p in self._all.values() if p.part_bytes == part_bytes]
        slab = _make_slab(min(MAX_SLAB_BYTES, max(FIRST_SLAB_BYTES, sum(same))))
        places = self._all[slab] = _Places(slab, part_bytes)
        self._with_room[part_bytes].append(places)
        return places

    def _settle(self, ended: weakref.ref[_Bytes] | None = None) -> None:
        """Work the queue off, unless another thread has the lock, which will do it."""
        if ended is not None:
            self._returned.append(ended)
        # Looks again after releasing: what came in between found the lock taken.
        while self._returned and self._lock.acquire(blocking=False):
            try:
                emptied = self._take_back()
            finally:
                self._lock.release()
            del emptied

    def _take_back(self) -> list[_Places]:
        emptied: list[_Places] = []
        while self._returned:
            lease = self._returned.popleft()
            known = self._leases.pop(id(lease), None)
            if known is None or known.places.is_retired:
                continue
            places = known.places
            open_ = self._with_room[places.part_bytes]
            if not places.free and places.fresh == places.places:
                open_.append(places)
            places.free.append(known.offset)
            if len(places.free) == places.fresh and (
                len(open_) > 1 or places.slab.size > MAX_IDLE_BYTES
            ):
                del self._all[places.slab]
                self._close(places)
                emptied.append(places)
        return emptied

    def _close(self, places: _Places) -> None:
        places.is_retired = True
        open_ = self._with_room[places.part_bytes]
        if places in open_:
            open_.remove(places)


_slabs = Slabs()


def _renew() -> None:
    """Before a fork, leave all slabs behind: parent and child share their bytes."""
    global _slabs
    before, _slabs = _slabs, Slabs()
    before.abandon()


def _renew_in_child() -> None:
    global _slabs
    _slabs = Slabs()  # a thread of the parent may have held the lock of the other


os.register_at_fork(before=_renew, after_in_child=_renew_in_child)


class _Owner:
    """Holds a pool for the arrays over it."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: hal.Memory, array: _Array) -> None:
        self.memory = memory
        self.__array_interface__ = array.__array_interface__


def _shifted(
    arguments: Sequence[hal.RequestArgument], shifts: Sequence[int]
) -> tuple[hal.RequestArgument, ...]:
    shifted: list[hal.RequestArgument] = []
    for argument in arguments:
        at = argument.location
        if not argument.has_no_value and shifts[at.pool_index]:
            place = hal.DataLocation(
                at.pool_index, at.offset + shifts[at.pool_index], at.length
            )
            shifted.append(hal.RequestArgument(False, place, argument.dimensions))
        else:
            shifted.append(argument)
    return tuple(shifted)


def _make_slab(size: int) -> Slab:
    fd, data = create_sealed(size, "asyncnn-slab")
    slab = Slab("ashmem", size, hal.Handle((fd,)), data)
    owning(slab)
    return slab
