"""The application's side of a burst: sends packets, awaits results.

An execution goes another way, by `IPreparedModel.execute_1_3`, only if its request
could not be sent: because the platform allows no queues, or because no packet can carry
it. That is logged, and counted in `BurstStatistics`.

Source: HAL 1.2/IPreparedModel.hal (configureExecutionBurst).
"""

import asyncio
import logging
import math
import time
<<<<<<< HEAD
from typing import Self
=======
import weakref
from typing import Self, TypeAlias
>>>>>>> helperR1

import msgspec

from asyncnn.burst.link import EndedError, Link, UnsendableError, failed
from asyncnn.burst.packets import (
    DEFAULT_QUEUE_LENGTH,
)
from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.deadlines import DEADLINE_GRACE_S, check_deadline, check_grace, unanswered
from asyncnn.fmq import MemoryOrderError
from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    DeviceClosedError,
    DeviceUnavailableError,
    GeneralFailureError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
)
from asyncnn.hal.interfaces import (
    IPreparedModel,
    cause_of_death,
)
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    ExecutionOptions,
    MeasureTiming,
    Memory,
    Request,
)
from asyncnn.interpreter_hooks import disown_in_children, forked_error

logger = logging.getLogger(__name__)

CLOSED = "the burst is closed"
_NO_QUEUES = "the platform allows no queues"
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


<<<<<<< HEAD
=======
_Packet: TypeAlias = tuple[weakref.ref[Request], bytes]
"""The packet of a request, while there is that."""


class _UnsendableError(Exception):
    """A request cannot go through the queues."""


class _EndedError(Exception):
    """The burst has ended, and its device may know better why."""

    def __init__(self, cause: AsyncnnError) -> None:
        super().__init__(str(cause))
        self.cause = cause


>>>>>>> helperR1
class BurstController:
    """A burst of one prepared model, for one execution at a time; made by `open`.

    A pool keeps its slot, and stays mapped in the driver, until it is freed or gone.
    The pools of the last request are kept alive. If the driver ends the burst, what it
    was executing fails, and the next execution opens it anew. In a forked child every
    execution fails with `ForkedError`.

    Packets have no room for a deadline: this end keeps it, by cancelling.
    """

    def __init__(
        self,
        prepared: IPreparedModel,
        link: "Link | None",
        deadline_grace: float = DEADLINE_GRACE_S,
    ) -> None:
        self._prepared = prepared
        self._link = link
        self._deadline_grace = check_grace(deadline_grace)
        self._is_busy = False
        self._closed_by: AsyncnnError | None = None
        self._sent_before = 0
        self._reopened_times = 0
        self._fallbacks = 0
        self._fallback_reason = ""
        self._fallback: ExecutionFuture | None = None
        disown_in_children(self)

    @classmethod
    async def open(
        cls,
        prepared: IPreparedModel,
        *,
        queue_length: int = DEFAULT_QUEUE_LENGTH,
        spins: bool = True,
        deadline_grace: float = DEADLINE_GRACE_S,
    ) -> Self:
        """Tie two new queues to ``prepared``; they hold ``queue_length`` datums.

        Without ``spins``, a wait for a result sleeps at once: that is best for a model
        known to take longer than some tens of microseconds. Where the platform allows
        no queues, the burst works without them. An execution that is cancelled at its
        deadline is waited for ``deadline_grace`` seconds.

        :raises AsyncnnError: if the driver refuses, or memory or descriptors run out.
        """
        try:
            link = await Link.open(prepared, queue_length, spins)
            return cls(prepared, link, deadline_grace)
        except MemoryOrderError as error:
            logger.warning("a burst goes without queues: %s", error)
            return cls(prepared, None, deadline_grace)

    async def execute(
        self, request: Request, options: ExecutionOptions = DEFAULT_OPTIONS
    ) -> ExecutionResult:
        """Execute and return the result, whatever its status.

        Cancelling the call stops the execution at its next boundary; the next call
        waits for that. At its deadline an execution is stopped likewise. Packets have
        no room for a loop timeout: one that has it goes by `execute_1_3`.
        GENERAL_FAILURE while another call has not returned.
        """
        measure, deadline = options.measure, options.deadline
        if self._is_busy:
            return failed(BusyError(IN_FLIGHT))
        self._is_busy = True
        try:
            if self._closed_by is not None:
                return failed(self._closed_by)
            link = self._link
            if link is None:
                raise UnsendableError(_NO_QUEUES)
            if options.loop_timeout is not None:
                raise UnsendableError("bursts have no loop timeout")
            if link.ended_by is not None:
                link = await self._reopened_until(deadline, link)
            if deadline is None:
                return await link.execute(request, measure)
            grace_s = self._deadline_grace
            return await link.execute_until(deadline, grace_s, request, measure)
        except (MissedDeadlinePersistentError, MissedDeadlineTransientError) as error:
            return failed(error)
        except EndedError as error:
            if self._closed_by is not None:
                return failed(self._closed_by)
            if isinstance(error.cause, DeviceUnavailableError):
                return failed(cause_of_death(self._prepared) or error.cause)
            return failed(error.cause)
        except UnsendableError as error:
            return await self._fall_back(request, options, str(error))
        finally:
            self._is_busy = False

    def execute_blocking(
        self, request: Request, measure: MeasureTiming = MeasureTiming.NO
    ) -> ExecutionResult:
        """Execute and return the result, blocking this thread until then.

        For threads without an event loop, while that of the burst runs in another one.
        It has no deadline and cannot be cancelled. A burst that the driver has ended is
        opened anew by the next `execute`, not here.
        """
        if self._is_busy:
            return failed(BusyError(IN_FLIGHT))
        self._is_busy = True
        try:
            link = self._link
            if self._closed_by is not None or link is None:
                cause = self._closed_by or GeneralFailureError(_NO_QUEUES)
                return failed(cause)
            if link.ended_by is not None:
                return failed(link.ended_by)
            return link.execute_blocking(request, measure)
        except EndedError as error:
            return failed(self._closed_by or error.cause)
        except UnsendableError as error:
            return failed(GeneralFailureError(str(error)))
        finally:
            self._is_busy = False

    def free_memory(self, memory: Memory) -> None:
        """Have the driver forget a pool; it is made known again when it is used."""
        if self._link is not None:
            self._link.free_memory(memory)

    def close(self) -> None:
        """Release the burst; what runs is stopped, what waits for it is told."""
        if self._closed_by is None:
            self._closed_by = DeviceClosedError(CLOSED)
            if self._fallback is not None:
                self._fallback.give_up(_failed(self._closed_by))
            if self._link is not None:
                self._link.end(self._closed_by)

    def disown(self) -> None:
        """Refuse all use in a forked child, and leave the driver alone."""
        self._closed_by = forked_error("a burst")
        self._is_busy = False
        link, self._link = self._link, None
        if link is not None:
            link.disown()

    def statistics(self) -> BurstStatistics:
        """Return what was done so far."""
        link = self._link
        return BurstStatistics(
            sent=self._sent_before + (0 if link is None else link.sent),
            fallbacks=self._fallbacks,
            fallback_reason=self._fallback_reason,
            slots=0 if link is None else len(link.slots),
            reopened=self._reopened_times,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _reopened_until(self, deadline: int | None, ended: "Link") -> "Link":
        """Open the burst anew; a driver that is stopped does not answer that either.

        :raises MissedDeadlinePersistentError: if the deadline had passed before.
        :raises MissedDeadlineTransientError: if it is not open when the grace ends.
        :raises EndedError: as `_reopened`.
        """
        grace_s = self._deadline_grace
        if deadline is None or math.isinf(grace_s):
            return await self._reopened(ended)
        check_deadline(deadline)
        left_s = (deadline - time.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(left_s + grace_s):
                return await self._reopened(ended)
        except TimeoutError:
            raise unanswered(grace_s) from None

    async def _reopened(self, ended: "Link") -> "Link":
        """Open the burst anew, as it was."""
        cause = ended.ended_by
        assert cause is not None
        try:
            link = await Link.open(self._prepared, ended.queue_length, ended.spins)
        except AsyncnnError as error:
            reason = f"{cause.message}; opening it anew failed: {error}"
            raise EndedError(type(error)(reason)) from error
        logger.info("a burst was opened anew: %s", cause)
        self._sent_before += ended.sent
        self._reopened_times += 1
        self._link = link
        if self._closed_by is not None:
            link.end(self._closed_by)
        return link

    async def _fall_back(
        self, request: Request, options: ExecutionOptions, reason: str
    ) -> ExecutionResult:
        log = logger.debug if reason == self._fallback_reason else logger.warning
        log("an execution does not go by burst: %s", reason)
        self._fallbacks += 1
        self._fallback_reason = reason
        limits = options.deadline, options.loop_timeout
        told = self._fallback = ExecutionFuture()
        self._prepared.execute_1_3(request, options.measure, *limits, told)
        return await told
<<<<<<< HEAD
=======


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
        self._packets: dict[tuple[int, MeasureTiming], _Packet] = {}
        self._request: Request | None = None
        self._measure = MeasureTiming.NO
        self._shape = RequestShape.of((), (), 0)
        self._answer = b""
        self._result = _failed(GeneralFailureError())
        self._result_shape = ResultShape.of(ErrorStatus.NONE)
        self.ended_by: AsyncnnError | None = None
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
                refusal = status or ErrorStatus.GENERAL_FAILURE
                raise error_of(prepared, refusal, "the driver takes no burst")
            link._context = context
            context.link_to_death(link._die)
            undoing.pop_all()
        return link

    async def execute(
        self, request: Request, measure: MeasureTiming
    ) -> ExecutionResult:
        """Execute; see `BurstController.execute`.

        :raises _UnsendableError: if the request cannot be sent.
        :raises _EndedError: if the driver ends the burst.
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
            # At once: if this is cancelled, the next call has to read the result first.
            self._owes_result = True
            answer = await self._results.read(spins=self.spins)
            self._owes_result = False
        except QUEUE_ENDED as error:
            raise _EndedError(self.end(DeviceUnavailableError(str(error)))) from error
        except asyncio.CancelledError:
            if self._owes_result and self._context is not None:
                self._context.cancel(self.sent)
            raise
        return self._result if answer == self._answer else self._decode(answer)

    async def execute_until(
        self, deadline: int, grace_s: float, request: Request, measure: MeasureTiming
    ) -> ExecutionResult:
        """Execute, and cancel that at a deadline; see `BurstController.execute`.

        :raises MissedDeadlinePersistentError: if it had passed before.
        :raises MissedDeadlineTransientError: if the driver has not even begun by then,
            or has not answered ``grace_s`` later.
        :raises _UnsendableError: as `execute`.
        :raises _EndedError: as `execute`.
        """
        check_deadline(deadline)
        sent = self.sent
        try:
            async with asyncio.timeout((deadline - time.monotonic_ns()) / 1e9):
                return await self.execute(request, measure)
        except TimeoutError:
            # Then the wait was for the result of the execution before it.
            if sent == self.sent:
                raise MissedDeadlineTransientError(
                    "the driver has not answered the execution before it"
                ) from None
        try:
            async with asyncio.timeout(None if math.isinf(grace_s) else grace_s):
                answer = await self._results.read()
            self._owes_result = False
        except TimeoutError:
            raise unanswered(grace_s) from None
        except QUEUE_ENDED as error:
            raise _EndedError(self.end(DeviceUnavailableError(str(error)))) from error
        result = self._decode(answer)
        if result.status in _CANCELLED:
            raise MissedDeadlineTransientError("the deadline has passed")
        return result

    def free_memory(self, memory: Memory) -> None:
        """Take the slot of a pool back."""
        slot = self.slots.free(memory)
        self._packets.clear()
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
        self._packets.clear()
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
        """Tell the driver nothing from now on, in a forked child."""
        self._context = None

    def _gone(self, slot: int) -> None:
        """Have the driver forget the slot of a pool that went, on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are we
            if self._context is not None:
                self._loop.call_soon_threadsafe(self._free, slot)

    def _free(self, slot: int) -> None:
        if self._context is not None:
            self._context.free_memory(slot)

    def _encode(self, request: Request, measure: MeasureTiming) -> None:
        """Find the packet of a request other than the last one, or make it."""
        key = (id(request), measure)
        owner, packet = self._packets.get(key, (None, b""))
        # The identity alone may be that of a request which has gone.
        if owner is None or owner() is not request:
            if len(self._packets) == MAX_PACKETS:
                self._packets.clear()
            packet = self._packet_of(in_slabs(request), measure)
            self._packets[key] = weakref.ref(request), packet
        self._packet = packet
        self._request, self._measure = request, measure

    def _packet_of(self, request: Request, measure: MeasureTiming) -> bytes:
        shape = self._shape
        if (
            request.inputs is not shape.inputs
            or request.outputs is not shape.outputs
            or len(request.pools) != shape.pool_count
        ):
            shape = self._shape_of(request)
        try:
            slots = self.slots.of(request.pools)
        except InvalidArgumentError as error:
            raise _UnsendableError(error.message) from error
        return shape.encode(slots, measure)

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
                return _failed(GeneralFailureError(f"a result is malformed: {error}"))
            self._result_shape = shape
        self._answer = answer
        self._result = ExecutionResult(shape.status, shape.output_shapes, timing)
        return self._result


def _failed(error: AsyncnnError) -> ExecutionResult:
    return ExecutionResult(error.status, (), NO_TIMING, str(error), type(error))
>>>>>>> helperR1
