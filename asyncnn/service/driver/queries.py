"""What a client asks about models and the device, and its device-managed buffers."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from asyncnn import hal
from asyncnn.devices.statistics import IMeasured
from asyncnn.hal.errors import too_many
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import from_buffer
from asyncnn.service import wire
from asyncnn.service.driver.parts import SessionFields, SessionPart
from asyncnn.service.driver.pools import are_mapped
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained
from asyncnn.service.limits import is_large

if TYPE_CHECKING:
    from asyncnn.service.driver.isolating import Isolated
    from asyncnn.service.driver.recorder import NotedBlob


class Queries(SessionPart):
    """Answers a client, whose number is ``seen_by`` if it may know of itself only."""

    def __init__(self, session: SessionFields, seen_by: int | None) -> None:
        super().__init__(session)
        self._seen_by = seen_by
        self._large = 0

    def supported_operations(
        self, message: wire.GetSupportedOperations[hal.Model]
    ) -> None:
        """Say which operations of a model would run."""
        with self._answering(partial(wire.SupportedOperations, message.call)):
            self._tasks.check_room()
            isolated = self._isolated_for(message.model)
            # Each holds a model of any size.
            large = is_large(message.model)
            if large and self._large >= self._limits.max_preparing:
                raise too_many(
                    "queries about large models",
                    "ServiceLimits.max_preparing",
                    self._limits.max_preparing,
                )
            pools = self._pools.find(message.pools)
            self._large += large
            self._tasks.start(
                self._supported_operations(message, pools, large, isolated)
            )

    def statistics(self, call: int) -> None:
        """Report what the device does."""
        with self._answering(partial(wire.Statistics, call)):
            self._tasks.check_room()
            self._tasks.start(self._statistics(call))

    async def _supported_operations(
        self,
        message: wire.GetSupportedOperations[hal.Model],
        pools: tuple[hal.Memory, ...],
        large: bool,
        isolated: "Isolated | None",
    ) -> None:
        answer = partial(wire.SupportedOperations, message.call)
        call, status = 0, hal.ErrorStatus.GENERAL_FAILURE
        try:
            with self._answering(answer):
                if not are_mapped(pools):
                    pools = await self._pools.copied(pools)
                model = replace(message.model, pools=pools)
                if self._recorder is not None:
                    kept = await self._validating(self._recorder.model_of, model)
                    call = self._recorder.query(kept)
                if large:
                    await self._validating(validate_model, model)
                device = self._device
                if isolated is not None:
                    model, device = await isolated.place(model, device)
                found = await device.get_supported_operations_1_3(model)
                status = found[0]
                self._send(answer(*found))
        finally:
            self._large -= large
            if self._recorder is not None:
                self._recorder.ended(call, status)

    async def _statistics(self, call: int) -> None:
        with self._answering(partial(wire.Statistics, call)):
            if not isinstance(self._device, IMeasured):
                raise hal.GeneralFailureError("the device keeps no statistics")
            statistics = await self._device.get_statistics()
            if self._seen_by is not None:
                statistics = statistics.seen_by(self._seen_by)
            self._send(wire.Statistics(call, hal.ErrorStatus.NONE, statistics))


class ClientBuffers(SessionPart):
    """Buffers by number."""

    def __init__(self, session: SessionFields, quota: Quota) -> None:
        super().__init__(session)
        self._quota = quota
        self._buffers: CountedTable[hal.IBuffer | None] = quota.table()
        self._noted: dict[int, tuple[int, NotedBlob]] = {}

    def allocate(self, message: wire.Allocate) -> None:
        """Allocate a buffer and answer the client."""
        number = message.buffer
        if number in self._buffers:
            raise hal.InvalidArgumentError(f"buffer {number} exists already")
        with self._answering(partial(wire.Allocated, number)):
            self._quota.check(self._buffers)
            self._tasks.check_room()
            self._buffers[number] = None
            self._tasks.start(self._allocate(message))

    def copy(self, message: wire.CopyBufferTo | wire.CopyBufferFrom) -> None:
        """Copy a buffer's contents to a pool, or from it, and answer the client."""
        with self._answering(partial(wire.BufferCopied, message.call)):
            self._tasks.check_room()
            buffer = self._buffers.get(message.buffer)
            if buffer is None:
                raise hal.InvalidArgumentError(f"there is no buffer {message.buffer}")
            if message.pool == wire.NO_POOL:
                pool = from_buffer(bytearray())
            else:
                (pool,) = self._pools.find((message.pool,))
            self._tasks.start(self._copy(message, buffer, pool))

    def forget(self, numbers: Sequence[int]) -> None:
        """Let go of the buffers that the client has let go of."""
        for number in numbers:
            self._buffers.pop(number, None)
            self._noted.pop(number, None)

    def close(self) -> None:
        """Let go of all: the client is gone."""
        self._buffers.clear()
        self._noted.clear()

    async def _allocate(self, message: wire.Allocate) -> None:
        number, buffer, token = message.buffer, None, 0
        recorder = self._recorder
        call = 0 if recorder is None else recorder.allocate()
        models = [self._models.get(model) for model in message.models]
        isolated = self._isolated and self._isolated.device_of(models)
        try:
            status, buffer, token = await (isolated or self._device).allocate(
                hal.BufferDesc(message.dimensions),
                models,
                message.input_roles,
                message.output_roles,
            )
        except Exception as error:
            status = explained(error).status
        if recorder is not None:
            noted = recorder.allocated(call, message, token)
            recorder.ended(call, status)
            if number in self._buffers:
                self._noted[number] = token, noted
        if number not in self._buffers:  # the client has given up waiting
            return
        if buffer is None:
            del self._buffers[number]
        else:
            self._buffers[number] = buffer
            self._pools.adopt(number, hal.BufferToken(token))
        self._send(wire.Allocated(number, status, token))

    async def _copy(
        self,
        message: wire.CopyBufferTo | wire.CopyBufferFrom,
        buffer: hal.IBuffer,
        pool: hal.Memory,
    ) -> None:
        call = 0
        with self._answering(partial(wire.BufferCopied, message.call)):
            is_mapped = are_mapped((pool,))
            if not is_mapped:
                (pool,) = await self._pools.copied((pool,))
            if self._recorder is not None:
                token, _ = self._noted.get(message.buffer, (0, None))
                call = self._recorder.copy(message, token, pool)
            if isinstance(message, wire.CopyBufferFrom):
                status = await buffer.copy_from(pool, message.dimensions)
            else:
                status = await buffer.copy_to(pool)
            if self._recorder is not None:
                self._recorder.copied(call, message, status, pool)
            is_written = status is hal.ErrorStatus.NONE and not is_mapped
            if is_written and isinstance(message, wire.CopyBufferTo):
                whole = hal.RequestArgument(False, hal.DataLocation(0, 0, pool.size))
                await self._pools.write_back((pool,), (whole,))
            self._send(wire.BufferCopied(message.call, status))
