"""Executions under way: their memory, copies before and after, and how they end."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from asyncnn.callbacks import Completion, ExecutionResult, result_of
from asyncnn.deadlines import lateness
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.hal.routes import Route
from asyncnn.hal.types import ErrorStatus, Request
from asyncnn.memory.slabs import retire
from asyncnn.service.client.sent_pools import Sendable
from asyncnn.service.client.staging import Staged
from asyncnn.service.client.unanswered import Cause, Line, notify
from asyncnn.service.limits import OwnedTasks

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_NOTHING = Request((), (), ())

_UNSETTLED = frozenset({ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.GENERAL_FAILURE})
"""How an execution ends that the driver may not have stopped: it was lost, or stuck."""


class SentExecution(Completion):
    """One execution under way in a driver, and the memory that it uses there and here.

    The driver works on the pools of ``request`` until it has ended, and on the slab of
    what is ``staged``. ``number`` is 0 until it was sent; one that ``is_abandoned``
    before is sent no more.
    """

    is_abandoned = False
    number = 0
    request: Request
    sendable: Sendable
    staged: Staged | None
    _route: Route | None = None
    _is_left = False

    def __init__(
        self, connection: Line, request: Request, sent: Sendable | Staged
    ) -> None:
        self._connection = connection
        if isinstance(sent, Staged):
            self.request, self.staged = sent.request, sent
            self.sendable = sent.sendable
            sent.is_busy = True
        else:
            self.request, self.staged = request, None
            self.sendable = sent

    @abstractmethod
    def _settle(self, result: ExecutionResult, *more: Any) -> None:
        """Report the result; none was reported before."""

    def took(self, route: Route) -> None:
        """Learn, before the outcome, of an unusual route."""
        self._route = route

    def leave(self) -> None:
        """Learn, before the outcome, that its memory stays in use."""
        self._is_left = True

    def take(self, result: ExecutionResult, *more: Any) -> None:
        """Take the outcome, once, and the outputs that are not in place yet.

        Large ones are copied in turns of the loop. The connection shields itself from
        what this raises.
        """
        status, staged = result.status, self.staged
        if self._result is not None:  # it was given up; the slab is free from now on
            self.let_go(status)
            return
        if self._route is not None:
            result = replace(result, route=self._route)
        if self._is_left:
            result = replace(result, is_left=True)
        if status is not _NONE:
            logger.info("execution failed: %s: %s", status.name, result.reason)
        elif staged is not None and staged.outputs:
            if staged.layout.has_large_outputs:
                self._connection.finish(*self._copying(staged, result, *more))
                return
            try:
                staged.copy_back()
            except Exception as error:
                result = _not_taken(error)
        if staged is None or status is not _NONE:
            self.let_go(status)
        else:
            self.request, self.staged = _NOTHING, None
            staged.give_back()
        self._settle(result, *more)

    def _copying(
        self, staged: Staged, result: ExecutionResult, *more: Any
    ) -> tuple[Iterator[None], Callable[[], None]]:
        """Return what copies outputs in pieces, and what reports the result then."""
        failure: list[ExecutionResult] = []

        def copying() -> Iterator[None]:
            try:
                for _ in staged.copying_back():
                    yield
                    if self._result is not None:  # its outputs are the application's
                        break
            except Exception as error:
                failure.append(_not_taken(error))

        def end() -> None:
            self.let_go(result.status)
            if self._result is None:  # it was not given up meanwhile
                self._settle(failure[0] if failure else result, *more)

        return copying(), end

    def let_go(self, status: ErrorStatus) -> None:
        """Give the slab back for other requests, unless it may still be written to."""
        request, staged = self.request, self.staged
        self.request, self.staged = _NOTHING, None
        if status in _UNSETTLED or self._is_left:
            retire(request.pools)
        # A driver that is stuck may write to the slab later: then it is dropped.
        is_stuck = status is ErrorStatus.GENERAL_FAILURE or self._is_left
        if staged is not None and not is_stuck:
            staged.give_back()

    def expire(self, error: AsyncnnError) -> None:
        """Report that the driver has not answered; its slab stays until it has."""
        if self._result is None:
            if self.staged is not None and not self.staged.is_held:
                self.staged.inputs.clear()  # which are the application's
                self.staged.outputs.clear()
            is_left = self.staged is None or bool(self.staged.layout.kept)
            self.refuse(error, is_left and self.number != 0)

    def refuse(self, error: AsyncnnError, is_left: bool = False) -> None:
        """Report an error of this end, maybe while the client's memory is in use."""
        self._settle(result_of(error, is_left=is_left))


def _not_taken(error: Exception) -> ExecutionResult:
    logger.error("the outputs of an execution could not be taken", exc_info=error)
    return result_of(error)


class DeferredExecutions:
    """Executions of a connection whose arguments are copied in pieces first.

    Belongs to the event loop, which has other turns between two pieces: a thread would
    take longer to start than most copies take. One copies at a time: they are sent in
    order.
    """

    def __init__(self, most: int) -> None:
        self._tasks = OwnedTasks(most)
        self._turn = asyncio.Lock()
        self._waiting: set[SentExecution] = set()

    def start(
        self, execution: SentExecution, launch: Callable[[], None], deadline: int | None
    ) -> None:
        """Launch an execution once its inputs are copied, unless there is no use.

        :raises ResourceExhaustedTransientError: if too many are under way.
        """
        self._tasks.check_room()
        self._waiting.add(execution)
        self._tasks.start(self._run(execution, launch, deadline, time.monotonic_ns()))

    def finish(self, copying: Iterator[None], then: Callable[[], None]) -> None:
        """Call ``then`` after ``copying``: the result of an execution that has ended.

        ``copying`` keeps what it fails with to itself.
        """
        self._tasks.start(self._finish(copying, then))

    def lose(self, cause: Cause) -> None:
        """Fail those that are not sent yet: the connection has ended."""
        error = cause()
        for execution in tuple(self._waiting):
            self._fail(execution, error)

    async def wait_ended(self) -> None:
        """Wait until nothing is copied any more."""
        await self._tasks.wait_ended()

    async def _run(
        self,
        execution: SentExecution,
        launch: Callable[[], None],
        deadline: int | None,
        asked_ns: int,
    ) -> None:
        alarm, staged = None, execution.staged
        if staged is None:
            return  # the connection ended before this began: it was notified
        if deadline is not None:
            delay, late = (deadline - asked_ns) / 1e9, (execution, deadline, asked_ns)
            alarm = asyncio.get_running_loop().call_later(delay, self._expire, *late)
        try:
            async with self._turn:
                if self._is_wanted(execution):  # else its slab may be another's
                    for _ in staged.filling():
                        await asyncio.sleep(0)
                        if not self._is_wanted(execution):
                            break
            if deadline is not None and time.monotonic_ns() >= deadline:
                self._expire(execution, deadline, asked_ns)
            if self._is_wanted(execution):
                launch()
                self._waiting.discard(execution)
        except Exception as error:
            if not execution.is_abandoned:  # else its inputs were let go of meanwhile
                self._fail(execution, failure_of(error))
        finally:
            if alarm is not None:
                alarm.cancel()
        if execution.is_abandoned:
            cancelled = ResourceExhaustedTransientError("the execution was cancelled")
            self._fail(execution, cancelled)

    def _is_wanted(self, execution: SentExecution) -> bool:
        # When the connection ends, it is notified, and waits no more.
        return execution in self._waiting and not execution.is_abandoned

    def _expire(self, execution: SentExecution, deadline: int, asked_ns: int) -> None:
        """Report one as missed, which is let go of in its turn."""
        if execution.is_abandoned or execution not in self._waiting:
            return
        execution.is_abandoned = True
        late = lateness(deadline, asked_ns)
        error = MissedDeadlineTransientError(f"{late}; its inputs were being copied")
        notify(execution.expire, error)

    async def _finish(self, copying: Iterator[None], then: Callable[[], None]) -> None:
        try:
            async with self._turn:
                for _ in copying:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:  # the loop is about to end
            for _ in copying:
                pass
            then()
            raise
        then()

    def _fail(self, execution: SentExecution, error: AsyncnnError) -> None:
        if execution in self._waiting:
            self._waiting.discard(execution)
            notify(execution.take, result_of(error))
