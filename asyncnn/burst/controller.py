"""The application's side of a burst: sends packets, awaits results.

An execution goes another way, by `IPreparedModel.execute_1_3`, only if its request
could not be sent: because the platform allows no queues, or because no packet can carry
it. That is logged, and counted in `BurstStatistics`.

Source: HAL 1.2/IPreparedModel.hal (configureExecutionBurst).
"""

import asyncio
import contextlib
import logging
import struct
from typing import Self

import msgspec

from asyncnn.burst.datums import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, PacketError
from asyncnn.burst.requests import RequestShape
from asyncnn.burst.results import ResultShape, decode_result
from asyncnn.burst.server import QUEUE_ENDED
from asyncnn.burst.slots import PoolSlots
from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.errors import AsyncnnError, error_for
from asyncnn.fmq import MemoryOrderError, MessageQueue
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    Memory,
    Request,
)

logger = logging.getLogger(__name__)

CLOSED = "the burst is closed"
ENDED = "the driver has ended the burst"
IN_FLIGHT = "an execution of this burst is in flight already"


class BurstStatistics(msgspec.Struct, frozen=True):
    """What a burst has done.

    ``sent`` executions went through the queues, ``fallbacks`` by `execute_1_3`, the
    last of them because of ``fallback_reason``. ``slots`` pools have a slot. It was
    ``reopened`` as many times, after its driver had ended it.
    """

    sent: int
    fallbacks: int
    fallback_reason: str
    slots: int
    reopened: int = 0


class _UnsendableError(Exception):
    """A request cannot go through the queues."""


class BurstController:
    """A burst of one prepared model, for one execution at a time; made by `open`.

    A pool keeps its slot, and stays mapped in the driver, until it is freed or gone.
    The pools of the last request are kept alive. If the driver ends the burst, what it
    was executing fails, and the next execution opens it anew.
    """

    def __init__(self, prepared: IPreparedModel, link: "_Link | None") -> None:
        self._prepared = prepared
        self._link = link
        self._is_busy = False
        self._is_closed = False
        self._sent_before = 0
        self._reopened = 0
        self._fallbacks = 0
        self._fallback_reason = ""

    @classmethod
    async def open(
        cls,
        prepared: IPreparedModel,
        *,
        queue_length: int = DEFAULT_QUEUE_LENGTH,
        spins: bool = True,
    ) -> Self:
        """Tie two new queues to ``prepared``; they hold ``queue_length`` datums.

        Without ``spins``, a wait for a result sleeps at once: that is best for a model
        known to take longer than some tens of microseconds. Where the platform allows
        no queues, the burst works without them.

        :raises AsyncnnError: if the driver refuses, or memory or descriptors run out.
        """
        try:
            return cls(prepared, await _Link.open(prepared, queue_length, spins))
        except MemoryOrderError as error:
            logger.warning("a burst goes without queues: %s", error)
            return cls(prepared, None)

    async def execute(
        self, request: Request, measure: MeasureTiming = MeasureTiming.NO
    ) -> ExecutionResult:
        """Execute and return the result, whatever its status.

        Cancelling the call stops the execution at its next boundary; the next call
        waits for that. GENERAL_FAILURE while another call has not returned.
        """
        if self._is_busy:
            return _failure(ErrorStatus.GENERAL_FAILURE, IN_FLIGHT)
        self._is_busy = True
        try:
            if self._is_closed:
                return _failure(ErrorStatus.DEVICE_UNAVAILABLE, CLOSED)
            link = self._link
            if link is None:
                raise _UnsendableError("the platform allows no queues")
            if link.ended_because:
                try:
                    link = await self._reopen(link)
                except AsyncnnError as error:
                    reason = f"{link.ended_because}; opening it anew failed: {error}"
                    return _failure(error.status, reason)
            return await link.execute(request, measure)
        except _UnsendableError as error:
            return await self._fall_back(request, measure, str(error))
        finally:
            self._is_busy = False

    def free_memory(self, memory: Memory) -> None:
        """Have the driver forget a pool; it is made known again when it is used."""
        if self._link is not None:
            self._link.free_memory(memory)

    def close(self) -> None:
        """Release the burst; what runs is stopped, what waits for it is told."""
        self._is_closed = True
        if self._link is not None:
            self._link.end(CLOSED)

    def statistics(self) -> BurstStatistics:
        """Return what was done so far."""
        link = self._link
        return BurstStatistics(
            sent=self._sent_before + (0 if link is None else link.sent),
            fallbacks=self._fallbacks,
            fallback_reason=self._fallback_reason,
            slots=0 if link is None else len(link.slots),
            reopened=self._reopened,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _reopen(self, ended: "_Link") -> "_Link":
        """Open the burst anew, as it was.

        :raises AsyncnnError: if that fails.
        """
        link = await _Link.open(self._prepared, ended.queue_length, ended.spins)
        logger.info("a burst was opened anew: %s", ended.ended_because)
        self._sent_before += ended.sent
        self._reopened += 1
        self._link = link
        if self._is_closed:
            link.end(CLOSED)
        return link

    async def _fall_back(
        self, request: Request, measure: MeasureTiming, reason: str
    ) -> ExecutionResult:
        log = logger.debug if reason == self._fallback_reason else logger.warning
        log("an execution does not go by burst: %s", reason)
        self._fallbacks += 1
        self._fallback_reason = reason
        callback = ExecutionFuture()
        self._prepared.execute_1_3(request, measure, None, None, callback)
        return await callback


class _Link:
    """The queues of a burst, and what was said through them last."""

    def __init__(
        self, requests: MessageQueue, results: MessageQueue, spins: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = requests
        self._results = results
        self._context: IBurstContext | None = None
        self._owes_result = False
        self._packet = b""
        self._request: Request | None = None
        self._measure = MeasureTiming.NO
        self._shape = RequestShape.of((), (), 0)
        self._answer = b""
        self._result = _failure(ErrorStatus.GENERAL_FAILURE, "")
        self._result_shape = ResultShape.of(ErrorStatus.NONE)
        self.ended_because = ""
        self.queue_length = requests.count
        self.slots = PoolSlots(self._gone)
        self.spins = spins
        self.sent = 0

    @classmethod
    async def open(
        cls, prepared: IPreparedModel, queue_length: int, spins: bool
    ) -> "_Link":
        """Tie new queues to a prepared model."""
        with contextlib.ExitStack() as undoing:
            requests, results = [
                undoing.enter_context(MessageQueue.create(DATUM_BYTES, queue_length))
                for _ in range(2)
            ]
            link = cls(requests, results, spins)
            status, context = await prepared.configure_execution_burst(
                link.slots, requests.descriptor, results.descriptor
            )
            if context is None:
                raise error_for(
                    status or ErrorStatus.GENERAL_FAILURE, "the driver takes no burst"
                )
            link._context = context
            context.link_to_death(lambda: link.end(ENDED))
            undoing.pop_all()
        return link

    async def execute(
        self, request: Request, measure: MeasureTiming
    ) -> ExecutionResult:
        """Execute; see `BurstController.execute`.

        :raises _UnsendableError: if the request cannot be sent.
        """
        try:
            if self._owes_result:
                await self._results.read()
                self._owes_result = False
            if request is not self._request or measure is not self._measure:
                self._encode(request, measure)
            if not self._requests.write_nowait(self._packet):
                raise _UnsendableError("the driver does not take packets")
            self.sent += 1
            self._owes_result = True
            answer = await self._results.read(spins=self.spins)
            self._owes_result = False
        except QUEUE_ENDED as error:
            self.end(str(error))
            return _failure(ErrorStatus.DEVICE_UNAVAILABLE, self.ended_because)
        except asyncio.CancelledError:
            if self._owes_result and self._context is not None:
                self._context.cancel(self.sent)
            raise
        return self._result if answer == self._answer else self._decode(answer)

    def free_memory(self, memory: Memory) -> None:
        """Take the slot of a pool back."""
        slot = self.slots.free(memory)
        self._request = None
        if slot is not None and self._context is not None:
            self._context.free_memory(slot)

    def end(self, reason: str) -> None:
        """Close the queues; ``reason`` is what an execution under way is told."""
        if self.ended_because:
            return
        self.ended_because = reason
        self._request = None
        self._requests.close()
        self._results.close()
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def _gone(self, slot: int) -> None:
        """Have the driver forget the slot of a pool that went, on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are we
            self._loop.call_soon_threadsafe(self._free, slot)

    def _free(self, slot: int) -> None:
        if self._context is not None:
            self._context.free_memory(slot)

    def _encode(self, request: Request, measure: MeasureTiming) -> None:
        """Make the packet of a request other than the last one."""
        shape = self._shape
        if (
            request.inputs is not shape.inputs
            or request.outputs is not shape.outputs
            or len(request.pools) != shape.pool_count
        ):
            shape = self._shape_of(request)
        pools = [pool for pool in request.pools if isinstance(pool, Memory)]
        if len(pools) != len(request.pools):
            raise _UnsendableError("bursts do not know tokens of buffers")
        self._packet = shape.encode(self.slots.of(pools), measure)
        self._request, self._measure = request, measure

    def _shape_of(self, request: Request) -> RequestShape:
        try:
            shape = RequestShape.of(request.inputs, request.outputs, len(request.pools))
        except struct.error as error:
            raise _UnsendableError(f"no packet can hold it: {error}") from error
        if shape.size_bytes > DATUM_BYTES * self._requests.count:
            raise _UnsendableError(
                f"a packet of {shape.size_bytes} bytes is longer than the queue"
            )
        self._shape = shape
        return shape

    def _decode(self, answer: bytes) -> ExecutionResult:
        """Return a result other than the last one."""
        shape = self._result_shape
        timing = shape.decode(answer)
        if timing is None:
            try:
                shape, timing = decode_result(answer)
            except PacketError as error:
                return _failure(error.status, f"a result is malformed: {error}")
            self._result_shape = shape
        self._answer = answer
        self._result = ExecutionResult(shape.status, shape.output_shapes, timing)
        return self._result


def _failure(status: ErrorStatus, reason: str) -> ExecutionResult:
    return ExecutionResult(status, (), NO_TIMING, reason)
