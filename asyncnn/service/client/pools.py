"""What a client's calls name by number: pools, buffers of the driver, and requests.

A pool is announced when it is used first, with its descriptors. A device-managed buffer
is allocated by the driver; requests name either alike. A request that comes again is
bound: then a number stands for it.
"""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    too_many,
)
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    BufferToken,
    Dimensions,
    ErrorStatus,
    Memory,
)
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.buffers import check_dimensions
from asyncnn.hal.validate.rules import malformed_as_invalid
from asyncnn.memory.pools import view
from asyncnn.memory.shared import allocate, shareable
from asyncnn.memory.slabs import Slab
from asyncnn.service import wire
from asyncnn.service.client.unanswered import Line
from asyncnn.service.limits import ServiceLimits

Pool: TypeAlias = Memory | BufferToken


class OfferedPools:
    """Announces pools when they are used first, and forgets those that are gone.

    ``most`` is how many pools the driver takes, ``most_bytes`` how large they may be
    together. Before there are more, ``free_idle`` is called to give back those that
    nothing uses.
    """

    def __init__(
        self,
        line: Line,
        limits: ServiceLimits,
        free_idle: Callable[[], None],
        *,
        may_see_slabs: bool,
    ) -> None:
        self._line = line
        self._max_fds = limits.max_fds_per_message
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self.most = limits.max_pools
        self.most_bytes = limits.max_pool_bytes
        self._announced: dict[weakref.ref[Memory], int] = {}
        self._sizes: dict[int, int] = {}
        self._buffers: dict[int, int] = {}
        self._gone: deque[int] = deque()

    def numbers_of(self, pools: Sequence[object]) -> tuple[int, ...]:
        """Return the numbers of pools, announcing those that the driver has not seen.

        A buffer's token stands for the number that it was allocated by.

        :raises InvalidArgumentError: if there is no such buffer.
        :raises GeneralFailureError: if the descriptors of a pool cannot be sent.
        :raises ResourceExhaustedTransientError: if the driver has as many as it takes.
        :raises AsyncnnError: if one cannot be announced.
        """
        numbers: list[int] = []
        for memory in pools:
            if isinstance(memory, Memory):
                number = self._announced.get(weakref.ref(memory))
                numbers.append(self._announce(memory) if number is None else number)
            else:
                numbers.append(self._number_of_buffer(memory))
        return tuple(numbers)

    def adopt(self, token: int, number: int) -> None:
        """Let the token of a buffer stand for ``number`` until `lose_buffer`."""
        self._buffers[token] = number

    def lose_buffer(self, token: int) -> None:
        """Have the driver forget a buffer; called by finalisers, on any thread."""
        number = self._buffers.pop(token, None)
        if number is not None:
            self._gone.append(number)
            self._line.call_soon(self._forget)

    def refused(self, numbers: Collection[int]) -> list[Memory]:
        """Announce pools anew when they are used again; return those still alive."""
        found: list[Memory] = []
        for memory, number in list(self._announced.items()):
            if number in numbers:
                pool = memory()
                if pool is not None:
                    found.append(pool)
                self._lost(memory)
        return found

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self._announced.clear()
        self._sizes.clear()
        self._buffers.clear()
        self._gone.clear()

    def _number_of_buffer(self, pool: object) -> int:
        number = self._buffers.get(pool.token) if type(pool) is BufferToken else None
        if number is None:
            raise InvalidArgumentError(f"{pool!r} is no buffer of this driver")
        return number

    def _announce(self, memory: Memory) -> int:
        number = next(self._line.numbers)
        fds = memory.handle.fds
        _check_descriptors(fds, self._max_fds)
        if type(memory) is Slab and not self._may_see_slabs:
            raise InvalidArgumentError(
                "a small shared array lies beside others, which a driver of another "
                "user is not to see",
                hint="make it with shared_array(..., isolated=True)",
            )
        self._make_room(memory.size)
        info = wire.PoolInfo(
            number, memory.name, memory.size, memory.handle.ints, len(fds)
        )
        self._line.send(wire.AnnouncePools((info,)), fds)
        # Only once it is sent: what could not be is announced the next time.
        self._announced[weakref.ref(memory, self._lost)] = number
        self._sizes[number] = memory.size
        return number

    def _make_room(self, size: int) -> None:
        """Free what is idle if the driver would not take another pool otherwise."""
        # A list first: the collector may end a pool in the midst of a sum.
        total = sum(list(self._sizes.values()))
        if len(self._announced) >= self.most or total + size > self.most_bytes:
            self._free_idle()
        # Pools that are gone count against the limits of the driver.
        self._forget()
        if len(self._announced) >= self.most:
            raise too_many(
                "pools",
                "ServiceLimits.max_pools",
                self.most,
                hint="await executions, or use fewer large arrays again and again",
            )

    def _lost(self, memory: weakref.ref[Memory]) -> None:
        """Remember a pool to forget; called by finalisers, on any thread."""
        number = self._announced.pop(memory, None)
        if number is not None:
            self._sizes.pop(number, None)
            self._gone.append(number)
            self._line.call_soon(self._forget)

    def _forget(self) -> None:
        while self._gone:
            count = min(len(self._gone), wire.MAX_FORGOTTEN)
            numbers = tuple(self._gone.popleft() for _ in range(count))
            self._line.send_if_open(wire.ForgetPools(numbers))


def _check_descriptors(fds: Sequence[int], most: int) -> None:
    """Check what the kernel would refuse by failing the whole connection."""
    if len(fds) > most:
        raise GeneralFailureError(f"a pool with {len(fds)} descriptors")
    for fd in fds:
        try:
            os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise GeneralFailureError(
                f"descriptor {fd} of a pool is not open"
            ) from error


class Sendable:
    """What a driver is sent again and again; a ``number`` stands for it once bound.

    It was sent some ``uses`` without.
    """

    __slots__ = ("__weakref__", "number", "uses")

    def __init__(self) -> None:
        self.number: int | None = None
        self.uses = 0

    def names(self, pool: Pool) -> bool:
        """Tell whether a driver that forgets ``pool`` has forgotten this."""
        raise NotImplementedError


class Bindings:
    """What a driver knows by number, up to ``most`` of it.

    When that is reached nothing more gets a number, rather than others losing theirs:
    that would cost more than it saves. What is not used any more goes by itself:
    ``call_forgotten`` is called then, on any thread, as there is something for
    `take_forgotten`.
    """

    def __init__(
        self, most: int = 0, call_forgotten: Callable[[], None] = lambda: None
    ) -> None:
        self.most = most
        self._call_forgotten = call_forgotten
        self._forgotten: deque[int] = deque()
        self._bound: dict[int, weakref.ref[Sendable]] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def is_worth_binding(self, sendable: Sendable) -> bool:
        """Tell whether what is sent now was sent before, and has no number yet."""
        sendable.uses += 1
        return sendable.uses > 1 and len(self._bound) < self.most

    def add(self, number: int, sendable: Sendable) -> None:
        """Give it the number that the driver knows it by."""
        sendable.number = number
        self._bound[number] = weakref.ref(sendable, partial(self._lose, number))

    def unbind(self, sendable: Sendable) -> None:
        """Have the driver forget it."""
        number, sendable.number, sendable.uses = sendable.number, None, 0
        if number is not None:
            self._lose(number)

    def forget(self, pool: Pool) -> None:
        """Forget what names a pool, or a part of it, or a buffer: the driver has."""
        for number, reference in list(self._bound.items()):
            sendable = reference()
            if sendable is not None and sendable.names(pool):
                sendable.number, sendable.uses = None, 0
                self._bound.pop(number, None)

    def take_forgotten(self) -> tuple[int, ...]:
        """Return the numbers of what was forgotten here since the last call."""
        gone = self._forgotten
        return tuple([gone.popleft() for _ in range(len(gone))])

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self._bound.clear()
        self._forgotten.clear()

    def _lose(self, number: int, _: object = None) -> None:
        """Forget a number, on any thread."""
        if self._bound.pop(number, None) is not None:
            self._forgotten.append(number)
            self._call_forgotten()


class RemoteBuffer:
    """Buffer ``number`` of a connection; the driver frees it when this object goes."""

    def __init__(self, buffers: "RemoteBuffers", number: int) -> None:
        self._buffers = buffers
        self._number = number

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why its connection has ended; see `IMortal`."""
        return self._buffers.cause_of_death()

    async def copy_to(self, destination: Memory) -> ErrorStatus:
        """Have the contents copied to a pool; see `IBuffer.copy_to`."""
        try:
            with malformed_as_invalid("pool"):
                validate_memory(destination, rule="B2")
            data = destination.buffer
            if destination.size and data is not None and data.readonly:
                raise InvalidArgumentError("the pool to copy to is read-only")
            travels = destination.handle.fds or not destination.size
            pool = destination if travels else allocate(destination.size)
            call, place = self._buffers.place(pool)
            message = wire.CopyBufferTo(call, self._number, place)
            status = await self._buffers.copy(message)
        except AsyncnnError as error:
            return error.status
        if status is ErrorStatus.NONE and pool is not destination:
            view(destination).cast("B")[: pool.size] = view(pool)
        return status

    async def copy_from(self, source: Memory, dimensions: Dimensions) -> ErrorStatus:
        """Have the contents set from a pool; see `IBuffer.copy_from`."""
        try:
            with malformed_as_invalid("pool"):
                validate_memory(source, rule="B2")
            pool = shareable(source) if source.size else source
            call, place = self._buffers.place(pool)
            with malformed_as_invalid("dimensions"):
                check_dimensions(dimensions, "B1")
                order = call, self._number, place, tuple(dimensions)
            return await self._buffers.copy(wire.CopyBufferFrom(*order))
        except AsyncnnError as error:
            return error.status


class RemoteBuffers:
    """The buffers of a connection. Belongs to the event loop but for finalisers.

    What asks the driver raises an `AsyncnnError` if it cannot be asked, or is lost.
    """

    def __init__(
        self, line: Line, pools: OfferedPools, forget_buffer: Callable[[int], None]
    ) -> None:
        self.cause_of_death = line.cause_of_death
        self._line = line
        self._pools = pools
        self._forget_buffer = forget_buffer

    async def allocate(
        self,
        desc: BufferDesc,
        models: Sequence[int],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, RemoteBuffer | None, int]:
        """Have a buffer allocated; ``models`` are numbers, and all else is checked."""
        number = next(self._line.numbers)
        self._line.send(
            wire.Allocate(
                number,
                tuple(desc.dimensions),
                tuple(models),
                tuple(input_roles),
                tuple(output_roles),
            )
        )
        try:
            allocated = await self._line.answers.answer(number, wire.Allocated)
        except asyncio.CancelledError:
            # Allocated or not by then: no finaliser would free it.
            self._line.send_if_open(wire.ForgetPools((number,)))
            raise
        status = wire.status_of(allocated.status)
        if status is not ErrorStatus.NONE:
            return status, None, 0
        token = allocated.token
        buffer = RemoteBuffer(self, number)
        self._pools.adopt(token, number)
        weakref.finalize(buffer, self._gone, token)
        return status, buffer, token

    def place(self, pool: Memory) -> tuple[int, int]:
        """Return the number of a new call, and that of its pool, which travels.

        A pool without bytes needs none.
        """
        numbers = self._pools.numbers_of((pool,)) if pool.size else (wire.NO_POOL,)
        return next(self._line.numbers), numbers[0]

    async def copy(
        self, message: wire.CopyBufferTo | wire.CopyBufferFrom
    ) -> ErrorStatus:
        """Have the contents of a buffer copied."""
        self._line.send(message)
        answer = await self._line.answers.answer(message.call, wire.BufferCopied)
        return wire.status_of(answer.status)

    def _gone(self, token: int) -> None:
        """Forget a buffer; called by its finaliser, on any thread."""
        self._line.call_soon(partial(self._forget_buffer, token))
        self._pools.lose_buffer(token)
