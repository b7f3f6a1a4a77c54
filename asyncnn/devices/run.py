"""One run of a prepared model on a request: all that there is of it, to its end."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns, perf_counter_ns, thread_time_ns
from typing import Any, ClassVar, Self, cast

from asyncnn.callbacks import Completion, ExecutionResult, outcome_of
from asyncnn.deadlines import format_duration, lateness
from asyncnn.devices.buffer_use import IBufferUse
from asyncnn.devices.executable import MOST_LESSONS, Executable
from asyncnn.devices.process_wide import NOTHING
from asyncnn.engine import PlanExecution
from asyncnn.engine.arguments import (
    copy_outputs,
    input_arrays,
    input_shapes,
    output_arrays,
    store_outputs,
)
from asyncnn.engine.job import LATE, PAUSED, IControl, RunFields
from asyncnn.engine.plan import Plan
from asyncnn.engine.plan_execution import failed_at, longest_of, names_of, run_bound
from asyncnn.engine.workspace import Workspace, aligned_like
from asyncnn.execution import Execution
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    StalePlanError,
    error_for,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    OutputShape,
    OutputShapes,
    Request,
    Timing,
)
from asyncnn.logs import CPUEXE, EXECUTION
from asyncnn.pacing import Stepwise
from asyncnn.qos import Client, Pause, Work
from asyncnn.qos.work import OUTSIDE

NOTHING_BOUND = Request((), (), ())

ReportExecuted = Callable[[AsyncnnError | None, OutputShapes, Timing], None]

# Kept by name, since looking up a member of an enum takes as long as a call.
_NONE, _MISSED = ErrorStatus.NONE, ErrorStatus.MISSED_DEADLINE_TRANSIENT
_MEASURED, _NOT_MEASURED = MeasureTiming.YES, MeasureTiming.NO


class Run(RunFields, Work, Completion):
    """One run of a program on a validated request: work, and its own completion.

    ``state`` says where it stands, which `RunQueue` alone moves on:

    OUTSIDE: it waits for a plan or for fences; or it has ended, and `finish` reports.
    WAITING: for a lane. It has the caller's arrays and nothing else.
    RUNNING: on a lane: in `advance` on one of Python, by a `PlanExecution`; or between
    `offer` and `come_back` on a native one, by a job and its control.
    SUSPENDED: stopped at a boundary. It keeps its workspace, and how far it has come.

    What a failing run raises is passed to `fail`. The report gets the error or None,
    the output shapes, and the timing, which includes the time in which it was
    suspended; ``computed_ns`` does not. Without a report, it is awaited.

    With a deadline, or if it ``may_be_left``, its outputs are computed apart and copied
    in the end, unless it is known to be short: who waits for it hears at once.
    """

    execution_kind: ClassVar[type[PlanExecution]] = PlanExecution
    is_like_others: ClassVar[bool] = True
    reports_early = True
    _plan: Plan
    _outputs: Sequence[Array | None]
    _places: Sequence[Array | None]
    _planning: Stepwise[Plan] | None = None
    _asked_ns = _launched_ns = 0

    def __init__(
        self,
        executable: Executable,
        request: Request,
        options: ExecutionOptions,
        client: Client,
        report: ReportExecuted | None = None,
        may_be_left: bool = False,
    ) -> None:
        # All here, as the calls of the bases would be a tenth of a tiny model.
        self.priority = executable.priority
        self.client = client
        self.cost = executable.cost
        self.accounting = executable.accounting
        self.goes_native = executable.goes_native
        self.deadline_ns = deadline_ns = options.deadline
        self.should_inline = executable.should_inline
        if deadline_ns is not None:
            self.should_inline = False
            self.min_runtime_ns = executable.min_runtime_ns
            self._asked_ns = monotonic_ns()
        if (may_be_left or deadline_ns is not None) and not executable.are_short:
            self.decision = threading.Lock()
            self.goes_native = False
        self.state = OUTSIDE
        self.ends_anywhere = False
        self.preemptions = self._threads = 0
        self._arrays: Sequence[Array] | None
        if type(request) is Execution and request.plan is not None:
            self.has_plan = True
            self._plan, self._arrays = request.plan, request.arrays
        else:
            self.has_plan, self._arrays = False, None
        self._executable = executable
        self._request = request
        self._options = options
        self._report = report
        self.use: IBufferUse | None = None
        self._execution: PlanExecution | None = None
        self._workspace: Workspace | None = None
        self._control: IControl | None = None
        self._abort_status: ErrorStatus | None = None
        self._error: AsyncnnError | None = None
        self._lessons = executable.lessons
        self._shapes: OutputShapes | None = None
        self._started_ns = self._ended_ns = self.computed_ns = self._cpu_ns = 0
        if options.measure is not _NOT_MEASURED:
            self._launched_ns = perf_counter_ns()

    @classmethod
    def anew(
        cls, executable: Executable, request: Request, arrays: Any, *others: Any
    ) -> Self:
        """Make a run, and what others are copied from if they can; see `made`."""
        is_like_others = others[0] is DEFAULT_OPTIONS and cls.is_like_others
        if is_like_others and executable.goes_native and cls not in executable.blanks:
            blank = executable.blanks[cls] = cls(executable, NOTHING_BOUND, *others)
            del blank._executable, blank.client  # they go when nobody else has them
        run = cls(executable, request, *others)
        if arrays is not None:
            run._arrays = arrays
        return run

    def claim(self, use: IBufferUse) -> None:
        """Claim the device-managed buffers of the request; `finish` gives them up."""
        self._request = request = use.claim()
        self.use = use
        self.has_plan = type(request) is Execution
        if type(request) is Execution and request.plan is not None:
            self._plan, self._arrays = request.plan, request.arrays

    def run(self) -> int:
        """Execute in one go; return the nanoseconds it took."""
        self._started_ns = started_ns = perf_counter_ns()
        executable = self._executable
        arrays = self._arrays
        if arrays is None:
            with executable.computing:
                self._advance(Pause())
        else:
            plan = self._plan
            if CPUEXE.is_on:
                CPUEXE("run", operations=names_of(plan))
            # It would take a tenth of a tiny model that multiplies no matrices.
            with executable.computing if plan.uses_blas else NOTHING:
                run_bound(executable.program, plan, arrays)
            self._shapes = plan.known_outputs
        self._ended_ns = ended_ns = perf_counter_ns()
        self.computed_ns = self._cpu_ns = computed_ns = ended_ns - started_ns
        return computed_ns

    def advance(self, pause: Pause) -> bool:
        """Execute until the end, until `abort`, or until it is to pause."""
        executable = self._executable
        # To ask for processor time is a call of the system.
        takes_far_longer = executable.takes_far_longer
        resumed_ns = perf_counter_ns()
        resumed_cpu_ns = 0 if takes_far_longer else thread_time_ns()
        if not self._started_ns:
            self._started_ns = resumed_ns
        if executable.may_spread and pause.lanes_each:
            self._spread(pause)
        is_light = self._arrays is not None and not self._plan.uses_blas
        try:
            with NOTHING if is_light else executable.computing:
                return self._advance(pause)
        finally:
            self._ended_ns = ended_ns = perf_counter_ns()
            lane_ns = ended_ns - resumed_ns
            self.computed_ns += lane_ns
            if takes_far_longer:
                self._cpu_ns += lane_ns
            else:
                self._cpu_ns += thread_time_ns() - resumed_cpu_ns

    def _advance(self, pause: Pause) -> bool:
        execution = self._execution
        if execution is None:
            execution = self._begin(pause)
        try:
            if execution is None or not execution.advance(pause):
                return False
        except StalePlanError:
            if not self._begins_anew():
                raise
            return self._advance(pause)
        plan, computed = self._plan, execution.outputs
        self._executable.goes_native |= execution.is_job
        if self.decision is not None:
            self._deliver(computed)
        if self._arrays is not None:
            self._shapes = plan.known_outputs or self._handed_over(computed)
        else:
            self._shapes = store_outputs(plan, self._request, self._places, computed)
        return True

    def _handed_over(self, computed: Sequence[Array]) -> OutputShapes:
        """Put outputs whose shapes only a run shows where its caller finds them."""
        arrays = cast("list[Array]", self._arrays)
        arrays[len(self._plan.inputs) :] = computed
        return tuple(OutputShape(array.shape, True) for array in computed)

    def _report_run(self) -> None:
        CPUEXE("run", operations=names_of(self._plan))

    def come_back(
        self, outcome: int | BaseException, started_ns: int, ended_ns: int, cpu_ns: int
    ) -> bool:
        """Report why a native lane has not come to its end; see `Work`."""
        if not self._started_ns:
            self._started_ns = started_ns
        self._ended_ns = ended_ns
        self.computed_ns += ended_ns - started_ns
        self._cpu_ns += cpu_ns
        if outcome == PAUSED:
            self.pause.interrupt = None  # it goes on by another one
            return False
        plan, workspace, self._workspace = self._plan, self._workspace, None
        if workspace is not None:
            idle = self._executable.program.idle.get(id(plan))
            if idle is not None:
                idle.append(workspace)
        if outcome == LATE:
            self._error = MissedDeadlineTransientError("the deadline passed")
        elif isinstance(outcome, StalePlanError) and self._begins_anew():
            return False
        elif isinstance(outcome, AsyncnnError):
            self._error = outcome
        elif isinstance(outcome, Exception) and self._control is not None:
            raise failed_at(plan, self._control.position, outcome) from outcome
        return True

    def _begins_anew(self) -> bool:
        """Forget the plan, which does not hold; False if it cannot be without it."""
        self._executable.program.forget(self._plan)
        if not self._request.outputs:  # bound to arrays: others know how large
            return False
        self._arrays = self._execution = self._control = None
        return True

    def _spread(self, pause: Pause) -> None:
        """Decide how many threads of an engine compute, once for each resumption."""
        lanes_each, pause.lanes_each = pause.lanes_each, 0
        spreading = self._executable.spreading
        assert spreading is not None
        self._threads = pause.threads = spreading.threads(lanes_each)

    def _deliver(self, computed: Sequence[Array | None]) -> None:
        """Copy outputs to their places, from now on as if they were computed there."""
        if not self.decides():
            raise self._aborted()
        self.decision = None
        copy_outputs(computed, self._places, self._check)

    def _plan_by(self, pause: Pause) -> Plan | None:
        """Return the plan for the shapes of the request; None if paused meanwhile."""
        program = self._executable.program
        if self._planning is None:
            shapes = input_shapes(program, self._request)
            plan = program.known_plan(shapes)
            if plan is not None:
                return plan
            self._planning = Stepwise(program.planning(shapes))
        is_planned = self._planning.advance(lambda: pause.requested or self._must_end)
        self._check()
        return self._planning.result if is_planned else None

    @property
    def _must_end(self) -> bool:
        if self._abort_status is not None:
            return True
        deadline_ns = self.deadline_ns
        return deadline_ns is not None and monotonic_ns() >= deadline_ns

    def _check(self) -> None:
        if self._must_end:
            raise self._aborted()

    def _aborted(self) -> AsyncnnError:
        return error_for(self._abort_status or _MISSED, "the execution was aborted")

    def _begin(self, pause: Pause) -> PlanExecution | None:
        """Begin on a lane of Python, or go on there; None if paused meanwhile."""
        arrays = self._arrays
        inputs: Sequence[Array | None]
        outputs: Sequence[Array | None]
        if arrays is not None:
            plan = self._plan
            inputs = arrays[: len(plan.inputs)]
            outputs = arrays[len(plan.inputs) :]
            if not plan.is_fixed:  # what another run has put there is its caller's
                outputs = [None] * len(outputs)
        else:
            planned = self._plan_by(pause)
            if planned is None:
                return None
            self._planning = None
            self._plan = plan = planned
            inputs = input_arrays(plan, self._request)
            outputs = output_arrays(plan, self._request)
        if CPUEXE.is_on:
            CPUEXE("run", operations=names_of(plan))
        self._places = self._outputs = outputs
        if self.decision is not None:
            self._outputs = [None if a is None else aligned_like(a) for a in outputs]
        workspace, self._workspace = self._workspace, None
        self._execution = execution = self.execution_kind(
            self._executable.program,
            plan,
            inputs,
            self._outputs,
            deadline_ns=self.deadline_ns,
            loop_timeout_ns=self._options.loop_timeout,
            workspace=workspace,
            control=self._control,
        )
        # Behind the execution, which `abort` looks for after it has set this.
        if self._abort_status is not None:
            execution.abort(self._abort_status)
        return execution

    def abort(self, status: ErrorStatus) -> None:
        """Make the execution end with ``status`` at its next boundary."""
        self._abort_status = status
        # Behind the status, which a lane looks at after it has set these.
        control, execution = self._control, self._execution
        if control is not None:
            control.stop()
        if execution is not None:
            execution.abort(status)

    def fail(self, error: AsyncnnError) -> None:
        """Report ``error``: it has ended with that, or was never begun."""
        self._error = error

    def _finish(self) -> ErrorStatus:
        error, shapes, executable = self._error, self._shapes, self._executable
        if error is None and shapes is None:
            status = self._abort_status or ErrorStatus.GENERAL_FAILURE
            error = error_for(status, self._let_go())
        timing, status = NO_TIMING, _NONE if error is None else error.status
        if error is not None and status is _MISSED and self._asked_ns:
            error = MissedDeadlineTransientError(self._lateness(error.message))
        if error is None:
            measure = self._options.measure
            if measure is not _NOT_MEASURED and measure == _MEASURED:
                in_driver = perf_counter_ns() - self._launched_ns
                # It has not ended where a lane is stuck behind its outputs.
                on_device = max(0, self._ended_ns - self._started_ns)
                timing = Timing(on_device // 1000, in_driver // 1000)
        if self.use is not None:
            self.use.settle(status, shapes or (), self.is_left)
        report = self._report
        if report is not None:
            report(error, shapes or (), timing)
        elif error is None:
            result = executable.result
            if timing is not NO_TIMING or result.output_shapes is not shapes:
                result = ExecutionResult(_NONE, shapes or (), timing)
                if timing is NO_TIMING:
                    executable.result = result
            self._resolve(result)
        else:
            outcome = outcome_of(error)
            self._resolve(ExecutionResult(*outcome, NO_TIMING, str(error)))
        if error is None and not self.ends_anywhere:  # what fails now loses no end
            spread = 0 if self.preemptions else self._threads
            lessons = self._lessons
            lessons.append((self.computed_ns, self._cpu_ns, spread))
            if spread or executable.is_young or len(lessons) >= MOST_LESSONS:
                executable.learn()
        if EXECUTION.is_on:
            computed_us = self.computed_ns // 1000
            EXECUTION("done", status=status.name, computed_us=computed_us)
        return status

    def abandon(self) -> None:
        """Stop at the next boundary: nobody waits for it."""
        self._executable.cancel(self, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)

    def lesson(self) -> Callable[[], None] | None:
        """Return what lets the model learn how long executions take."""
        if self._error is not None or self._shapes is None:
            return None
        spread = 0 if self.preemptions else self._threads
        return partial(self._executable.observe, self.computed_ns, self._cpu_ns, spread)

    def _lateness(self, reason: str) -> str:
        part_ns, step = 0, None
        if self._execution is not None:
            part_ns, step = self._execution.longest_part()
        elif self._control is not None:
            part_ns, step = longest_of(self._control, self._plan, (0, None))
        if step is not None:
            part = f"{step.longest_name}, the longest part"
            reason = f"{part}, had taken {format_duration(part_ns / 1000)}"
        return f"{lateness(self.deadline_ns or 0, self._asked_ns)}; {reason}"

    def _let_go(self) -> str:
        """Free what an execution holds that will not go on; say where it stopped."""
        if self.is_left:  # a lane is still at work on it
            is_wanted = self._abort_status in (_MISSED, ErrorStatus.GENERAL_FAILURE)
            return "an operation took too long" if is_wanted else "it was aborted"
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._executable.program.release(workspace)
        if self._execution is not None:
            self._execution.close()
        has_begun = self._execution is not None or self._control is not None
        return "the execution was aborted" + ("" if has_begun else " before it began")
