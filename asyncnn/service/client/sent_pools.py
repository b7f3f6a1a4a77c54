"""What a client's calls name by number: pools, buffers of the driver, and requests.

A pool is announced when it is used first, with its descriptors. A device-managed buffer
is allocated by the driver; requests name either alike. A request that comes again is
bound: then a number stands for it.
"""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from asyncnn import hal
from asyncnn.hal.errors import too_many
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.buffers import check_dimensions
from asyncnn.hal.validate.rules import malformed_as_invalid
from asyncnn.memory.pools import view
from asyncnn.memory.shared import allocate, shareable
from asyncnn.memory.slabs import Part, Slab, in_slabs
from asyncnn.service import wire
from asyncnn.service.client.unanswered import Line
from asyncnn.service.decoding import encode_given
from asyncnn.service.limits import ServiceLimits

Pool: TypeAlias = hal.Memory | hal.BufferToken


class Sendable:
    """What a driver is sent again and again; a ``number`` stands for it once bound.

    It was sent some ``uses`` without. What it names are ``pools``, as long as they are
    there: ``gone`` is called with each that goes. A token is a value.
    """

    __slots__ = ("__weakref__", "number", "pools", "uses")

    def __init__(
        self, pools: Iterable[Pool] = (), gone: Callable[[object], None] | None = None
    ) -> None:
        self.number: int | None = None
        self.uses = 0
        self.pools: list[Callable[[], Pool | None]] = [
            partial(hal.BufferToken, pool.token)
            if type(pool) is hal.BufferToken
            else weakref.ref(pool, gone)
            for pool in pools
        ]

    def names(self, pool: Pool) -> bool:
        """Return whether a driver that forgets ``pool`` has forgotten this."""
        known = [each() for each in self.pools]
        if type(pool) is hal.BufferToken:
            return pool in known
        return any(e is pool or (type(e) is Part and e.slab is pool) for e in known)


class Numbers:
    """What the driver knows by number: pools, buffers of its own, and requests.

    A pool gets its number when it is used first, a request when it is sent again. What
    is gone here the driver is asked to forget. ``most_pools`` is how many pools it
    takes, ``most_bytes`` how large they may be together, ``most_requests`` how many
    requests. Before there are more pools, ``free_idle`` is called to give back those
    that nothing uses; more requests get no number, rather than others losing theirs:
    that would cost more than it saves.
    """

    def __init__(
        self,
        connection: Line,
        limits: ServiceLimits,
        free_idle: Callable[[], None] = lambda: None,
        *,
        may_see_slabs: bool = True,
    ) -> None:
        self._connection = connection
        self._max_fds = limits.max_fds_per_message
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self.most_pools = limits.max_pools
        self.most_bytes = limits.max_pool_bytes
        self.most_requests = 0
        self._pools: dict[weakref.ref[Any], int] = {}
        self._requests: dict[weakref.ref[Any], int] = {}
        self._sizes: dict[int, int] = {}
        self._buffers: dict[int, int] = {}
        self._gone: deque[int] = deque()

    @property
    def requests(self) -> int:
        """How many requests have a number."""
        return len(self._requests)

    def of_pools(self, pools: Sequence[object]) -> tuple[int, ...]:
        """Return the numbers of pools, announcing those that the driver has not seen.

        A buffer's token stands for the number that it was allocated by.

        :raises InvalidArgumentError: if there is no such buffer.
        :raises GeneralFailureError: if the descriptors of a pool cannot be sent.
        :raises ResourceExhaustedTransientError: if the driver has as many as it takes.
        :raises AsyncnnError: if one cannot be announced.
        """
        numbers: list[int] = []
        for pool in pools:
            if isinstance(pool, hal.Memory):
                number = self._pools.get(weakref.ref(pool))
                numbers.append(self._announce(pool) if number is None else number)
            else:
                known = type(pool) is hal.BufferToken and self._buffers.get(pool.token)
                if not known:
                    raise hal.InvalidArgumentError(
                        f"{pool!r} is no buffer of this driver"
                    )
                numbers.append(known)
        return tuple(numbers)

    def bind(
        self, prepared: int, sendable: Sendable, request: hal.Request
    ) -> int | None:
        """Give a valid request that is sent again a number, and return it.

        None if it was not sent before, is too long, or there are too many.
        """
        sendable.uses += 1
        if sendable.uses == 1 or len(self._requests) >= self.most_requests:
            return None
        self._forget()  # the driver counts what it was not asked to forget
        number = next(self._connection.numbers)
        sent = in_slabs(request)
        pools = self.of_pools(sent.pools)
        message = wire.BindRequest(number, prepared, sent.inputs, sent.outputs, pools)
        if len(encode_given(message)) > wire.MAX_BOUND_BYTES:
            return None
        self._connection.send(message)
        sendable.number = number
        self._requests[weakref.ref(sendable, self._lost)] = number
        return number

    def adopt(self, token: int, number: int) -> None:
        """Let the token of a buffer stand for ``number`` until `lose_buffer`."""
        self._buffers[token] = number

    def lose_buffer(self, token: int) -> None:
        """Have the driver forget a buffer; called by finalisers, on any thread."""
        number = self._buffers.pop(token, None)
        if number is not None:
            self._gone.append(number)
            self._connection.call_soon(
                partial(self._forget_with, hal.BufferToken(token))
            )

    def refused(self, numbers: Collection[int]) -> None:
        """Announce pools anew when they are used again: the driver did not take them.

        It has forgotten the requests that name them.
        """
        for reference, number in list(self._pools.items()):
            if number in numbers:
                pool = reference()
                self._lost(reference)
                if pool is not None:
                    self._forget_with(pool)

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        for known in (self._pools, self._requests, self._sizes, self._buffers):
            known.clear()
        self._gone.clear()

    def _forget_with(self, pool: Pool) -> None:
        for reference in list(self._requests):
            sendable = reference()
            if sendable is not None and sendable.names(pool):
                sendable.number, sendable.uses = None, 0
                self._requests.pop(reference, None)
        self._forget()

    def _announce(self, memory: hal.Memory) -> int:
        number = next(self._connection.numbers)
        fds = memory.handle.fds
        _check_descriptors(fds, self._max_fds)
        if type(memory) is Slab and not self._may_see_slabs:
            raise hal.InvalidArgumentError(
                "a small shared array lies beside others, which a driver of another "
                "user is not to see",
                hint="make it with shared_array(..., isolated=True)",
            )
        self._make_room(memory.size)
        info = wire.PoolInfo(
            number, memory.name, memory.size, memory.handle.ints, len(fds)
        )
        self._connection.send(wire.AnnouncePools((info,)), fds)
        # Only once it is sent: what could not be is announced the next time.
        self._pools[weakref.ref(memory, self._lost)] = number
        self._sizes[number] = memory.size
        return number

    def _make_room(self, size: int) -> None:
        # A list first: the collector may end a pool in the midst of a sum.
        total = sum(list(self._sizes.values()))
        if len(self._pools) >= self.most_pools or total + size > self.most_bytes:
            self._free_idle()
        # Pools that are gone count against the limits of the driver.
        self._forget()
        if len(self._pools) >= self.most_pools:
            raise too_many(
                "pools",
                "ServiceLimits.max_pools",
                self.most_pools,
                hint="await executions, or use fewer large arrays again and again",
            )

    def _lost(self, reference: weakref.ref[Any]) -> None:
        """Remember what is to be forgotten; called by finalisers, on any thread."""
        number = self._pools.pop(reference, None)
        if number is None:
            number = self._requests.pop(reference, None)
        if number is not None:
            self._sizes.pop(number, None)
            self._gone.append(number)
            self._connection.call_soon(self._forget)

    def _forget(self) -> None:
        while self._gone:
            count = min(len(self._gone), wire.MAX_FORGOTTEN)
            numbers = tuple(self._gone.popleft() for _ in range(count))
            self._connection.send_if_open(wire.ForgetPools(numbers))


def _check_descriptors(fds: Sequence[int], most: int) -> None:
    """Check what the kernel would refuse by failing the whole connection."""
    if len(fds) > most:
        raise hal.GeneralFailureError(f"a pool with {len(fds)} descriptors")
    for fd in fds:
        try:
            os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise hal.GeneralFailureError(
                f"descriptor {fd} of a pool is not open"
            ) from error


class RemoteBuffer:
    """Buffer ``number`` of a connection; the driver frees it when this object goes.

    Belongs to the event loop, as does all that asks the driver.
    """

    def __init__(self, connection: Line, known: Numbers, number: int) -> None:
        self._connection = connection
        self._known = known
        self._number = number

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why its connection has ended; see `IMortal`."""
        return self._connection.cause_of_death()

    async def copy_to(self, destination: hal.Memory) -> hal.ErrorStatus:
        """Have the contents copied to a pool; see `IBuffer.copy_to`."""
        try:
            with malformed_as_invalid("pool"):
                validate_memory(destination, rule="B2")
            data = destination.buffer
            if destination.size and data is not None and data.readonly:
                raise hal.InvalidArgumentError("the pool to copy to is read-only")
            travels = destination.handle.fds or not destination.size
            pool = destination if travels else allocate(destination.size)
            status = await self._copied(wire.CopyBufferTo, pool)
        except hal.AsyncnnError as error:
            return error.status
        if status is hal.ErrorStatus.NONE and pool is not destination:
            view(destination).cast("B")[: pool.size] = view(pool)
        return status

    async def copy_from(
        self, source: hal.Memory, dimensions: hal.Dimensions
    ) -> hal.ErrorStatus:
        """Have the contents set from a pool; see `IBuffer.copy_from`."""
        try:
            with malformed_as_invalid("pool"):
                validate_memory(source, rule="B2")
            with malformed_as_invalid("dimensions"):
                check_dimensions(dimensions, "B1")
                shape = tuple(dimensions)
            pool = shareable(source) if source.size else source
            return await self._copied(wire.CopyBufferFrom, pool, shape)
        except hal.AsyncnnError as error:
            return error.status

    async def _copied(
        self,
        kind: Callable[..., wire.CopyBufferTo | wire.CopyBufferFrom],
        pool: hal.Memory,
        *more: hal.Dimensions,
    ) -> hal.ErrorStatus:
        """Have the contents copied to or from a pool, which travels."""
        connection = self._connection
        places = self._known.of_pools((pool,)) if pool.size else (wire.NO_POOL,)
        call = next(connection.numbers)
        connection.send(kind(call, self._number, *places, *more))
        answer = await connection.answers.answer(call, wire.BufferCopied)
        return wire.status_of(answer.status)


async def allocate_remote(
    connection: Line,
    known: Numbers,
    desc: hal.BufferDesc,
    models: Sequence[int],
    *roles: Sequence[hal.BufferRole],
) -> tuple[RemoteBuffer, int]:
    """Have a buffer allocated; ``models`` are numbers, and all else is checked.

    :raises AsyncnnError: if the driver cannot be asked, refuses, or is lost.
    """
    number = next(connection.numbers)
    inputs, outputs = map(tuple, roles)
    asked = tuple(desc.dimensions), tuple(models), inputs, outputs
    connection.send(wire.Allocate(number, *asked))
    try:
        allocated = await connection.answers.answer(number, wire.Allocated)
    except asyncio.CancelledError:
        # Allocated or not by then: no finaliser would free it.
        connection.send_if_open(wire.ForgetPools((number,)))
        raise
    status = wire.status_of(allocated.status)
    if status is not hal.ErrorStatus.NONE:
        raise hal.error_for(status, "the driver has allocated no buffer")
    token = allocated.token
    buffer = RemoteBuffer(connection, known, number)
    known.adopt(token, number)
    weakref.finalize(buffer, known.lose_buffer, token)
    return buffer, token
