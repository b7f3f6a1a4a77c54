"""Requests as a driver is sent them, once or again and again.

A request may use pools that cannot travel: plain arrays of the application. Their bytes
are copied into a slab of shared memory before the request is sent, and out of it when
it is done: it is `Staged`. One whose pools all travel is sent as it is.

What comes again is found by one key, in `Staging.known`, unless it was bound before:
its arguments, and the pools that travel. It need not be checked any more, nor worked
out where its arguments go in a slab, and is known to the driver by a number.
"""

import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory.shared import allocate
from asyncnn.memory.slabs import Part, allocate_in_slab
from asyncnn.service.client.pools import Bindings, Pool, Sendable

logger = logging.getLogger(__name__)

ALIGNMENT_BYTES = 64
MIN_SLAB_BYTES = 64
MAX_IDLE_SLABS = 8
"""Slabs that wait for the next request of one layout, or with none; more are freed."""

LARGE_BYTES = 256 * 1024
"""To copy more keeps the loop for longer than a thread takes to start."""

MAX_LAYOUTS = 8
"""Layouts that are remembered; the one made first is forgotten first."""

MAX_KNOWN = 1024
"""Requests whose pools travel that are remembered, likewise."""


class _Move(msgspec.Struct, frozen=True):
    """An argument's bytes: of a pool that does not travel, and their place in slabs."""

    pool_index: int
    offset: int
    length: int
    slab_offset: int


class Travelling(Sendable):
    """A valid request whose pools all travel, for as long as these are there.

    It ``is_strict`` if it is one of a fenced execution as well. Arguments are held, so
    that nothing else gets their identity; pools are to go when nobody uses them.
    """

    __slots__ = ("_pools", "arguments", "is_strict")

    def __init__(
        self, request: Request, is_strict: bool, gone: Callable[[object], None]
    ) -> None:
        super().__init__()
        self.arguments = (request.inputs, request.outputs)
        self.is_strict = is_strict
        self._pools = [_watched(pool, gone) for pool in request.pools]

    def names(self, pool: Pool) -> bool:
        """See `Sendable`."""
        return any(_is_part(each(), pool) for each in self._pools)


class Layout:
    """How valid requests with these very arguments, and such pools, lie in slabs.

    Pools have these ``sizes``, unless something is to be looked at each time.
    """

    def __init__(
        self, request: Request, travelling: tuple[bool, ...], is_strict: bool = True
    ) -> None:
        # They are held so that nothing else gets their identity.
        self.arguments = (request.inputs, request.outputs)
        self.is_strict = is_strict
        self.sizes = [_plain_size(pool) for pool in request.pools]
        self.kept = [index for index, it_does in enumerate(travelling) if it_does]
        self.slab_bytes = 0
        self.inputs, self.moves_in = self._place(request.inputs, travelling)
        self.outputs, self.moves_out = self._place(request.outputs, travelling)
        self.has_large_inputs = _size(self.moves_in) > LARGE_BYTES
        self.has_large_outputs = _size(self.moves_out) > LARGE_BYTES

    def fits(self, pools: Sequence[Pool]) -> bool:
        """Tell whether a request is valid in these pools, as the one before was."""
        return None not in self.sizes and self.sizes == [*map(_plain_size, pools)]

    def _place(
        self, arguments: Sequence[RequestArgument], travelling: tuple[bool, ...]
    ) -> tuple[tuple[RequestArgument, ...], list[_Move]]:
        placed: list[RequestArgument] = []
        moves: list[_Move] = []
        for argument in arguments:
            if not argument.has_no_value:
                at = argument.location
                if travelling[at.pool_index]:
                    location = replace(at, pool_index=self.kept.index(at.pool_index))
                else:
                    start = self.slab_bytes
                    location = DataLocation(len(self.kept), start, at.length)
                    units = -(-at.length // ALIGNMENT_BYTES)
                    self.slab_bytes += units * ALIGNMENT_BYTES
                    if at.length:
                        moves.append(_Move(at.pool_index, at.offset, at.length, start))
                argument = replace(argument, location=location)
            placed.append(argument)
        return tuple(placed), moves


class Staged(Sendable):
    """A request whose pools all travel, and what to copy back when it is done.

    ``inputs`` and ``outputs`` are the client's bytes that are copied, while it stands
    for any. Its number stands for it with those of the client's pools that travel.
    """

    __slots__ = (
        "_kept",
        "_sources",
        "_targets",
        "inputs",
        "layout",
        "outputs",
        "request",
        "slab",
    )

    def __init__(self, layout: Layout, slab: Memory) -> None:
        assert slab.buffer is not None
        super().__init__()
        self.layout = layout
        self.slab = slab
        self.request = Request(layout.inputs, layout.outputs, (slab,))
        self._kept: list[Callable[[], Pool | None]] = []
        self._targets = [_part(slab.buffer, move) for move in layout.moves_in]
        self._sources = [_part(slab.buffer, move) for move in layout.moves_out]
        self.inputs: list[memoryview] = []
        self.outputs: list[memoryview] = []

    def names(self, pool: Pool) -> bool:
        """See `Sendable`."""
        kept = [each() for each in self._kept]
        return any(_is_part(each, pool) for each in (self.slab, *kept))

    def stand_for(self, pools: Sequence[Pool], bindings: Bindings) -> None:
        """Move arguments between these pools and the slab from now on.

        :raises InvalidArgumentError: if an output cannot be copied back, or a pool is
            not contiguous, or was released by the application.
        """
        layout = self.layout
        try:
            for move in layout.moves_in:
                memory = pools[move.pool_index]
                assert isinstance(memory, Memory)
                assert memory.buffer is not None
                data = memory.buffer.cast("B")
                if data.nbytes != move.length:
                    data = data[move.offset : move.offset + move.length]
                self.inputs.append(data)
            for move in layout.moves_out:
                memory = pools[move.pool_index]
                assert isinstance(memory, Memory)
                assert memory.buffer is not None
                if memory.buffer.readonly:
                    raise InvalidArgumentError(
                        "an output lies in a pool that is read-only"
                    )
                self.outputs.append(memory.buffer)
        except AsyncnnError:  # some are a ValueError as well
            raise
        except (TypeError, ValueError) as error:  # it may be released since its check
            raise InvalidArgumentError(f"a pool cannot be copied: {error}") from error
        if layout.kept:
            kept = [pools[index] for index in layout.kept]
            self.request = Request(layout.inputs, layout.outputs, (*kept, self.slab))
            if [each() for each in self._kept] != kept:
                bindings.unbind(self)
                self._kept = [_watched(pool) for pool in kept]

    def fill(self) -> None:
        """Copy the inputs into the slab."""
        for source, target in zip(self.inputs, self._targets, strict=True):
            if source.nbytes <= LARGE_BYTES:
                target[:] = source
            else:
                _copy_large(source, target)

    def copy_back(self) -> None:
        """Copy the outputs out of the slab.

        :raises ValueError: if the application has released the bytes meanwhile.
        """
        moves = self.layout.moves_out
        for move, buffer, source in zip(
            moves, self.outputs, self._sources, strict=True
        ):
            target = buffer.cast("B")
            if target.nbytes != move.length:
                target = target[move.offset : move.offset + move.length]
            if source.nbytes <= LARGE_BYTES:
                target[:] = source
            else:
                _copy_large(source, target)

    def release(self) -> None:
        """Let go of the pools."""
        self.inputs.clear()
        self.outputs.clear()
        if self.layout.kept:
            self.request = replace(self.request, pools=(self.slab,))


def _watched(
    pool: Pool, gone: Callable[[object], None] | None = None
) -> Callable[[], Pool | None]:
    """Return what gives a pool as long as it is there; a token is a value."""
    return (lambda: pool) if type(pool) is BufferToken else weakref.ref(pool, gone)


def _is_part(each: Pool | None, pool: Pool) -> bool:
    """Tell whether ``each`` is a pool, or the same token, or a part of it."""
    return each is not None and (
        each == pool
        if type(pool) is BufferToken
        else each is pool or (type(each) is Part and each.slab is pool)
    )


def _plain_size(pool: Pool) -> int | None:
    """Return the size of memory of this process, None if it may not be all there."""
    if isinstance(pool, BufferToken) or pool.name != "ashmem" or pool.buffer is None:
        return None
    try:
        return pool.size if pool.buffer.nbytes >= pool.size else None
    except ValueError:  # it was released
        return None


def _size(moves: Sequence[_Move]) -> int:
    return sum([move.length for move in moves])


def _part(slab: memoryview, move: _Move) -> memoryview:
    return slab[move.slab_offset : move.slab_offset + move.length]


def _copy_large(source: memoryview, target: memoryview) -> None:
    """Copy bytes so that other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class Staging:
    """Stages the requests of one prepared model; keeps slabs that are free.

    ``check`` raises what is wrong with a request, maybe one of a fenced execution. If
    there is no shared memory left, ``free_idle`` is called to give some back. Without
    ``may_see_slabs``, nothing is sent that lies in one file with other arrays.
    """

    def __init__(
        self,
        check: Callable[[Request, bool], None],
        bindings: Bindings,
        free_idle: Callable[[], None] = lambda: None,
        *,
        may_see_slabs: bool = True,
    ) -> None:
        self._check = check
        self._bindings = bindings
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self._travelling: dict[tuple[int, ...], Travelling] = {}
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._ready: dict[Layout, list[Staged]] = {}
        self._idle: defaultdict[int, list[Memory]] = defaultdict(list)

    def known(self, request: Request, is_fenced: bool = False) -> Travelling | Layout:
        """Return what is known of a request that comes again, or check and learn it.

        :raises InvalidArgumentError: if it is not valid.
        """
        try:
            key, travelling = self._key_of(request)
        except (AttributeError, TypeError):  # it is no request at all
            self._check(request, is_fenced)
            raise
        known = self._travelling.get(key) or self._layouts.get(key)
        if (
            known is None
            or (is_fenced and not known.is_strict)
            or (type(known) is Layout and not known.fits(request.pools))
        ):
            self._check(request, is_fenced)
            known = self._learn(key, request, travelling, is_fenced)
        return known

    def staged(self, layout: Layout, pools: Sequence[Pool]) -> Staged:
        """Return what is sent for a request of such a layout.

        Its inputs are to be filled in before.

        :raises InvalidArgumentError: if an output lies in memory that is read-only.
        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        staged = self.take(layout)
        try:
            staged.stand_for(pools, self._bindings)
        except BaseException:
            self.give_back(staged)
            raise
        return staged

    def take(self, layout: Layout) -> Staged:
        """Return what is sent that stands for nothing yet.

        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        ready = self._ready.get(layout)
        return ready.pop() if ready else Staged(layout, self._take(layout.slab_bytes))

    def give_back(self, staged: Staged) -> None:
        """Keep the slab of a request that is done for the next one."""
        staged.inputs.clear()
        staged.outputs.clear()
        if staged.layout.kept:
            staged.release()
        ready = self._ready.get(staged.layout)
        if ready is None:
            self._keep(staged.slab)
        elif len(ready) < MAX_IDLE_SLABS:
            ready.append(staged)

    def trim(self) -> None:
        """Free the slabs that wait for the next request."""
        self._idle.clear()
        for ready in self._ready.values():
            ready.clear()

    def plain(self, request: Request) -> Layout:
        """Return the layout of ``request``, of which every argument is private."""
        count = len(request.inputs) + len(request.outputs)
        layout = Layout(request, (False,) * count)
        self._ready[layout] = []
        return layout

    def _key_of(self, request: Request) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Return what makes a request the same as another, and which pools travel.

        Its arguments; and the pools, if all of them travel, or else which of them do.
        """
        may_see_slabs, pools = self._may_see_slabs, request.pools
        travelling: tuple[bool, ...] = ()
        for pool in pools:
            if type(pool) is Memory:
                travels = pool.handle.fds != ()
            else:
                travels = may_see_slabs or type(pool) is not Part
            travelling += (travels,)
        ids: Sequence[int] = travelling
        if False not in travelling:
            # A token is a value, and no identity is negative.
            ids = [-p.token if type(p) is BufferToken else id(p) for p in pools]
        return (id(request.inputs), id(request.outputs), *ids), travelling

    def _learn(
        self,
        key: tuple[int, ...],
        request: Request,
        travelling: tuple[bool, ...],
        is_fenced: bool,
    ) -> Travelling | Layout:
        # A list may have other arguments the next time.
        is_lasting = type(request.inputs) is type(request.outputs) is tuple
        if False not in travelling:
            gone = partial(_drop, weakref.ref(self), key)
            known = Travelling(request, is_fenced, gone)
            if is_lasting:
                if len(self._travelling) == MAX_KNOWN:
                    del self._travelling[next(iter(self._travelling))]
                self._travelling[key] = known
            return known
        layout = Layout(request, travelling, is_fenced)
        if is_lasting:
            if key in self._layouts or len(self._layouts) == MAX_LAYOUTS:
                self._forget(key if key in self._layouts else next(iter(self._layouts)))
            self._layouts[key] = layout
            self._ready[layout] = []
        return layout

    def drop(self, key: tuple[int, ...]) -> None:
        """Forget a request one of whose pools has gone; on any thread."""
        self._travelling.pop(key, None)

    def _forget(self, key: tuple[int, ...]) -> None:
        for staged in self._ready.pop(self._layouts.pop(key)):
            self._keep(staged.slab)

    def _keep(self, slab: Memory) -> None:
        idle = self._idle[slab.size]
        if len(idle) < MAX_IDLE_SLABS:
            idle.append(slab)

    def _take(self, size: int) -> Memory:
        rounded = max(MIN_SLAB_BYTES, 1 << (size - 1).bit_length())
        idle = self._idle[rounded]
        if idle:
            return idle.pop()
        make = allocate_in_slab if self._may_see_slabs else allocate
        try:
            return make(rounded)
        except ResourceExhaustedTransientError:
            self._free_idle()
            return make(rounded)


def _drop(
    staging: weakref.ref[Staging], key: tuple[int, ...], _: object = None
) -> None:
    known = staging()
    if known is not None:
        known.drop(key)
