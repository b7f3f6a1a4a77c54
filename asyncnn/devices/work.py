"""The two kinds of work a device schedules: preparing and executing."""

import logging
import time
from collections.abc import Callable

from asyncnn.engine import Execution, Program
from asyncnn.engine.arguments import execute_request
from asyncnn.engine.plan import Plan
from asyncnn.errors import (
    AsyncnnError,
    error_for,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    Model,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.qos import Work

logger = logging.getLogger(__name__)

ReportPrepared = Callable[[Program | AsyncnnError], None]
ReportExecuted = Callable[
    [AsyncnnError | None, tuple[OutputShape, ...], Timing, int], None
]


class PrepareWork(Work):
    """Compiles a validated model and reports the program, or why there is none."""

    __slots__ = ("_model", "_outcome", "_report")

    def __init__(
        self,
        model: Model,
        priority: Priority,
        deadline_ns: int | None,
        report: ReportPrepared,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self._model = model
        self._report = report
        self._outcome: Program | AsyncnnError | None = None

    def run(self) -> None:
        """Compile the model."""
        if self._outcome is None:
            outcome = _compile(self._model)
            self._outcome = self._outcome or outcome

    def abort(self, status: ErrorStatus) -> None:
        """Report ``status`` instead of a program that is not ready yet."""
        if self._outcome is None:
            self._outcome = error_for(status, "the preparation was aborted")

    def finish(self) -> None:
        """Report the outcome."""
        assert self._outcome is not None
        self._report(self._outcome)


def _compile(model: Model) -> Program | AsyncnnError:
    try:
        return Program(model)
    except AsyncnnError as error:
        return error
    except Exception as error:
        logger.exception("preparing a model failed")
        return error_for(
            ErrorStatus.GENERAL_FAILURE, f"{type(error).__name__}: {error}"
        )


class ExecuteWork(Work):
    """Runs a program on a validated request and reports how it ended.

    The report gets the error or None, the output shapes, the timing, and the
    nanoseconds that `run` took.
    """

    __slots__ = (
        "_abort_status",
        "_error",
        "_execution",
        "_launched_ns",
        "_loop_timeout_ns",
        "_measure",
        "_program",
        "_report",
        "_request",
        "_run_ns",
        "_shapes",
    )

    def __init__(
        self,
        program: Program,
        request: Request,
        measure: MeasureTiming,
        priority: Priority,
        deadline_ns: int | None,
        loop_timeout_ns: int | None,
        report: ReportExecuted,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self._loop_timeout_ns = loop_timeout_ns
        self._launched_ns = time.perf_counter_ns()
        self._program = program
        self._request = request
        self._measure = measure
        self._report = report
        self._execution: Execution | None = None
        self._abort_status: ErrorStatus | None = None
        self._error: AsyncnnError | None = None
        self._shapes: tuple[OutputShape, ...] = ()
        self._run_ns = 0

    def run(self) -> None:
        """Execute until the end or until `abort`."""
        started = time.perf_counter_ns()
        try:
            self._shapes = execute_request(self._program, self._request, self._compute)
        except AsyncnnError as error:
            # Its traceback refers to this frame: a cycle that would keep the pools.
            self._error = error.with_traceback(None)
        except Exception as error:
            logger.exception("an execution failed")
            self._error = error_for(
                ErrorStatus.GENERAL_FAILURE, f"{type(error).__name__}: {error}"
            )
        self._run_ns = time.perf_counter_ns() - started

    def _compute(
        self, plan: Plan, inputs: list[Array | None], outputs: list[Array | None]
    ) -> list[Array]:
        execution = Execution(
            self._program,
            plan,
            inputs,
            outputs,
            deadline_ns=self.deadline_ns,
            loop_timeout_ns=self._loop_timeout_ns,
        )
        self._execution = execution
        if self._abort_status is not None:
            execution.abort(self._abort_status)
        execution.advance()
        return execution.outputs

    def abort(self, status: ErrorStatus) -> None:
        """Make the execution end with ``status`` at its next boundary."""
        self._abort_status = status
        if self._execution is not None:
            self._execution.abort(status)

    def finish(self) -> None:
        """Report the outcome; shapes and timing as the HAL wants them for it."""
        error = self._error
        if error is None and self._run_ns == 0:  # never begun
            status = self._abort_status or ErrorStatus.GENERAL_FAILURE
            error = error_for(status, "the execution was aborted before it began")
        timing = NO_TIMING
        if self._measure == MeasureTiming.YES and error is None:
            in_driver = time.perf_counter_ns() - self._launched_ns
            timing = Timing(self._run_ns // 1000, in_driver // 1000)
        self._report(error, self._shapes, timing, self._run_ns)
