"""Callback objects, notified of an asynchronous call's end exactly once.

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
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from asyncnn.hal.errors import (
    MISSED,
    AsyncnnError,
    ExecutionFailedError,
    OutputInsufficientSizeError,
    PreparationFailedError,
    error_for,
    failure_of,
)
from asyncnn.hal.interfaces import (
    AlreadyNotifiedError,
    CallbackObject,
    IBurstCallback,
    IDevice,
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
    OutputShapes,
    Request,
    Timing,
)
from asyncnn.turn import End, Waiter

if TYPE_CHECKING:
    from asyncnn.hal.refusals import LoadArguments, PrepareArguments

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

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call


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
    ``route`` is how it went, if that is not the usual way. What ``is_left`` to a driver
    that has not answered may still write to the outputs.
    """

    status: ErrorStatus
    output_shapes: OutputShapes
    timing: Timing
    reason: str = ""
    kind: type[AsyncnnError] | None = None
    route: Route | None = None
    is_left: bool = False

    def raise_for_status(self, what: str = "execution") -> None:
        """Do nothing if the execution succeeded.

        ``what`` has failed, where no reason was given.

        :raises AsyncnnError: the member of the family that ``kind`` is, or that stands
            for ``status``.
        """
        if self.status is ErrorStatus.NONE:
            return
        if self.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            raise OutputInsufficientSizeError(
                self.reason or "an output buffer is too small", self.output_shapes
            )
        message = self.reason or unexplained(what, self.status)
        if self.kind is not None:
            raise self.kind(message)
        if self.status is ErrorStatus.GENERAL_FAILURE:
            raise ExecutionFailedError(message)
        raise error_for(self.status, message)


def result_of(error: Exception, *, is_left: bool = False) -> ExecutionResult:
    """Return how an execution ends that has met an error."""
    failure = failure_of(error)
    return ExecutionResult(failure.status, (), NO_TIMING, str(failure), is_left=is_left)


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
            self._future.set_result(preparation_error(status, self.reason))

    def __await__(self) -> "Generator[None, None, IPreparedModel]":
        try:
            outcome = yield from self._future.__await__()
        except asyncio.CancelledError:
            self.die()
            raise
        if isinstance(outcome, AsyncnnError):
            raise outcome
        return outcome


class Completion(End, ABC):
    """The end of an execution, which comes once: awaited, it is an `ExecutionResult`.

    Whatever its status. Cancelling the task that awaits it abandons it.
    """

    _result: ExecutionResult | None
    _waiting: dict[Waiter, None] | None

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, ExecutionResult]: ...

    @property
    def result(self) -> ExecutionResult | None:
        """How it ended; None while it has not."""
        return self._result

    @abstractmethod
    def abandon(self) -> None:
        """Stop the execution: nobody waits for its end."""

    def _leave(self, waiter: Waiter) -> None:
        """Note that the task of ``waiter`` was cancelled."""
        self.abandon()


class ExecutionFuture(Completion, IExecutionCallback):
    """An `IExecutionCallback` to await; cancelling the awaiting task kills it."""

    _route: Route | None = None
    takes_early_results: ClassVar[bool] = True

    def __init__(self) -> None:
        # All here, as a call of the base would be felt with tiny models.
        self.reason = ""
        self._is_dead = False
        self._recipients = []

    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        """Keep the result, and wake the task that awaits it.

        :raises AlreadyNotifiedError: if it was notified before.
        """
        self._resolve(
            ExecutionResult(
                status,
                output_shapes,
                timing,
                self.reason,
                None,
                self._route,
                self.is_left,
            )
        )

    def abandon(self) -> None:
        """Die: nobody waits for a notification."""
        self.die()

    def give_up(self, result: ExecutionResult) -> None:
        """Kill it, and have the task that awaits it go on with ``result`` at once.

        The notification is still to come, and nobody receives it. What has ended
        already has its own result.
        """
        if self._result is not None:
            return
        self._wake(result)
        self.die()

    def took(self, route: Route) -> None:
        """Keep the route for the result."""
        self._route = route


def launched_preparation(
    device: IDevice, asked: "PrepareArguments | LoadArguments"
) -> PreparedModelFuture:
    """Launch a preparation by the HAL's call with a callback, and return its end."""
    callback = PreparedModelFuture()
    asked.by(device, callback)
    return callback


def launched(
    prepared: IPreparedModel, request: Request, options: ExecutionOptions
) -> ExecutionFuture:
    """Launch an execution by the HAL's call with a callback, and return its end."""
    callback = ExecutionFuture()
    limits = options.deadline, options.loop_timeout
    prepared.execute_1_3(request, options.measure, *limits, callback)
    return callback


async def executed_synchronously(
    prepared: IPreparedModel, request: Request, options: ExecutionOptions
) -> ExecutionResult:
    """Execute by the HAL's synchronous call."""
    answer = await prepared.execute_synchronously_1_3(
        request, options.measure, options.deadline, options.loop_timeout
    )
    reason = answer.reason if isinstance(answer, ExplainedAnswer) else ""
    return ExecutionResult(*answer, reason)


def notify_outcome(
    callback: IExecutionCallback,
    error: AsyncnnError | None,
    output_shapes: OutputShapes,
    timing: Timing,
) -> None:
    """Notify a callback of how its execution ended, as the HAL demands."""
    callback.unlink_to_death()
    if error is None:
        callback.notify_1_3(_NONE, output_shapes, timing)
        return
    status, output_shapes = outcome_of(error)
    callback.reason = str(error)
    callback.notify_1_3(status, output_shapes, NO_TIMING)


def outcome_of(error: AsyncnnError) -> tuple[ErrorStatus, OutputShapes]:
    """Return what the HAL reports of an execution that failed; log it."""
    logger.info("execution failed: %s: %s", error.status.name, error)
    if isinstance(error, OutputInsufficientSizeError):
        return error.status, error.output_shapes
    return error.status, ()


class ExplainedAnswer(tuple[ErrorStatus, OutputShapes, Timing]):
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
    ) -> tuple[ErrorStatus, OutputShapes, Timing]:
        """Execute; see `IPreparedModel.execute_synchronously_1_3`."""
        callback = ExecutionFuture()
        self.execute_1_3(request, measure, deadline, loop_timeout_duration, callback)
        result = await callback
        answer = ExplainedAnswer((result.status, result.output_shapes, result.timing))
        answer.reason = result.reason
        return answer


def preparation_error(status: ErrorStatus, reason: str) -> AsyncnnError:
    """Return the error of a preparation that has given a ``status`` and no model."""
    if status is ErrorStatus.NONE:
        return PreparationFailedError("no prepared model was delivered")
    if status is ErrorStatus.GENERAL_FAILURE and not reason:
        return PreparationFailedError(f"preparation failed: {status.name}")
    return error_for(status, reason or unexplained("preparation", status))


def unexplained(what: str, status: ErrorStatus) -> str:
    """Return the message of a failure for which no reason was given."""
    if status in MISSED:
        return f"the {what} has missed its deadline"
    return f"{what} failed: {status.name}"
