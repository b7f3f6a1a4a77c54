"""The two kinds of work a device schedules: preparing and executing."""

import logging
import time
from collections.abc import Callable

from asyncnn.devices.cache import Compiled, Prepare
from asyncnn.engine import Execution, Program
from asyncnn.engine.arguments import (
    input_arrays,
    input_shapes,
    output_arrays,
    store_outputs,
)
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
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.qos import Client, Pause, Tally, Work
from asyncnn.tracing import Layer, Phase, Trace, begin
from asyncnn.vlog import CPUEXE, EXECUTION

logger = logging.getLogger(__name__)

ReportPrepared = Callable[[Compiled | AsyncnnError], None]
ReportExecuted = Callable[
    [AsyncnnError | None, tuple[OutputShape, ...], Timing, int], None
]


class PrepareWork(Work):
    """Prepares a model and reports the result, or why there is none."""

    __slots__ = ("_outcome", "_prepare", "_report", "_trace")

    def __init__(
        self,
        prepare: Prepare,
        priority: Priority,
        deadline_ns: int | None,
        report: ReportPrepared,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self._prepare = prepare
        self._report = report
        self._outcome: Compiled | AsyncnnError | None = None
        self._trace = begin()

    def advance(self, pause: Pause) -> bool:
        """Prepare the model, in one go."""
        started_ns = time.monotonic_ns()
        if self._outcome is None:
            outcome = _outcome_of(self._prepare)
            self._outcome = self._outcome or outcome
        if self._trace is not None:
            _trace_queue(self._trace, Phase.PREPARATION, started_ns)
            ended_ns = time.monotonic_ns()
            self._trace.add(
                "prepare", Layer.CPU, Phase.COMPILATION, started_ns, ended_ns
            )
        return True

    def abort(self, status: ErrorStatus) -> None:
        """Report ``status`` instead of a model that is not ready yet."""
        if self._outcome is None:
            self._outcome = error_for(status, "the preparation was aborted")

    def finish(self) -> ErrorStatus:
        """Report the outcome."""
        outcome = self._outcome
        assert outcome is not None
        self._report(outcome)
        status = ErrorStatus.NONE
        if isinstance(outcome, AsyncnnError):
            status = outcome.status
        if self._trace is not None:
            _trace_end(self._trace, "preparation", Phase.PREPARATION, status)
        return status


def _trace_queue(trace: Trace, phase: Phase, ended_ns: int) -> None:
    trace.add("queue", Layer.DRIVER, phase, trace.started_ns, ended_ns)


def _trace_end(trace: Trace, name: str, phase: Phase, status: ErrorStatus) -> None:
    failure = "" if status is ErrorStatus.NONE else status.name
    trace.end(name, Layer.DRIVER, phase, failure)


def _outcome_of(prepare: Prepare) -> Compiled | AsyncnnError:
    try:
        return prepare()
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
    nanoseconds of computing. The timing includes those in which it was suspended.
    """

    __slots__ = (
        "_abort_status",
        "_computed_ns",
        "_ended_ns",
        "_error",
        "_execution",
        "_is_advancing",
        "_launched_ns",
        "_loop_timeout_ns",
        "_measure",
        "_outputs",
        "_plan",
        "_program",
        "_report",
        "_request",
        "_shapes",
        "_started_ns",
        "_trace",
    )

    _plan: Plan
    _outputs: list[Array | None]

    def __init__(
        self,
        program: Program,
        request: Request,
        measure: MeasureTiming,
        priority: Priority,
        deadline_ns: int | None,
        loop_timeout_ns: int | None,
        report: ReportExecuted,
        *,
        client: Client | None = None,
        least_ns: int = 0,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(
            priority, deadline_ns, client=client, least_ns=least_ns, tally=tally
        )
        self._loop_timeout_ns = loop_timeout_ns
        self._launched_ns = time.perf_counter_ns()
        self._program = program
        self._request = request
        self._measure = measure
        self._report = report
        self._execution: Execution | None = None
        self._abort_status: ErrorStatus | None = None
        self._error: AsyncnnError | None = None
        self._shapes: tuple[OutputShape, ...] | None = None
        self._is_advancing = False
        self._started_ns = self._ended_ns = self._computed_ns = 0
        self._trace = begin()

    def advance(self, pause: Pause) -> bool:
        """Execute until the end, until `abort`, or until it is to pause."""
        resumed_ns = time.perf_counter_ns()
        has_ended = self._is_advancing = True
        try:
            has_ended = self._advance(pause, resumed_ns)
        except AsyncnnError as error:
            # Its traceback refers to this frame: a cycle that would keep the pools.
            self._error = error.with_traceback(None)
        except Exception as error:
            logger.exception("an execution failed")
            self._error = error_for(
                ErrorStatus.GENERAL_FAILURE, f"{type(error).__name__}: {error}"
            )
        self._ended_ns = time.perf_counter_ns()
        self._computed_ns += self._ended_ns - resumed_ns
        self._is_advancing = False
        if self._trace is not None:
            self._trace.add(
                "execute", Layer.CPU, Phase.COMPUTATION, resumed_ns, self._ended_ns
            )
        return has_ended

    def _advance(self, pause: Pause, now_ns: int) -> bool:
        execution = self._execution
        if execution is None:
            self._started_ns = now_ns
            if self._trace is not None:
                _trace_queue(self._trace, Phase.EXECUTION, now_ns)
            execution = self._begin()
        if not execution.advance(pause):
            return False
        self._shapes = store_outputs(
            self._plan, self._request, self._outputs, execution.outputs
        )
        return True

    def _begin(self) -> Execution:
        program, request = self._program, self._request
        self._plan = plan = program.plan(input_shapes(program, request))
        if CPUEXE:
            CPUEXE("run", operations=[s.operation.type.name for s in plan.steps])
        self._outputs = outputs = output_arrays(plan, request)
        self._execution = execution = Execution(
            program,
            plan,
            input_arrays(plan, request),
            outputs,
            deadline_ns=self.deadline_ns,
            loop_timeout_ns=self._loop_timeout_ns,
        )
        if self._abort_status is not None:
            execution.abort(self._abort_status)
        return execution

    def abort(self, status: ErrorStatus) -> None:
        """Make the execution end with ``status`` at its next boundary."""
        self._abort_status = status
        if self._execution is not None:
            self._execution.abort(status)

    def finish(self) -> ErrorStatus:
        """Report the outcome; shapes and timing as the HAL wants them for it."""
        error, shapes = self._error, self._shapes
        if error is None and shapes is None:
            status = self._abort_status or ErrorStatus.GENERAL_FAILURE
            error = error_for(status, self._abandon())
        timing = NO_TIMING
        if self._measure == MeasureTiming.YES and error is None:
            in_driver = time.perf_counter_ns() - self._launched_ns
            on_device = self._ended_ns - self._started_ns
            timing = Timing(on_device // 1000, in_driver // 1000)
        trace = self._trace
        replied_ns = 0 if trace is None else time.monotonic_ns()
        self._report(error, shapes or (), timing, self._computed_ns)
        status = ErrorStatus.NONE if error is None else error.status
        if EXECUTION:
            computed_us = self._computed_ns // 1000
            EXECUTION("done", status=status.name, computed_us=computed_us)
        if trace is not None:
            now_ns = time.monotonic_ns()
            trace.add("reply", Layer.DRIVER, Phase.RESULTS, replied_ns, now_ns)
            _trace_end(trace, "execution", Phase.EXECUTION, status)
        return status

    def _abandon(self) -> str:
        """Free what an execution holds that will not go on; say where it stopped."""
        if self._execution is None:
            return "the execution was aborted before it began"
        if self._is_advancing:  # its buffers are still being written to
            return "an operation took too long"
        self._execution.close()
        return "the execution was aborted"
