"""Requests as a driver is sent them, once or again and again.

A request may use pools that cannot travel: plain arrays of the application. Their bytes
are copied into a slab of shared memory before the request is sent, and out of it when
it is done: it is `Staged`. One whose pools all travel is sent as it is: `Travelling`.
Either is known to the driver by a number once it comes again, what is staged with the
places of its pools that travel.

What comes again is found by one key, in `Staging.known`: its arguments, and the pools
that travel. It need not be checked any more, nor worked out where its arguments go in a
slab. The oldest is forgotten first, and each with its pools. What was bound, as arrays
or as a `StagedRequest`, is not looked up at all.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import call

import msgspec
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
from asyncnn.service.client.sent_pools import Pool, Sendable

ALIGNMENT_BYTES = 64
MIN_SLAB_BYTES = 64
MAX_IDLE_SLABS = 8
"""Slabs of one size that wait for the next request; more are freed."""

LARGE_BYTES = 2**20
"""To copy more at once would keep the loop for long."""

MAX_KNOWN = 1024
"""Requests that are remembered."""

MAX_PLACES = 4
"""Places of pools that travel beside one slab that are remembered."""


class _Move(msgspec.Struct, frozen=True):
    """An argument's bytes: of a pool that does not travel, and their place in slabs."""

    pool_index: int
    span: slice
    length: int
    slab_offset: int


class Travelling(Sendable):
    """A valid request whose pools all travel, for as long as these are there.

    It ``is_strict`` if it is one of a fenced execution as well. Arguments are held, so
    that nothing else gets their identity; pools are to go when nobody uses them.
    """

    __slots__ = ("arguments", "is_strict")

    def __init__(self, request: Request, gone: Callable[[object], None]) -> None:
        super().__init__(request.pools, gone)
        self.arguments = (request.inputs, request.outputs)
        self.is_strict = False


class _Idle(list["Staged"]):
    """Slabs of one size that wait for a request, of whatever layout."""


class Layout:
    """How valid requests with these very arguments, and such pools, lie in slabs.

    They were checked in pools of these ``sizes``, None if something is to be looked at
    each time, and for fenced executions, too, if they are ``is_strict``. ``idle``
    returns where their slabs wait, unless there is no need to any more.
    """

    def __init__(self, request: Request, travelling: Sequence[bool]) -> None:
        self.idle: Callable[[], _Idle | None] = lambda: None
        # They are held so that nothing else gets their identity.
        self.arguments = (request.inputs, request.outputs)
        self.is_strict = False
        self.sizes: list[int] | None = None
        self.kept = [index for index, it_does in enumerate(travelling) if it_does]
        self._end = 0
        self.inputs, self.moves_in = self._place(request.inputs, travelling)
        self.outputs, self.moves_out = self._place(request.outputs, travelling)
        self.slab_bytes = max(MIN_SLAB_BYTES, 1 << (self._end - 1).bit_length())
        self.has_large_inputs = _size(self.moves_in) > LARGE_BYTES
        self.has_large_outputs = _size(self.moves_out) > LARGE_BYTES

    def _place(
        self, arguments: Sequence[RequestArgument], travelling: Sequence[bool]
    ) -> tuple[tuple[RequestArgument, ...], list[_Move]]:
        placed: list[RequestArgument] = []
        moves: list[_Move] = []
        for argument in arguments:
            if not argument.has_no_value:
                at = argument.location
                if travelling[at.pool_index]:
                    location = replace(at, pool_index=self.kept.index(at.pool_index))
                else:
                    start = self._end
                    location = DataLocation(len(self.kept), start, at.length)
                    units = -(-at.length // ALIGNMENT_BYTES)
                    self._end += units * ALIGNMENT_BYTES
                    if at.length:
                        span = slice(at.offset, at.offset + at.length)
                        moves.append(_Move(at.pool_index, span, at.length, start))
                argument = replace(argument, location=location)
            placed.append(argument)
        return tuple(placed), moves


class Staged:
    """A request whose pools all travel, and what to copy back when it is done.

    ``targets`` and ``sources`` are the places in its slab that are copied to before it
    is sent, and from when it is done; ``inputs`` and ``outputs`` the client's bytes
    while it stands for any. ``sendable`` is what the driver knows of it, together with
    the client's pools that travel. It ``is_busy`` while it is executed, and
    ``is_held`` by a request that was bound, and not given back.
    """

    __slots__ = (
        *("_placed", "inputs", "is_busy", "is_held", "layout", "outputs", "request"),
        *("sendable", "slab", "sources", "targets"),
    )

    def __init__(self, layout: Layout, slab: Memory) -> None:
        assert slab.buffer is not None
        self.is_busy = self.is_held = False
        self.layout = layout
        self.slab = slab
        self.request = Request(layout.inputs, layout.outputs, (slab,))
        self.sendable = Sendable((slab,))
        self._placed: dict[tuple[int, ...], Sendable] = {}
        self.targets = [_part(slab.buffer, move) for move in layout.moves_in]
        self.sources = [_part(slab.buffer, move) for move in layout.moves_out]
        self.inputs: list[memoryview] = []
        self.outputs: list[memoryview] = []

    def stand_for(self, pools: Sequence[Pool]) -> None:
        """Move arguments between these pools and the slab from now on.

        :raises InvalidArgumentError: if an output cannot be copied back, or a pool is
            not contiguous, or was released by the application.
        """
        layout = self.layout
        try:
            for move in layout.moves_in:
                buffer = pools[move.pool_index].buffer  # type: ignore[union-attr]
                assert buffer is not None
                self.inputs.append(buffer.cast("B")[move.span])
            for move in layout.moves_out:
                buffer = pools[move.pool_index].buffer  # type: ignore[union-attr]
                assert buffer is not None
                if buffer.readonly:
                    message = "an output lies in a pool that is read-only"
                    raise InvalidArgumentError(message)
                self.outputs.append(buffer)
        except AsyncnnError:  # some are a ValueError as well
            raise
        except (TypeError, ValueError) as error:  # it may be released since its check
            raise InvalidArgumentError(f"a pool cannot be copied: {error}") from error
        if layout.kept:
            self._place_beside(list(map(pools.__getitem__, layout.kept)))

    def _place_beside(self, kept: Sequence[Pool]) -> None:
        layout = self.layout
        places: tuple[int, ...] = ()
        for pool in kept:
            if type(pool) is Part:
                places += id(pool.slab), pool.offset
            else:
                places += (-1 - pool.token if type(pool) is BufferToken else id(pool),)
        placed = self._placed.get(places)
        # What has gone has left its identity to others.
        if placed is None or None in map(call, placed.pools):
            self._placed.pop(places, None)
            if len(self._placed) == MAX_PLACES:
                del self._placed[next(iter(self._placed))]
            # What is where another pool of a slab has been is the same to the driver.
            files = [pool.slab if type(pool) is Part else pool for pool in kept]
            placed = self._placed[places] = Sendable((self.slab, *files))
        self.sendable = placed
        self.request = Request(layout.inputs, layout.outputs, (*kept, self.slab))

    def fill(self) -> None:
        """Copy the inputs into the slab."""
        for source, target in zip(self.inputs, self.targets, strict=True):
            target[:] = source

    def filling(self) -> Iterator[None]:
        """Copy the inputs into the slab in pieces, until they are let go of."""
        for source, target in zip(self.inputs, self.targets, strict=False):
            yield from _in_pieces(source, target)

    def copy_back(self) -> None:
        """Copy the outputs out of the slab.

        :raises ValueError: if the application has released the bytes meanwhile.
        """
        moves = self.layout.moves_out
        for move, buffer, source in zip(moves, self.outputs, self.sources, strict=True):
            buffer.cast("B")[move.span] = source

    def copying_back(self) -> Iterator[None]:
        """Do what `copy_back` does in pieces, until they are let go of."""
        moves = self.layout.moves_out
        for buffer, move, source in zip(
            self.outputs, moves, self.sources, strict=False
        ):
            yield from _in_pieces(source, buffer.cast("B")[move.span])

    def give_back(self) -> None:
        """Keep the slab of a request that is done for the next one."""
        self.is_busy = False
        if not self.is_held:
            layout = self.layout
            self.inputs.clear()
            self.outputs.clear()
            if layout.kept:
                self.request = Request(layout.inputs, layout.outputs, (self.slab,))
            idle = layout.idle()
            if idle is not None and len(idle) < MAX_IDLE_SLABS:
                idle.append(self)


class StagedRequest(Request, frozen=True, eq=False):
    """A request that is not looked up again: what to send for it was made once.

    It is one of fenced executions as well if it ``is_strict``. There is nothing to send
    while no shared memory can be had; then, and in further executions at the same time,
    it goes by its ``layout``.
    """

    staging: "Staging"
    is_strict: bool
    sent: "Travelling | Staged | None"
    layout: Layout | None


class Staging:
    """Stages the requests of one prepared model; keeps slabs that are free.

    ``check`` raises what is wrong with a request, maybe one of a fenced execution. If
    there is no shared memory left, ``free_idle`` is called to give some back. Without
    ``may_see_slabs``, nothing is sent that lies in one file with other arrays.
    """

    def __init__(
        self,
        check: Callable[[Request, bool], None],
        free_idle: Callable[[], None] = lambda: None,
        *,
        may_see_slabs: bool = True,
    ) -> None:
        self._check = check
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self._known: dict[tuple[int, ...], Travelling | Layout] = {}
        self._idle: defaultdict[int, _Idle] = defaultdict(_Idle)

    def sent(self, request: Request, is_fenced: bool = False) -> Travelling | Staged:
        """Return what to send for a request, with its inputs unless these are large.

        :raises InvalidArgumentError: if it is not valid, or an output lies in memory
            that is read-only.
        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        known: Travelling | Layout | None = None
        # One of another connection, before its driver was restarted, say, is news.
        if (
            type(request) is StagedRequest
            and request.staging is self
            and (request.is_strict or not is_fenced)
        ):
            sent, known = request.sent, request.layout
            if isinstance(sent, Travelling):
                return sent
            if sent is not None and not sent.is_busy:
                if not sent.layout.has_large_inputs:
                    sent.fill()
                return sent
        if known is None:
            known = self.known(request, is_fenced)
        if isinstance(known, Travelling):
            return known
        staged = self.take(known)
        try:
            staged.stand_for(request.pools)
            if not known.has_large_inputs:
                staged.fill()
        except BaseException:
            staged.give_back()
            raise
        return staged

    def bound(self, request: Request) -> StagedRequest:
        """Return a request that is not looked up again.

        :raises InvalidArgumentError: if it breaks a rule.
        """
        try:
            known = self.known(request, True)
        except AsyncnnError:  # a fenced execution may not have what others may
            known = self.known(request, False)
        of = request.inputs, request.outputs, request.pools, self, known.is_strict
        if isinstance(known, Travelling):
            return StagedRequest(*of, known, None)
        try:
            staged = self.take(known)
            staged.stand_for(request.pools)
        except AsyncnnError:  # an execution says why
            return StagedRequest(*of, None, known)
        staged.is_held = True
        return StagedRequest(*of, staged, known)

    def known(self, request: Request, is_fenced: bool = False) -> Travelling | Layout:
        """Return what is known of a request that comes again, or check and learn it.

        :raises InvalidArgumentError: if it is not valid.
        """
        travelling: list[bool] = []
        try:
            pools = request.pools
            for pool in pools:
                if type(pool) is Memory:
                    travels = pool.handle.fds != ()
                else:
                    travels = self._may_see_slabs or type(pool) is not Part
                travelling.append(travels)
            ids: Sequence[int] = travelling
            if False not in travelling:
                # A token is a value; no identity is negative, nor is a truth value.
                ids = [-1 - p.token if type(p) is BufferToken else id(p) for p in pools]
            key = id(request.inputs), id(request.outputs), *ids
        except (AttributeError, TypeError):  # it is no request at all
            self._check(request, is_fenced)
            raise
        known = self._known.get(key)
        if (
            known is not None
            and (known.is_strict or not is_fenced)
            and (
                type(known) is Travelling
                or (known.sizes is not None and known.sizes == _plain_sizes(pools))  # type: ignore[union-attr]
            )
        ):
            return known
        self._check(request, is_fenced)
        if known is None:
            known = self._learn(key, request, travelling)
        known.is_strict |= is_fenced
        if isinstance(known, Layout):
            known.sizes = _plain_sizes(pools)
        return known

    def _learn(
        self, key: tuple[int, ...], request: Request, travelling: Sequence[bool]
    ) -> Travelling | Layout:
        known: Travelling | Layout
        if False not in travelling:
            known = Travelling(request, partial(_drop, weakref.ref(self), key))
        else:
            known = Layout(request, travelling)
            known.idle = weakref.ref(self._idle[known.slab_bytes])
        # A list may have other arguments the next time.
        if type(request.inputs) is type(request.outputs) is tuple:
            if len(self._known) == MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    def plain(self, request: Request) -> Layout:
        """Return the layout of ``request``, of which every argument is private.

        Its slabs are its own.
        """
        layout = Layout(request, [False] * (len(request.inputs) + len(request.outputs)))
        layout.idle = weakref.ref(self._idle[0])
        return layout

    def take(self, layout: Layout) -> Staged:
        """Return what is sent that stands for nothing yet.

        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        idle = layout.idle() or _Idle()
        for index in reversed(range(len(idle))):
            if idle[index].layout is layout:
                return idle.pop(index)
        if len(idle) == MAX_IDLE_SLABS:
            return Staged(layout, idle.pop(0).slab)
        make = allocate_in_slab if self._may_see_slabs else allocate
        try:
            return Staged(layout, make(layout.slab_bytes))
        except ResourceExhaustedTransientError:
            self._free_idle()
            return Staged(layout, make(layout.slab_bytes))

    def trim(self) -> None:
        """Free the slabs that wait for the next request."""
        for idle in self._idle.values():
            idle.clear()

    def drop(self, key: tuple[int, ...]) -> None:
        """Forget a request one of whose pools has gone; on any thread."""
        self._known.pop(key, None)


def _drop(
    staging: weakref.ref[Staging], key: tuple[int, ...], _: object = None
) -> None:
    known = staging()
    if known is not None:
        known.drop(key)


def _plain_sizes(pools: Sequence[Pool]) -> list[int] | None:
    """Return the sizes of memory of this process, None if any may not be all there."""
    sizes: list[int] = []
    for pool in pools:
        if type(pool) is BufferToken or pool.name != "ashmem" or pool.buffer is None:  # type: ignore[union-attr]
            return None
        try:
            if pool.buffer.nbytes < pool.size:  # type: ignore[union-attr]
                return None
        except ValueError:  # it was released
            return None
        sizes.append(pool.size)  # type: ignore[union-attr]
    return sizes


def _size(moves: Sequence[_Move]) -> int:
    return sum([move.length for move in moves])


def _part(slab: memoryview, move: _Move) -> memoryview:
    return slab[move.slab_offset : move.slab_offset + move.length]


def _in_pieces(source: memoryview, target: memoryview) -> Iterator[None]:
    for start in range(0, source.nbytes, LARGE_BYTES):
        piece = slice(start, start + LARGE_BYTES)
        target[piece] = source[piece]
        yield
