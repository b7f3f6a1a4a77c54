"""Models that launch what was checked: calls of the HAL, and fenced runs, which wait.

What computes them knows no fences: runs wait here, and are ordinary ones then.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult, result_of
from asyncnn.deadlines import check_deadline, earlier
from asyncnn.fenced_run import BasePreparedModel, FencedRun, Source
from asyncnn.fences.core import Gate
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedTransientError,
    closed_error,
    failure_of,
)
from asyncnn.hal.interfaces import IExecutionCallback
from asyncnn.hal.refusals import refuse_execution
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.hal.validate import execution_options
from asyncnn.qos import acting_for, calling_client
from asyncnn.runtime.framework.managed_memory import BuffersInUse, BufferUser
from asyncnn.runtime.framework.outcomes import CallbackReport
from asyncnn.runtime.framework.steps import IClosable

_FAILED = ErrorStatus.GENERAL_FAILURE
_NOTHING = Request((), (), ())


class IStarted(Protocol):
    """An execution under way."""

    @property
    def is_pending(self) -> bool:
        """Whether it has not ended yet."""

    def die(self) -> None:
        """Have it stop, as nobody wants its result any more."""


class StartingModel(BufferUser, BasePreparedModel):
    """A prepared model that launches what was checked, and knows no fences.

    ``waiting_runs`` are those that its device closes with itself.
    """

    waiting_runs: set[IClosable]

    @abstractmethod
    def checked(self, request: Request, *, is_fenced: bool) -> BuffersInUse | None:
        """Check a request; return its use of buffers, which is not begun, if any.

        :raises AsyncnnError: if it is not taken.
        """

    @abstractmethod
    def start(
        self,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        notify: Callable[[ExecutionResult], None],
    ) -> IStarted:
        """Launch a checked request; ``notify`` gets the result, once.

        :raises AsyncnnError: if it is not taken; ``use`` is the caller's to end then.
        """

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        report = CallbackReport(callback)
        try:
            options = execution_options(measure, deadline, loop_timeout_duration)
            execution = self.started(request, options, report)
        except AsyncnnError as error:
            return refuse_execution(callback, error)
        report.is_called = False
        if execution.is_pending:
            callback.link_to_death(execution.die)
        return ErrorStatus.NONE

    def started(
        self,
        request: Request,
        options: ExecutionOptions,
        notify: Callable[[ExecutionResult], None],
    ) -> IStarted:
        """Check a request and launch it; ``notify`` gets the result, once.

        :raises AsyncnnError: if it is not taken.
        """
        use = self.checked(request, is_fenced=False)
        if options.deadline is not None:  # what is refused before touches no buffer
            check_deadline(options.deadline)
        try:
            return self.start(request, options, use, notify)
        except AsyncnnError as error:
            if use is not None:
                use.end(error.status, ())
            raise

    def launch_fenced(
        self, request: Request, wait_for: Sequence[Source], options: ExecutionOptions
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        :raises AsyncnnError: if it is not taken.
        """
        return self.waiting(WaitingRun, request, wait_for, options)

    def waiting(
        self,
        kind: "type[WaitingRun]",
        request: Request,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
    ) -> FencedRun:
        """Launch a run of a kind; see `launch_fenced`."""
        use = self.checked(request, is_fenced=True)
        awaited = active_fences(wait_for)
        check_deadline(options.deadline)
        run = kind(self, request, options, use)
        run.launch(awaited)
        return run


class WaitingRun(FencedRun):
    """A fenced run that waits here; to what computes it is an ordinary execution."""

    def __init__(
        self,
        model: StartingModel,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._request = request
        self._options = options
        self._use = use
        self._client = calling_client.get()
        self._gate: Gate | None = None
        self._execution: IStarted | None = None
        self._launched_ns = self._ready_ns = time.monotonic_ns()

    @property
    def is_pending(self) -> bool:
        """Whether it has not ended yet."""
        return self._result is None

    def launch(self, awaited: Sequence[Source]) -> None:
        """Wait for what is ``awaited``, if anything is, and begin."""
        self._model.waiting_runs.add(self)
        if not awaited:
            self._begin()
            return
        try:
            self._gate = Gate(awaited, self._options.deadline, self._opened)
        except Exception as error:  # descriptors may have run out
            self._fail(failure_of(error))

    def cancel(self) -> None:
        """End it; see `FencedRun.cancel`."""
        if self._execution is not None:
            self._execution.die()
        else:
            self._fail(ResourceExhaustedTransientError("the execution was cancelled"))

    def die(self) -> None:
        """End it; see `IStarted`."""
        self.cancel()

    def close(self) -> None:
        """End it, unless it has begun, as the device is closed."""
        if self._execution is None:
            self._fail(closed_error())

    def _opened(self, failure: AsyncnnError | None) -> None:
        if failure is not None:
            self.loop.call_soon(self._fail, failure)
        else:
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._result is not None:
            return  # it was cancelled meanwhile
        self._leave_gate()
        options, now = self._options, time.monotonic_ns()
        self._ready_ns = now
        if options.duration is not None:
            deadline = earlier(options.deadline, now, options.duration)
            options = replace(options, deadline=deadline, duration=None)
        try:
            with acting_for(self._client):
                started = self._started(options)
        except Exception as error:
            self._fail(failure_of(error))
            return
        if self._result is None:
            self._execution = started

    def _started(self, options: ExecutionOptions) -> IStarted:
        """Have it computed, now that all that it has waited for has signalled."""
        check_deadline(options.deadline)
        return self._model.start(self._request, options, self._use, self._ended)

    def _ended(self, result: ExecutionResult) -> None:
        """Take the result of the driver's execution; fences know nothing of shapes."""
        status, timing = result.status, result.timing
        if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            status = _FAILED
        launched = timing
        if timing is not NO_TIMING:
            waited_us = (self._ready_ns - self._launched_ns) // 1000
            launched = Timing(timing.time_on_device, timing.time_in_driver + waited_us)
        self._finish(
            replace(result, status=status, output_shapes=(), timing=launched), timing
        )

    def _fail(self, error: AsyncnnError) -> None:
        if self._result is None:
            if self._use is not None:
                self._use.end(error.status, ())
            self._finish(result_of(error))

    def _finish(self, result: ExecutionResult, fenced: Timing = NO_TIMING) -> None:
        self._leave_gate()
        self._model.waiting_runs.discard(self)
        self._execution = self._use = None
        self._request = _NOTHING
        self.complete(result, fenced)

    def _leave_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()
