"""Callback objects: who is told of an asynchronous call's end, and exactly once.

A client subclasses `IPreparedModelCallback` or `IExecutionCallback`, or takes one of
the adapters (`PreparedModelFuture`, `ExecutionFuture`), which it awaits. A driver
wraps what it was given in a `OneShot`, so that a second notification is an error that
tests see, and a client's exception never reaches the driver.

A callback object can die before it was notified: its awaiting task was cancelled, or
its process is gone. A driver that wants to know links to its death, as
``IBase::linkToDeath`` does in HIDL, and stops the work that nobody waits for.
"""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, ClassVar

import msgspec

from asyncnn.hal.errors import (
    AsyncnnError,
    ExecutionFailedError,
    OutputInsufficientSizeError,
    error_for,
)
from asyncnn.hal.interfaces import (
    AlreadyNotifiedError,
    CallbackObject,
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    IPreparedModel,
    IPreparedModelCallback,
    OneShot,
)
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    OutputShape,
    Request,
    Timing,
)

__all__ = (
    "AlreadyNotifiedError",
    "CallbackObject",
    "ExecutionFuture",
    "ExecutionResult",
    "FencedOutcome",
    "IBurstCallback",
    "IExecutionCallback",
    "IFencedExecutionCallback",
    "IPreparedModelCallback",
    "OneShot",
    "PreparedModelFuture",
    "SynchronousByCallback",
)

logger = logging.getLogger(__name__)

_MISSED = frozenset(
    {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
)

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call

TURN_NS = 200_000
"""How long a task may go on with results that are there at once, without waiting."""


class FencedOutcome(IFencedExecutionCallback):
    """How a fenced execution ended, as soon as a driver has filled it in."""

    __slots__ = ("_info",)

    def __init__(self) -> None:
        self._info = (ErrorStatus.GENERAL_FAILURE, NO_TIMING, NO_TIMING)

    def get_execution_info(self) -> tuple[ErrorStatus, Timing, Timing]:
        """Return status and timings since launch and since the last fence."""
        return self._info

    def complete(self, status: ErrorStatus, launched: Timing, fenced: Timing) -> None:
        """Fill in the outcome; to be done before the fence is signalled."""
        self._info = (status, launched, fenced)

    def cancel(self) -> None:
        """Do nothing: it has ended, or nobody can end it."""


class ExecutionResult(msgspec.Struct, frozen=True):
    """What `IExecutionCallback.notify_1_3` was given.

    ``kind`` is the error that it stands for, where more is known than its status.
    ``route`` is how it went, if that is not the usual way.
    """

    status: ErrorStatus
    output_shapes: tuple[OutputShape, ...]
    timing: Timing
    reason: str = ""
    kind: type[AsyncnnError] | None = None
    route: Route | None = None

    def raise_for_status(self) -> None:
        """Do nothing if the execution succeeded.

        :raises AsyncnnError: the member of the family that ``kind`` is, or that stands
            for ``status``.
        """
        if self.status is ErrorStatus.NONE:
            return
        if self.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            raise OutputInsufficientSizeError(
                self.reason or "an output buffer is too small", self.output_shapes
            )
        message = self.reason or _told("execution", self.status)
        if self.kind is not None:
            raise self.kind(message)
        if self.status is ErrorStatus.GENERAL_FAILURE:
            raise ExecutionFailedError(message)
        raise error_for(self.status, message)


class PreparedModelFuture(IPreparedModelCallback):
    """An `IPreparedModelCallback` to await; cancelling the awaiting task kills it.

    Awaiting returns the prepared model, or raises the `AsyncnnError` of the status.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[IPreparedModel | AsyncnnError]
        self._future = loop.create_future()

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: "IPreparedModel | None"
    ) -> None:
        """Resolve the future.

        :raises AlreadyNotifiedError: if it was notified before.
        """
        if self._future.cancelled():
            return
        if self._future.done():
            raise AlreadyNotifiedError("the prepared model was delivered before")
        if prepared_model is not None and status is ErrorStatus.NONE:
            self._future.set_result(prepared_model)
        else:
            self._future.set_result(_preparation_error(status, self.reason))

    def __await__(self) -> "Generator[None, None, IPreparedModel]":
        try:
            outcome = yield from self._future.__await__()
        except asyncio.CancelledError:
            self.die()
            raise
        if isinstance(outcome, AsyncnnError):
            raise outcome
        return outcome


class _Turn(threading.local):
    """What is to go on at the end of what the loop of this thread does, if anything."""

    woken: "list[Waiter] | None" = None


_turn = _Turn()


class Waiter(asyncio.Future[Any]):
    """A future whose callbacks are called in the very turn of the loop that ends it.

    A loop calls those of other futures in its next turn, which is long in coming where
    it is busy. It is made by `Completion`, and awaited by tasks.
    """

    __slots__ = ("callbacks",)

    callbacks: list[tuple[Callable[[Any], object], Context | None]]

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Have ``fn`` called at the end, in ``context``."""
        self.callbacks.append((fn, context))

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it, if it has not ended; whoever waits goes on in the next turn."""
        has_cancelled = super().cancel(msg)
        if has_cancelled:
            self.call_soon()
        return has_cancelled

    def call_soon(self) -> None:
        """Have the loop call what is left to call, now that it has ended."""
        while self.callbacks:
            function, context = self.callbacks.pop(0)
            super().add_done_callback(function, context=context)


def in_this_turn(handle: Callable[[], object]) -> None:
    """Call ``handle`` on the loop, then go on with the tasks that it has woken.

    They find all done that it does. Where a task calls this they go on in the next
    turn, as none can inside another one.
    """
    if _turn.woken is not None or asyncio.current_task() is not None:
        handle()
        return
    woken: list[Waiter] = []
    _turn.woken = woken
    try:
        handle()
    finally:
        _turn.woken = None
        try:
            for waiter in woken:
                while waiter.callbacks:
                    function, context = waiter.callbacks.pop(0)
                    if context is None:
                        function(waiter)
                    else:
                        context.run(function, waiter)
        finally:
            for waiter in woken:
                if waiter.callbacks:  # the application is being stopped
                    waiter.call_soon()


class Completion(ABC):
    """The end of an execution, which comes once: awaited, it is an `ExecutionResult`.

    Whatever its status. A series of executions that are done at once still gives the
    loop a turn every `TURN_NS`. Cancelling the task that awaits it abandons it.
    """

    __slots__ = ()

    _result: ExecutionResult | None
    _waiting: dict[Waiter, None] | None
    _last_turn_ns: ClassVar[int] = 0

    @property
    def result(self) -> ExecutionResult | None:
        """What was told of its end; None while it has not ended."""
        return self._result

    @abstractmethod
    def abandon(self) -> None:
        """Stop the execution: nobody waits for its end."""

    def _leave(self, waiter: Waiter) -> None:
        """Note that the task of ``waiter`` was cancelled."""
        self.abandon()

    def _resolve(self, result: ExecutionResult) -> None:
        """Keep the result, and wake the tasks that await it.

        :raises AlreadyNotifiedError: if there is one.
        """
        if self._result is not None:
            raise AlreadyNotifiedError("the execution was completed before")
        self._result = result  # type: ignore[misc]  # a slot of who has its layout
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(result)
                if _turn.woken is None:
                    waiter.call_soon()
                else:
                    _turn.woken.append(waiter)

    def __await__(self) -> "Generator[Any, None, ExecutionResult]":
        if self._result is not None:
            now = time.monotonic_ns()
            if now - self._last_turn_ns > TURN_NS:
                Completion._last_turn_ns = now
                yield
            return self._result
        waiter = Waiter(loop=asyncio.get_running_loop())
        waiter.callbacks = []
        if self._waiting is None:
            self._waiting = {}  # type: ignore[misc]
        self._waiting[waiter] = None
        try:
            result: ExecutionResult = yield from waiter.__await__()
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        return result


class ExecutionFuture(Completion, IExecutionCallback):
    """An `IExecutionCallback` to await; cancelling the awaiting task kills it."""

    __slots__ = ("_result", "_route", "_waiting")

    takes_early_results: ClassVar[bool] = True

    def __init__(self) -> None:
        # All here, as a call of the base would be felt with tiny models.
        self.reason = ""
        self._is_dead = False
        self._recipients = []
        self._route: Route | None = None
        self._result: ExecutionResult | None = None
        self._waiting: dict[Waiter, None] | None = None

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Keep the result, and wake the task that awaits it.

        :raises AlreadyNotifiedError: if it was notified before.
        """
        self._resolve(
            ExecutionResult(
                status, output_shapes, timing, self.reason, None, self._route
            )
        )

    def abandon(self) -> None:
        """Die: nobody waits for a notification."""
        self.die()

    def give_up(self, result: ExecutionResult) -> None:
        """Kill it, and have the task that awaits it go on with ``result`` at once.

        The notification is still to come, and nobody is told of it. What has ended
        already has its own result.
        """
        if self._result is not None:
            return
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(result)
                waiter.call_soon()
        self.die()

    def took(self, route: Route) -> None:
        """Keep the route for the result."""
        self._route = route


def launched(
    prepared: IPreparedModel, request: Request, options: ExecutionOptions
) -> ExecutionFuture:
    """Launch an execution by the HAL's call with a callback, and return its end."""
    callback = ExecutionFuture()
    limits = options.deadline, options.loop_timeout
    prepared.execute_1_3(request, options.measure, *limits, callback)
    return callback


def tell_outcome(
    callback: IExecutionCallback,
    error: AsyncnnError | None,
    output_shapes: tuple[OutputShape, ...],
    timing: Timing,
) -> None:
    """Tell a callback how its execution ended, as the HAL has it told."""
    callback.unlink_to_death()
    if error is None:
        callback.notify_1_3(_NONE, output_shapes, timing)
        return
    status, output_shapes = told_of(error)
    callback.reason = str(error)
    callback.notify_1_3(status, output_shapes, NO_TIMING)


def told_of(error: AsyncnnError) -> tuple[ErrorStatus, tuple[OutputShape, ...]]:
    """Return what the HAL tells of an execution that failed, which is logged."""
    logger.info("execution failed: %s: %s", error.status.name, error)
    if isinstance(error, OutputInsufficientSizeError):
        return error.status, error.output_shapes
    return error.status, ()


class ExplainedAnswer(tuple[ErrorStatus, tuple[OutputShape, ...], Timing]):
    """What a synchronous call returns; ``reason`` says in words why it failed."""

    reason = ""


class SynchronousByCallback(ABC):
    """The part of an `IPreparedModel` that follows from its asynchronous call."""

    @abstractmethod
    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""

    async def execute_synchronously_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
    ) -> tuple[ErrorStatus, tuple[OutputShape, ...], Timing]:
        """Execute; see `IPreparedModel.execute_synchronously_1_3`."""
        callback = ExecutionFuture()
        self.execute_1_3(request, measure, deadline, loop_timeout_duration, callback)
        result = await callback
        answer = ExplainedAnswer((result.status, result.output_shapes, result.timing))
        answer.reason = result.reason
        return answer


def _preparation_error(status: ErrorStatus, reason: str) -> AsyncnnError:
    if status is ErrorStatus.NONE:
        return error_for(ErrorStatus.GENERAL_FAILURE, "no prepared model was delivered")
    return error_for(status, reason or _told("preparation", status))


def _told(what: str, status: ErrorStatus) -> str:
    """Return what is told of a failure whose reason nobody has told."""
    if status in _MISSED:
        return f"the {what} has missed its deadline"
    return f"{what} failed: {status.name}"
