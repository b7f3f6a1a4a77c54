"""Executions under way: their memory, copies before and after, and how they end."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from asyncnn.deadlines import told_late
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.hal.routes import Route
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShape, Timing
from asyncnn.memory.slabs import retire
from asyncnn.offload import SerialOffload
from asyncnn.service.client.staging import Staged, Staging
from asyncnn.service.client.unanswered import Cause
from asyncnn.service.limits import OwnedTasks

logger = logging.getLogger(__name__)


_UNSETTLED = frozenset({ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.GENERAL_FAILURE})
"""How an execution ends that the driver may not have stopped: it was lost, or stuck."""


class Executed(Protocol):
    """Told how an execution ended."""

    def __call__(
        self,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        reason: str,
    ) -> None:
        """Take the outcome, once; ``reason`` explains a failure."""
        ...

    def took(self, route: Route) -> None:
        """Learn, before the outcome, of an unusual route."""
        ...

    def expire(self, error: AsyncnnError) -> None:
        """Report that no answer came in time; the outcome may still follow."""
        ...


class SentMemory(msgspec.Struct, eq=False):
    """The memory that an execution uses in a driver, and here, until it has ended.

    The driver works on these pools until then, and on the slab of what is ``staged``.
    """

    _staging: Staging
    _pools: Sequence[object]
    staged: Staged | None
    _failure: AsyncnnError | None = None

    def take_outputs(
        self,
        status: ErrorStatus,
        finish: Callable[[Callable[[], None], Callable[[], None]], None],
        then: Callable[[AsyncnnError | None], None],
    ) -> None:
        """Copy the outputs of an execution that has ended back, and let go of all.

        Then calls ``then`` with why they could not be taken, if so. What takes long is
        copied by ``finish``, on a thread.
        """
        staged = self.staged
        if staged is not None and staged.outputs and status is ErrorStatus.NONE:
            if staged.layout.has_large_outputs:
                finish(self._copy_back, partial(self._end, status, then))
                return
            self._copy_back()
        self.let_go(status)
        then(self._failure)

    def _copy_back(self) -> None:
        try:
            # Let go of meanwhile, the slab may have the outputs of another execution.
            if self.staged is not None:
                self.staged.copy_back()
        except Exception as error:
            logger.exception("the outputs of an execution could not be taken")
            self._failure = failure_of(error)

    def _end(
        self, status: ErrorStatus, then: Callable[[AsyncnnError | None], None]
    ) -> None:
        self.let_go(status)
        then(self._failure)

    def let_go(self, status: ErrorStatus) -> None:
        """Give the slab back for other requests, unless it may still be written to."""
        pools, self._pools = self._pools, ()
        staged, self.staged = self.staged, None
        if status in _UNSETTLED:
            retire(pools)
        # A driver that is stuck may write to the slab later: then it is dropped.
        if staged is not None and status is not ErrorStatus.GENERAL_FAILURE:
            self._staging.give_back(staged)

    def release(self) -> None:
        """Let go of the client's pools; the driver has the slab until it answers."""
        if self.staged is not None:
            self.staged.release()


class DeferredExecution(msgspec.Struct, eq=False):
    """One deferred execution. ``launch`` sends it and returns its number.

    It was ``asked_ns`` for; at the ``deadline``, if there is one, it is reported.
    """

    executed: Executed
    launch: Callable[[], int]
    _cancel: Callable[[int], None]
    deadline: int | None
    asked_ns: int
    is_cancelled: bool = False
    number: int | None = None

    def cancel(self) -> None:
        """Send it no more, or tell the driver that nobody waits."""
        self.is_cancelled = True
        if self.number is not None:
            self._cancel(self.number)


class DeferredExecutions:
    """Executions of a connection whose arguments are copied on a thread first.

    Belongs to the event loop. One copies at a time: they are sent in order.
    ``cancel`` tells the driver, by the number of an execution, that nobody waits.
    """

    def __init__(self, cancel: Callable[[int], None], most: int) -> None:
        self._cancel = cancel
        self._tasks = OwnedTasks(most)
        self._on_thread = SerialOffload()
        self._waiting: set[DeferredExecution] = set()

    def start(
        self,
        copy: Callable[[], None],
        launch: Callable[[], int],
        executed: Executed,
        deadline: int | None,
    ) -> DeferredExecution:
        """Launch an execution after ``copy``, unless there is no use by then.

        :raises ResourceExhaustedTransientError: if too many are under way.
        """
        self._tasks.check_room()
        now_ns = time.monotonic_ns()
        deferred = DeferredExecution(executed, launch, self._cancel, deadline, now_ns)
        self._waiting.add(deferred)
        self._tasks.start(self._run(deferred, copy))
        return deferred

    def finish(self, copy: Callable[[], None], then: Callable[[], None]) -> None:
        """Call ``then`` after ``copy``: the result of an execution that has ended.

        ``copy`` keeps what it fails with to itself. Where it cannot be done on a
        thread, it is done on the loop.
        """
        self._tasks.start(self._finish(copy, then))

    def lose(self, cause: Cause) -> None:
        """Fail those that are not sent yet: the connection has ended."""
        error = cause()
        for deferred in tuple(self._waiting):
            self._fail(deferred, error)

    async def wait_ended(self) -> None:
        """Wait until no thread copies any more."""
        await self._tasks.wait_ended()

    async def _run(self, deferred: DeferredExecution, copy: Callable[[], None]) -> None:
        alarm, deadline = None, deferred.deadline
        if deadline is not None:
            alarm = asyncio.get_running_loop().call_later(
                (deadline - deferred.asked_ns) / 1e9, self._expire, deferred
            )
        try:
            if not deferred.is_cancelled:
                await self._on_thread(copy)
            if deadline is not None and time.monotonic_ns() >= deadline:
                self._expire(deferred)
            # The connection may have ended during the copy: then it was told.
            if deferred in self._waiting and not deferred.is_cancelled:
                deferred.number = deferred.launch()
                self._waiting.discard(deferred)
        except Exception as error:
            if not deferred.is_cancelled:  # else its inputs were let go of meanwhile
                self._fail(deferred, failure_of(error))
        finally:
            if alarm is not None:
                alarm.cancel()
        if deferred.is_cancelled:
            cancelled = ResourceExhaustedTransientError("the execution was cancelled")
            self._fail(deferred, cancelled)

    def _expire(self, deferred: DeferredExecution) -> None:
        """Report one as missed. A thread may copy still, so that memory stays."""
        if deferred.is_cancelled or deferred not in self._waiting:
            return
        deferred.is_cancelled = True
        late = told_late(deferred.deadline or 0, deferred.asked_ns)
        error = MissedDeadlineTransientError(f"{late}; its inputs were being copied")
        try:
            deferred.executed.expire(error)
        except (Exception, asyncio.CancelledError):
            logger.exception("a listener failed while it was notified")

    async def _finish(self, copy: Callable[[], None], then: Callable[[], None]) -> None:
        try:
            await self._on_thread(copy)
        except ResourceExhaustedTransientError as error:
            logger.info("outputs are copied on the loop: %s", error)
            copy()
        except asyncio.CancelledError:  # the loop is about to end
            copy()
            then()
            raise
        then()

    def _fail(self, deferred: DeferredExecution, error: AsyncnnError) -> None:
        """Report the failure, unless the end was reported before."""
        if deferred in self._waiting:
            self._waiting.discard(deferred)
            try:
                deferred.executed(error.status, (), NO_TIMING, str(error))
            except (Exception, asyncio.CancelledError):
                logger.exception("a listener failed while it was notified")
