"""Device-managed buffers of a driver in another process, on the client's side."""

import asyncio
import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    Dimensions,
    ErrorStatus,
    Memory,
)
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.buffers import check_dimensions
from asyncnn.hal.validate.rules import malformed_as_invalid
from asyncnn.memory.pools import view
from asyncnn.memory.shared import allocate, shareable
from asyncnn.service import wire
from asyncnn.service.causes import Cause
from asyncnn.service.client.burst import Bindings
from asyncnn.service.client.offered import OfferedPools


class Send(Protocol):
    """Sends a message, or raises an `AsyncnnError`."""

    def __call__(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send ``message`` with descriptors beside it."""
        ...


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
            status = await self._buffers.copy_to(self._number, pool)
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
            return await self._buffers.copy_from(self._number, pool, dimensions)
        except AsyncnnError as error:
            return error.status


class RemoteBuffers:
    """The buffers of a connection. Belongs to the event loop but for finalisers.

    ``cause_of_death`` says why the connection has ended, if it has.
    """

    def __init__(
        self,
        send: Send,
        send_if_open: Callable[[wire.ToDriver], None],
        call_soon: Callable[[Callable[[], None]], None],
        numbers: "itertools.count[int]",
        pools: OfferedPools,
        bindings: Bindings,
        cause_of_death: Callable[[], DeviceUnavailableError | None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._send_if_open = send_if_open
        self._call_soon = call_soon
        self._numbers = numbers
        self._pools = pools
        self._bindings = bindings
        self.cause_of_death = cause_of_death
        self._allocating: dict[int, asyncio.Future[wire.Allocated]] = {}
        self._copying: dict[int, asyncio.Future[wire.BufferCopied]] = {}

    async def allocate(
        self,
        desc: BufferDesc,
        models: Sequence[int],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, RemoteBuffer | None, int]:
        """Have a buffer allocated; ``models`` are numbers, and all else is checked.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        number = next(self._numbers)
        self._send(
            wire.Allocate(
                number,
                tuple(desc.dimensions),
                tuple(models),
                tuple(input_roles),
                tuple(output_roles),
            )
        )
        answer = self._allocating[number] = self._loop.create_future()
        try:
            allocated = await answer
        except asyncio.CancelledError:
            self._send_if_open(wire.ForgetPools((number,)))
            raise
        finally:
            del self._allocating[number]
        status = wire.status_of(allocated.status)
        if status is not ErrorStatus.NONE:
            return status, None, 0
        token = allocated.token
        buffer = RemoteBuffer(self, number)
        self._pools.adopt(token, number)
        weakref.finalize(buffer, self._gone, token)
        return status, buffer, token

    async def copy_to(self, number: int, pool: Memory) -> ErrorStatus:
        """Have the contents of a buffer copied to a pool that travels.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        call, place = next(self._numbers), self._place_of(pool)
        return await self._copy(wire.CopyBufferTo(call, number, place))

    async def copy_from(
        self, number: int, pool: Memory, dimensions: Dimensions
    ) -> ErrorStatus:
        """Have the contents of a buffer set from a pool that travels.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        call, place = next(self._numbers), self._place_of(pool)
        with malformed_as_invalid("dimensions"):
            check_dimensions(dimensions, "B1")
            message = wire.CopyBufferFrom(call, number, place, tuple(dimensions))
        return await self._copy(message)

    def allocated(self, message: wire.Allocated) -> None:
        """Take an answer of the driver."""
        answer = self._allocating.get(message.buffer)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def copied(self, message: wire.BufferCopied) -> None:
        """Take an answer of the driver."""
        answer = self._copying.get(message.call)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def lose(self, cause: Cause) -> None:
        """Fail what waits: the connection has ended, and the buffers with it."""
        waiting: list[asyncio.Future[Any]] = list(self._allocating.values())
        waiting += self._copying.values()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(cause())

    def _place_of(self, pool: Memory) -> int:
        """Return the number of a pool; one without bytes needs none."""
        return self._pools.numbers_of((pool,))[0] if pool.size else wire.NO_POOL

    async def _copy(
        self, message: wire.CopyBufferTo | wire.CopyBufferFrom
    ) -> ErrorStatus:
        self._send(message)
        answer = self._copying[message.call] = self._loop.create_future()
        try:
            return wire.status_of((await answer).status)
        finally:
            del self._copying[message.call]

    def _gone(self, token: int) -> None:
        """Forget a buffer; called by its finaliser, on any thread."""
        self._call_soon(partial(self._bindings.forget_buffer, token))
        self._pools.lose_buffer(token)
