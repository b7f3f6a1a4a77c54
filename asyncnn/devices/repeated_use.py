"""Requests on device-managed buffers that are executed again and again.

A request that was checked once, and whose buffers have fixed shapes, has the memory of
its buffers as pools from then on: it costs about what one without buffers does. What
can change from one execution to the next is asked each time: whether the buffers are
still there, have contents, and are free.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

from asyncnn.devices.buffer_use import KnownBuffer, uses_of
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operands import is_scalar
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    ErrorStatus,
    Memory,
    Model,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.memory.managed import ClaimedBuffer, ManagedBuffer

MAX_ARGUMENTS = 64
"""Arguments of requests that are kept, so that equal ones are the same."""

Arguments: TypeAlias = tuple[tuple[RequestArgument, ...], tuple[RequestArgument, ...]]
"""Inputs and outputs of a request."""


class Repetition:
    """A checked request to ``model`` that names ``known`` buffers of fixed shapes.

    Keeps neither alive. ``same`` returns arguments equal to those it is given, and the
    same ones for all requests of the model: what is known of them need not be found out
    again.
    """

    __slots__ = ("_claimed", "_claims", "_reads", "_request", "_writes")

    def __init__(
        self,
        request: weakref.ref[Request],
        arguments: Arguments,
        reads: Sequence[tuple[int, int, KnownBuffer]],
        writes: Sequence[tuple[int, int, int, KnownBuffer]],
    ) -> None:
        self._request = request
        self._reads = tuple((p, n, weakref.ref(known)) for p, n, known in reads)
        self._writes = tuple((o, p, n, weakref.ref(k)) for o, p, n, k in writes)
        self._claims: list[ClaimedBuffer] = []
        self._claimed = Request(*arguments, ())

    @classmethod
    def of(
        cls,
        model: Model,
        request: Request,
        known: dict[int, KnownBuffer],
        gone: Callable[[object], None],
        same: Callable[[Arguments], Arguments],
    ) -> "Repetition | None":
        """Return that of a request that was found correct; None if it is not fixed."""
        main = model.main
        if not type(request.inputs) is type(request.outputs) is tuple:
            return None  # a list may have other arguments the next time
        inputs, outputs = list(request.inputs), list(request.outputs)
        reads: dict[int, tuple[int, int, KnownBuffer]] = {}
        writes: list[tuple[int, int, int, KnownBuffer]] = []
        for arguments, indexes in (
            (inputs, main.input_indexes),
            (outputs, main.output_indexes),
        ):
            for position, used in uses_of(arguments, known).items():
                size = _fixed_bytes(main.operands[indexes[position]], used)
                if size is None or arguments[position].dimensions:
                    return None
                pool = arguments[position].location.pool_index
                place = DataLocation(pool, 0, size)
                arguments[position] = RequestArgument(False, place, ())
                if arguments is outputs:
                    writes.append((position, pool, size, used))
                else:
                    reads[pool] = (pool, size, used)
        if len({read[2].managed for read in reads.values()}) < len(reads):
            return None  # a buffer in two pools
        return cls(
            weakref.ref(request, gone),
            same((tuple(inputs), tuple(outputs))),
            tuple(reads.values()),
            writes,
        )

    def use(self, request: Request) -> "RepeatedUse | None":
        """Return the use of one more execution; None if that has to be found anew."""
        if self._request() is not request:
            return None
        reads, writes = [], []
        for _, _, reference in self._reads:
            known = reference()
            if known is None:
                return None
            reads.append(known)
        for _, _, _, reference in self._writes:
            known = reference()
            if known is None:
                return None
            writes.append(known)
        return RepeatedUse(self, reads, writes)

    def claimed(self, claims: list[ClaimedBuffer]) -> Request:
        """Return the request with the memory of buffers, reads before writes.

        :raises ResourceExhaustedTransientError: if there is none for one.
        """
        if len(claims) == len(self._claims) and all(
            map(_is_same, claims, self._claims)
        ):
            return self._claimed
        request = self._request()
        assert request is not None
        pools: list[Memory | BufferToken] = list(request.pools)
        places = [(p, n) for p, n, _ in self._reads]
        places += [(p, n) for _, p, n, _ in self._writes]
        for (pool, size), claim in zip(places, claims, strict=True):
            pools[pool] = claim.storage.pool(size)
        known = self._claimed
        self._claimed = Request(known.inputs, known.outputs, tuple(pools))
        self._claims = claims
        return self._claimed


def _is_same(one: object, other: object) -> bool:
    return one is other


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

    __slots__ = ("_claimed", "_is_settled", "_reads", "_repetition", "_writes")

    is_memory = True

    def __init__(
        self,
        repetition: Repetition,
        reads: list[KnownBuffer],
        writes: list[KnownBuffer],
    ) -> None:
        self._repetition = repetition
        self._reads = reads
        self._writes = writes
        self._claimed: Request | None = None
        self._is_settled = False

    def claim(self) -> Request:
        """Claim the buffers; see `BufferUse.claim`.

        :raises GeneralFailureError: if an input is uninitialised, or another execution
            or copy uses a buffer in a way that excludes this one.
        :raises ResourceExhaustedTransientError: if there is no memory for an output.
        """
        if self._claimed is not None:
            return self._claimed
        reading: list[ManagedBuffer] = []
        writing: list[ManagedBuffer] = []
        claims: list[ClaimedBuffer] = []
        try:
            for known in self._reads:
                managed = known.managed
                claims.append(managed.begin_reading())
                reading.append(managed)
            # Checked first: a buffer that was claimed for writing loses its contents.
            for known in self._writes:
                known.managed.check_unused()
            for known in self._writes:
                managed = known.managed
                claims.append(managed.begin_writing())
                writing.append(managed)
            self._claimed = self._repetition.claimed(claims)
        except AsyncnnError:
            for managed in reading:
                managed.end_reading()
            for managed in writing:
                managed.end_writing(None)
            raise
        return self._claimed

    def settle(self, status: ErrorStatus, shapes: Sequence[OutputShape]) -> None:
        """Give up the claims; see `BufferUse.settle`."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._claimed is None:
            for known in self._writes:
                known.managed.discard()
            return
        self._claimed = None
        for known in self._reads:
            known.managed.end_reading()
        has_succeeded = status is ErrorStatus.NONE
        for known in self._writes:
            dimensions = known.plan.operand.dimensions if has_succeeded else None
            known.managed.end_writing(dimensions)
