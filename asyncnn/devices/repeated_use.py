"""Requests on device-managed buffers that are executed again and again.

A request that was checked once, and whose buffers have fixed shapes, has the memory of
its buffers as pools from then on: it costs about what one without buffers does. What
can change from one execution to the next is asked each time: whether the buffers are
still there, have contents, and are free.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import NamedTuple, TypeAlias

from asyncnn.devices.buffer_use import KnownBuffer, uses_of
from asyncnn.engine.arguments import Layout
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operands import is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Dimensions,
    ErrorStatus,
    Memory,
    Model,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.memory.managed import ManagedBuffer, Storage, begin_all, end_all

MAX_ARGUMENTS = 64
"""Arguments of requests that are kept, so that equal ones are the same."""

MAX_BOUND = 8
"""Requests of a model whose arrays are kept: those of four sessions."""

Arguments: TypeAlias = tuple[tuple[RequestArgument, ...], tuple[RequestArgument, ...]]
"""Inputs and outputs of a request."""


class Places(NamedTuple):
    """The pools that stand for buffers, with their bytes; shapes of those written.

    Buffers that are read come first. ``only`` are the numbers of the pools.
    """

    pools: tuple[tuple[int, int], ...]
    only: tuple[int, ...]
    written: tuple[Dimensions, ...]


class BoundArrays:
    """The arrays of the `MAX_BOUND` requests of a model that were bound last.

    To make them takes as long as all else that is done for a repeated request. They
    belong to their `Repetition`; here is only which was first, as there may be very
    many. Thread-safe.
    """

    def __init__(self) -> None:
        self._order: deque[weakref.ref[Repetition]] = deque()

    def count(self, repetition: "Repetition") -> None:
        """Count one more that has arrays; the first of too many loses its own."""
        self._order.append(weakref.ref(repetition))
        if len(self._order) > MAX_BOUND:
            first = self._order.popleft()()
            if first is not None:
                first.unbind()


class _Bound(NamedTuple):
    """A request that has claimed ``storages``, and its arrays as a layout has them."""

    storages: list[Storage]
    request: Request
    layout: Layout
    arrays: list[Array]


class Repetition:
    """A checked request to ``model`` that names ``known`` buffers of fixed shapes.

    Keeps neither alive. ``same`` returns arguments and places equal to those it is
    given, and the same ones for all requests of the model: what is known of them need
    not be found out again, or be kept twice.
    """

    __slots__ = (
        "__weakref__",
        "_bound",
        "_claimed",
        "_kept",
        "_places",
        "_reads",
        "_request",
        "_writes",
    )

    def __init__(
        self,
        request: weakref.ref[Request],
        arguments: Arguments,
        places: Places,
        reads: Sequence[KnownBuffer],
        writes: Sequence[KnownBuffer],
        kept: BoundArrays,
    ) -> None:
        self._request = request
        self._kept = kept
        self._bound: _Bound | None = None
        self._places = places
        self._reads = tuple([weakref.ref(known.managed) for known in reads])
        self._writes = tuple([weakref.ref(known.managed) for known in writes])
        self._claimed = Request(*arguments, ())

    @classmethod
    def of(
        cls,
        model: Model,
        request: Request,
        known: dict[int, KnownBuffer],
        gone: Callable[[object], None],
        same: Callable[[Arguments, Places], tuple[Arguments, Places]],
        kept: BoundArrays,
    ) -> "Repetition | None":
        """Return that of a request that was found correct; None if it is not fixed."""
        main = model.main
        if not type(request.inputs) is type(request.outputs) is tuple:
            return None  # a list may have other arguments the next time
        inputs, outputs = list(request.inputs), list(request.outputs)
        reads: dict[int, KnownBuffer] = {}
        writes: dict[int, KnownBuffer] = {}
        sizes: dict[int, int] = {}
        for arguments, indexes, found in (
            (inputs, main.input_indexes, reads),
            (outputs, main.output_indexes, writes),
        ):
            for position, used in uses_of(arguments, known).items():
                size = _fixed_bytes(main.operands[indexes[position]], used)
                if size is None or arguments[position].dimensions:
                    return None
                pool = arguments[position].location.pool_index
                place = DataLocation(pool, 0, size)
                arguments[position] = RequestArgument(False, place, ())
                found[pool], sizes[pool] = used, size
        if len({id(used.managed) for used in reads.values()}) < len(reads):
            return None  # a buffer in two pools
        pools = (*reads, *writes)
        shared, places = same(
            (tuple(inputs), tuple(outputs)),
            Places(
                tuple((pool, sizes[pool]) for pool in pools),
                pools,
                tuple(used.plan.operand.dimensions for used in writes.values()),
            ),
        )
        uses = list(reads.values()), list(writes.values())
        return cls(weakref.ref(request, gone), shared, places, *uses, kept)

    def use(self, request: Request) -> "RepeatedUse | None":
        """Return the use of one more execution; None if that has to be found anew."""
        if self._request() is not request:
            return None
        # Strong from here on: they stay for as long as the execution uses them.
        reads = [reference() for reference in self._reads]
        writes = [reference() for reference in self._writes]
        if not (all(reads) and all(writes)):
            return None
        return RepeatedUse(self, reads, writes, self._places.written)  # type: ignore[arg-type]

    def claimed(self, storages: list[Storage]) -> Request:
        """Return the request with the memory of buffers, reads before writes.

        :raises ResourceExhaustedTransientError: if there is none for one.
        """
        bound = self._bound
        # The memory of a buffer of fixed shape is that of its storage, and stays.
        if bound is not None and bound.storages == storages:
            return bound.request
        last = self._claimed
        known = last.pools
        memories = [
            storage.pool(size)
            for storage, (_, size) in zip(storages, self._places.pools, strict=True)
        ]
        if known and all(map(is_, memories, map(known.__getitem__, self._places.only))):
            return last
        request = self._request()
        assert request is not None
        pools: list[Memory | BufferToken] = list(request.pools)
        for pool, memory in zip(self._places.only, memories, strict=True):
            pools[pool] = memory
        self._claimed = Request(last.inputs, last.outputs, tuple(pools))
        return self._claimed

    def arrays(
        self, layout: Layout, claimed: Request, storages: list[Storage]
    ) -> list[Array] | None:
        """Return the arrays of what has ``claimed`` storages; see `Layout.arrays`.

        On any thread. They are the same for as long as the claims find the same memory.
        """
        bound = self._bound
        # Another execution may have claimed other memory meanwhile.
        if bound is not None and bound.layout is layout and bound.request is claimed:
            return bound.arrays
        arrays = layout.arrays(claimed)
        if arrays is not None:
            self._bound = _Bound(storages, claimed, layout, arrays)
            if bound is None:
                self._kept.count(self)
        return arrays

    def unbind(self) -> None:
        """Let go of the arrays; the next execution makes others."""
        self._bound = None


def _fixed_bytes(operand: Operand, used: KnownBuffer) -> int | None:
    """Return the bytes of an argument in a buffer; None if its shape may change."""
    dimensions = used.plan.operand.dimensions
    if not used.plan.is_fixed or operand.dimensions != dimensions:
        return None
    if not is_scalar(operand.type) and not dimensions:
        return None
    return used.managed.size_bytes(dimensions) or None


class RepeatedUse:
    """What `BufferUse` is to a request that is executed for the first time."""

    __slots__ = (
        "_claimed",
        "_is_settled",
        "_reads",
        "_repetition",
        "_storages",
        "_writes",
        "_written",
    )

    def __init__(
        self,
        repetition: Repetition,
        reads: Sequence[ManagedBuffer],
        writes: Sequence[ManagedBuffer],
        written: Sequence[Dimensions],
    ) -> None:
        self._repetition = repetition
        self._reads = reads
        self._writes = writes
        self._written = written
        self._storages: list[Storage] = []
        self._claimed: Request | None = None
        self._is_settled = False

    def claim(self) -> Request:
        """Claim the buffers; see `BufferUse.claim`.

        :raises GeneralFailureError: if an input is uninitialised, or another execution
            or copy uses a buffer in a way that excludes this one.
        :raises ResourceExhaustedTransientError: if there is no memory for an output.
        """
        if self._claimed is None:
            self._storages = begin_all(self._reads, self._writes)
            try:
                self._claimed = self._repetition.claimed(self._storages)
            except AsyncnnError:
                end_all(self._reads, self._writes, None)
                raise
        return self._claimed

    def arrays(self, layout: Layout, claimed: Request) -> list[Array] | None:
        """Return the arrays of what was claimed; see `BufferUse.arrays`."""
        return self._repetition.arrays(layout, claimed, self._storages)

    def settle(
        self,
        status: ErrorStatus,
        shapes: Sequence[OutputShape],
        is_left: bool = False,
    ) -> None:
        """Give up the claims; see `BufferUse.settle`."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._claimed is None:
            for managed in self._writes:
                managed.discard()
            return
        self._claimed = None
        has_succeeded = status is ErrorStatus.NONE
        written = self._written if has_succeeded else None
        end_all(self._reads, self._writes, written, is_left)
