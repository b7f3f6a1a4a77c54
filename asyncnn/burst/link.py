"""The queues of a burst at the application's end, and what travels through them.

A `Link` lasts until its driver ends it; the burst's controller then opens another one.
"""

import asyncio
import contextlib
import math
import struct
import time

from asyncnn.burst.packets import (
    DATUM_BYTES,
    PacketError,
    RequestShape,
    ResultShape,
    decode_result,
    with_deadline,
)
from asyncnn.burst.server import QUEUE_ENDED
from asyncnn.burst.slots import PoolSlots
from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import check_deadline, format_duration, lateness, unanswered
from asyncnn.fmq import MessageQueue
from asyncnn.hal.errors import (
    MISSED,
    AsyncnnError,
    DeviceClosedError,
    DeviceUnavailableError,
    DriverDiedError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    error_for,
)
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel, error_of
from asyncnn.hal.types import NO_TIMING, ErrorStatus, MeasureTiming, Memory, Request
from asyncnn.memory.slabs import in_slabs, retire

ENDED = "the driver has ended the burst"

_LOOK_S = 0.05
"""Between two looks of a blocked thread whether the burst has ended."""

_NO_REASON = "it failed; a burst has no room for the reason, which another path reports"


class UnsendableError(Exception):
    """A request cannot go through the queues."""


class EndedError(Exception):
    """The burst has ended, and its device may know better why."""

    def __init__(self, cause: AsyncnnError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Link:
    """The queues of a burst, and what was said through them last."""

    def __init__(
        self, requests: MessageQueue, results: MessageQueue, spins: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = requests
        self._results = results
        self._context: IBurstContext | None = None
        self._owes_result = self._carries_deadlines = False
        self._packet = b""
        self._request: Request | None = None
        self._measure = MeasureTiming.NO
        self._shape = RequestShape.of((), (), 0)
        self._answer = b""
        self._result = failed(GeneralFailureError())
        self._result_shape = ResultShape.of(ErrorStatus.NONE)
        self.ended_by: AsyncnnError | None = None
        self.queue_length = requests.count
        self.slots = PoolSlots(self._gone)
        self.spins = spins
        self.sent = 0

    @classmethod
    async def open(
        cls, prepared: IPreparedModel, queue_length: int, spins: bool
    ) -> "Link":
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
                refusal = status or ErrorStatus.GENERAL_FAILURE
                raise error_of(prepared, refusal, "the driver takes no burst")
            link._context = context
            # The HAL's own context does not say: its burst knows the HAL's packets.
            link._carries_deadlines = getattr(context, "carries_deadlines", False)
            context.link_to_death(link._die)
            undoing.pop_all()
        return link

    async def execute(
        self, request: Request, measure: MeasureTiming, deadline: int | None = None
    ) -> ExecutionResult:
        """Execute; see `BurstController.execute`. The driver keeps a deadline.

        :raises UnsendableError: if the request cannot be sent.
        :raises EndedError: if the driver ends the burst.
        """
        try:
            if self._owes_result:
                await self._results.read()
                self._owes_result = False
            self._send(request, measure, deadline)
            answer = await self._results.read(spins=self.spins)
            self._owes_result = False
        except QUEUE_ENDED as error:
            raise EndedError(self.end(DeviceUnavailableError(str(error)))) from error
        except asyncio.CancelledError:
            if self._owes_result and self._context is not None:
                self._context.cancel(self.sent)
            raise
        if answer == self._answer:
            return self._result
        return self._decode(answer, had_deadline=deadline is not None)

    def execute_blocking(
        self, request: Request, measure: MeasureTiming
    ) -> ExecutionResult:
        """Do what `execute` does, blocking this thread, which is not the loop's.

        :raises UnsendableError: if the request cannot be sent.
        :raises EndedError: if the driver ends the burst.
        """
        try:
            if self._owes_result:
                self._read_blocking()
            self._send(request, measure)
            answer = self._read_blocking()
        except (*QUEUE_ENDED, ValueError, OSError) as error:
            # The loop may close the queues in the middle of it, with their memory.
            cause = self.ended_by
            if cause is None:
                with contextlib.suppress(RuntimeError):  # it is closed: so are we
                    self._loop.call_soon_threadsafe(self._die)
                cause = DeviceUnavailableError(str(error))
            raise EndedError(cause) from error
        return self._result if answer == self._answer else self._decode(answer)

    def _send(
        self, request: Request, measure: MeasureTiming, deadline: int | None = None
    ) -> None:
        """Write the packet of a request, which is made unless it was the last one's."""
        if request is not self._request or measure is not self._measure:
            self._packet = self._packet_of(request, measure)
            self._request, self._measure = request, measure
        packet = self._packet
        if deadline is not None:
            packet = with_deadline(packet, deadline)
            self._check_length(len(packet))
        if not self._requests.write_nowait(packet):
            raise UnsendableError("the driver does not take packets")
        self.sent += 1
        # At once: if this is cancelled, the next call has to read the result first.
        self._owes_result = True

    def _read_blocking(self) -> bytes:
        """Wait for a result; a queue's end does not wake a thread that sleeps."""
        while True:
            try:
                answer = self._results.read_blocking(timeout=_LOOK_S, spins=self.spins)
                self._owes_result = False
                return answer
            except TimeoutError:
                if self.ended_by is not None:
                    raise EndedError(self.ended_by) from None
                if self._loop.is_closed():  # nobody would report an end
                    cause = DeviceClosedError("the event loop of the burst is closed")
                    raise EndedError(cause) from None

    async def execute_until(
        self, deadline: int, grace_s: float, request: Request, measure: MeasureTiming
    ) -> ExecutionResult:
        """Execute by a deadline, which the driver keeps; see `BurstController.execute`.

        Where its burst does not carry deadlines, this end cancels at this one.

        :raises MissedDeadlinePersistentError: if it had passed before, or the driver
            knows that it cannot be met.
        :raises MissedDeadlineTransientError: if it passes, or the driver has not
            answered ``grace_s`` later.
        :raises UnsendableError: as `execute`.
        :raises EndedError: as `execute`.
        """
        check_deadline(deadline)
        sent, asked_ns = self.sent, time.monotonic_ns()
        left_s = (deadline - asked_ns) / 1e9
        carried, patience_s = None, left_s
        if self._carries_deadlines:
            carried, patience_s = deadline, left_s + grace_s
        try:
            async with asyncio.timeout(None if math.isinf(patience_s) else patience_s):
                result = await self.execute(request, measure, carried)
        except TimeoutError:
            if sent < self.sent:
                if carried is not None:
                    raise unanswered(grace_s) from None
                return await self._cancelled(deadline, grace_s, asked_ns)
            raise MissedDeadlineTransientError(
                f"{lateness(deadline, asked_ns)}; the driver has not answered the "
                "execution before it"
            ) from None
        if result.status in MISSED:
            # One that begins late refuses what was in time when it was sent.
            if time.monotonic_ns() >= deadline:
                raise MissedDeadlineTransientError(lateness(deadline, asked_ns))
            raise error_for(
                result.status,
                f"the driver cannot meet a deadline in {format_duration(left_s * 1e6)}",
            )
        return result

    async def _cancelled(
        self, deadline: int, grace_s: float, asked_ns: int
    ) -> ExecutionResult:
        """Await the end of what was cancelled at its deadline, which may be a result.

        :raises MissedDeadlineTransientError: if it is none, or comes too late.
        :raises EndedError: as `execute`.
        """
        try:
            async with asyncio.timeout(None if math.isinf(grace_s) else grace_s):
                answer = await self._results.read()
            self._owes_result = False
        except TimeoutError:
            raise unanswered(grace_s) from None
        except QUEUE_ENDED as error:
            raise EndedError(self.end(DeviceUnavailableError(str(error)))) from error
        result = self._decode(answer)
        if result.status is ErrorStatus.GENERAL_FAILURE:
            raise MissedDeadlineTransientError(lateness(deadline, asked_ns))
        return result

    def free_memory(self, memory: Memory) -> None:
        """Take the slot of a pool back."""
        slot = self.slots.free(memory)
        self._request = None
        if slot is not None and self._context is not None:
            self._context.free_memory(slot)

    def end(self, cause: AsyncnnError) -> AsyncnnError:
        """Close the queues; return why they were closed first.

        That is what an execution under way fails with.
        """
        if self.ended_by is not None:
            return self.ended_by
        # First: closing the queues wakes the task that waits, which asks for this.
        self.ended_by = cause
        if self._owes_result and self._request is not None:
            retire(self._request.pools)  # the driver may be writing there
        self._request = None
        self._requests.close()
        self._results.close()
        context, self._context = self._context, None
        if context is not None:
            context.close()
        return cause

    def _die(self) -> None:
        self.end(DriverDiedError(ENDED))

    def disown(self) -> None:
        """Send the driver nothing from now on, in a forked child."""
        self._context = None

    def _gone(self, slot: int) -> None:
        """Have the driver forget the slot of a pool that went, on any thread."""
        if self._context is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are we
            self._loop.call_soon_threadsafe(self._free, slot)

    def _free(self, slot: int) -> None:
        if self._context is not None:
            self._context.free_memory(slot)

    def _packet_of(self, request: Request, measure: MeasureTiming) -> bytes:
        request, shape = in_slabs(request), self._shape
        if (
            request.inputs is not shape.inputs
            or request.outputs is not shape.outputs
            or len(request.pools) != shape.pool_count
        ):
            shape = self._shape_of(request)
        try:
            slots = self.slots.of(request.pools)
        except InvalidArgumentError as error:
            raise UnsendableError(error.message) from error
        return shape.encode(slots, measure)

    def _shape_of(self, request: Request) -> RequestShape:
        try:
            shape = RequestShape.of(request.inputs, request.outputs, len(request.pools))
        except struct.error as error:
            raise UnsendableError(f"no packet can hold it: {error}") from error
        self._check_length(shape.size_bytes)
        self._shape = shape
        return shape

    def _check_length(self, packet_bytes: int) -> None:
        if packet_bytes > DATUM_BYTES * self._requests.count:
            raise UnsendableError(
                f"a packet of {packet_bytes} bytes is longer than the queue"
            )

    def _decode(self, answer: bytes, *, had_deadline: bool = False) -> ExecutionResult:
        """Return a result other than the last one."""
        shape = self._result_shape
        timing = shape.decode(answer)
        if timing is None:
            try:
                shape, timing = decode_result(answer, had_deadline=had_deadline)
            except PacketError as error:
                return failed(GeneralFailureError(f"a result is malformed: {error}"))
            self._result_shape = shape
        self._answer = answer
        reason = _NO_REASON if shape.status is ErrorStatus.GENERAL_FAILURE else ""
        self._result = ExecutionResult(
            shape.status, shape.output_shapes, timing, reason
        )
        return self._result


def failed(error: AsyncnnError) -> ExecutionResult:
    """Return the result that stands for an error of this end."""
    return ExecutionResult(error.status, (), NO_TIMING, str(error), type(error))
