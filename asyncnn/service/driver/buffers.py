"""The device-managed buffers that one client has, on the driver's side.

A client names a buffer by a number, as it names its pools, and so can name none but its
own. The token stays between the device and this connection's table; the client is told
it as well, for its own requests to be written with.
"""

from collections.abc import Callable, Mapping, Sequence

from asyncnn.errors import (
    AsyncnnError,
    InvalidArgumentError,
    too_many,
)
from asyncnn.hal.interfaces import IBuffer, IDevice, IPreparedModel
from asyncnn.hal.types import (
    BufferDesc,
    BufferToken,
    DataLocation,
    ErrorStatus,
    Memory,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.service import wire
from asyncnn.service.driver.announced import AnnouncedPools, are_mapped
from asyncnn.service.driver.failures import explained
from asyncnn.service.driver.quotas import Quota, Table
from asyncnn.service.driver.tasks import OwnedTasks
from asyncnn.service.limits import ServiceLimits


class Buffers:
    """Buffers by number. Belongs to the event loop.

    ``models`` are the client's prepared models by number, which others keep.
    """

    def __init__(
        self,
        device: IDevice,
        models: Mapping[int, IPreparedModel],
        pools: AnnouncedPools,
        tasks: OwnedTasks,
        limits: ServiceLimits,
        quota: Quota,
        send: Callable[[wire.ToClient], None],
    ) -> None:
        self._device = device
        self._models = models
        self._pools = pools
        self._tasks = tasks
        self._limits = limits
        self._send = send
        self._quota = quota
        self._buffers: Table[IBuffer | None] = quota.table()

    def allocate(self, message: wire.Allocate) -> None:
        """Allocate a buffer and tell the client.

        :raises InvalidArgumentError: if its number is in use.
        """
        number = message.buffer
        if number in self._buffers:
            raise InvalidArgumentError(f"buffer {number} exists already")
        try:
            if len(self._buffers) >= self._limits.max_buffers:
                raise too_many(
                    "buffers", "ServiceLimits.max_buffers", self._limits.max_buffers
                )
            self._quota.check()
            self._tasks.check_room()
        except AsyncnnError as error:
            self._send(wire.Allocated(number, explained(error).status, 0))
            return
        self._buffers[number] = None
        self._tasks.start(self._allocate(message))

    def copy(self, message: wire.CopyBufferTo | wire.CopyBufferFrom) -> None:
        """Copy the contents of a buffer to a pool, or from it, and tell the client."""
        try:
            self._tasks.check_room()
            buffer = self._buffers.get(message.buffer)
            if buffer is None:
                raise InvalidArgumentError(f"there is no buffer {message.buffer}")
            if message.pool == wire.NO_POOL:
                pool = from_buffer(bytearray())
            else:
                (pool,) = self._pools.find((message.pool,))
        except AsyncnnError as error:
            self._send(wire.BufferCopied(message.call, explained(error).status))
            return
        self._tasks.start(self._copy(message, buffer, pool))

    def forget(self, numbers: Sequence[int]) -> None:
        """Let go of the buffers that the client has let go of."""
        for number in numbers:
            self._buffers.pop(number, None)

    def close(self) -> None:
        """Let go of all: the client is gone."""
        self._buffers.clear()

    async def _allocate(self, message: wire.Allocate) -> None:
        number, buffer, token = message.buffer, None, 0
        try:
            status, buffer, token = await self._device.allocate(
                BufferDesc(message.dimensions),
                [self._models.get(model) for model in message.models],
                message.input_roles,
                message.output_roles,
            )
        except Exception as error:
            status = explained(error).status
        if number not in self._buffers:  # the client has given up waiting
            return
        if buffer is None:
            del self._buffers[number]
        else:
            self._buffers[number] = buffer
            self._pools.adopt(number, BufferToken(token))
        self._send(wire.Allocated(number, status, token))

    async def _copy(
        self,
        message: wire.CopyBufferTo | wire.CopyBufferFrom,
        buffer: IBuffer,
        pool: Memory,
    ) -> None:
        try:
            is_mapped = are_mapped((pool,))
            if not is_mapped:
                (pool,) = await self._pools.copied((pool,))
            if isinstance(message, wire.CopyBufferFrom):
                status = await buffer.copy_from(pool, message.dimensions)
            else:
                status = await buffer.copy_to(pool)
                if status is ErrorStatus.NONE and not is_mapped:
                    whole = RequestArgument(False, DataLocation(0, 0, pool.size))
                    await self._pools.write_back((pool,), (whole,))
        except Exception as error:
            status = explained(error).status
        self._send(wire.BufferCopied(message.call, status))
