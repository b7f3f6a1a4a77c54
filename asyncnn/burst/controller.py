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
from typing import Self

import msgspec

from asyncnn.burst.link import EndedError, Link, UnsendableError, failed
from asyncnn.burst.packets import DEFAULT_QUEUE_LENGTH
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
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death
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


class BurstController:
    """A burst of one prepared model, for one execution at a time; made by `open`.

    A pool keeps its slot, and stays mapped in the driver, until it is freed or gone.
    The pools of the last request are kept alive. If the driver ends the burst, what it
    was executing fails, and the next execution opens it anew. In a forked child every
    execution fails with `ForkedError`.

    Packets have no room for a deadline: it follows them, see `packets.with_deadline`.
    The driver keeps it.
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
        no queues, the burst works without them. A driver that has not answered
        ``deadline_grace`` seconds after a deadline is not waited for.

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
        waits for that. Packets have no room for a loop timeout: one that has it goes
        by `execute_1_3`. GENERAL_FAILURE while another call has not returned.
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
            return failed(self._cause_of_end(error.cause))
        except UnsendableError as error:
            return await self._fall_back(request, options, str(error))
        finally:
            self._is_busy = False

    def execute_blocking(
        self, request: Request, measure: MeasureTiming = MeasureTiming.NO
    ) -> ExecutionResult:
        """Execute and return the result, blocking this thread until then.

        For threads without an event loop, while the burst's runs in another one.
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
                return failed(self._cause_of_end(link.ended_by))
            return link.execute_blocking(request, measure)
        except EndedError as error:
            return failed(self._cause_of_end(error.cause))
        except UnsendableError as error:
            return failed(GeneralFailureError(str(error)))
        finally:
            self._is_busy = False

    def free_memory(self, memory: Memory) -> None:
        """Have the driver forget a pool; it is made known again when it is used."""
        if self._link is not None:
            self._link.free_memory(memory)

    def close(self) -> None:
        """Release the burst; what runs is stopped, and reported to who waits."""
        if self._closed_by is None:
            self._closed_by = DeviceClosedError(CLOSED)
            if self._fallback is not None:
                self._fallback.give_up(failed(self._closed_by))
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

    def _cause_of_end(self, cause: AsyncnnError) -> AsyncnnError:
        """Return why the burst has ended; its device may know better than the link."""
        if self._closed_by is not None:
            return self._closed_by
        if isinstance(cause, DeviceUnavailableError):
            return cause_of_death(self._prepared) or cause
        return cause

    async def _reopened_until(self, deadline: int | None, ended: "Link") -> "Link":
        """Open the burst anew; a driver that is stopped does not answer that either."""
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
        ended = self._fallback = ExecutionFuture()
        self._prepared.execute_1_3(request, options.measure, *limits, ended)
        return await ended
