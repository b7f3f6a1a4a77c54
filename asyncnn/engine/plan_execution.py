"""One run of a program, with subgraphs, steps of open shapes, and deadlines.

A straight plan has neither control flow nor steps of open shapes, so that all that its
run needs is a workspace and a position. One that an engine computes alone is a job,
which one call runs. `run_bound` and `run_straight` run it in one go.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import ClassVar

import numpy as np

from asyncnn.engine.control_flow import (
    ControlFlow,
    begin,
    has_learnt_shapes,
    run_dynamic_step,
    store,
)
from asyncnn.engine.delegation import Step
from asyncnn.engine.job import DONE, LATE, STOPPED, Control, IControl, IJob
from asyncnn.engine.plan import CONTROL_FLOW, Plan
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import BoundPlan, Call, Workspace, outputs_for, shapes_of
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    error_for,
    failure_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    LOOP_TIMEOUT_DEFAULT_NS,
    LOOP_TIMEOUT_MAXIMUM_NS,
    ErrorStatus,
)
from asyncnn.kernels.kernel import (
    MOST_ATTEMPTS,
    Inputs,
    InterruptibleRun,
    Outputs,
    TiledRun,
)
from asyncnn.pacing import CALLS_PER_CHECK, Pause, Stepwise, ThreadYielder

MOST_INTERRUPTED = 4
"""Times that one call of another engine is interrupted, and begun anew, for a pause."""

QUIET = Context()
"""Here NumPy does not complain of overflow and the like. Running something in a copy
takes a tenth of what `numpy.errstate` does around it.
"""
QUIET.run(np.seterr, all="ignore")


class PlanExecution:
    """Runs ``plan`` of ``program`` on request arrays.

    ``inputs`` holds None for an omitted input; ``outputs`` holds None where the caller
    has no array of the right shape, then a new one is made. `advance` may be called
    from any thread, but from one at a time; `abort` from any thread at any time.

    ``loop_timeout_ns`` bounds each WHILE: 2 s if it is None, 15 s at most.

    A straight plan that is a job is run as one, on one thread of an engine: ``is_job``.
    If a native lane has begun that, ``workspace`` is where, and ``control`` how far it
    has come.
    """

    runs_jobs: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        plan: Plan,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        *,
        deadline_ns: int | None = None,
        loop_timeout_ns: int | None = None,
        workspace: Workspace | None = None,
        control: IControl | None = None,
    ) -> None:
        self._program = program
        self._plan = plan
        self._inputs = inputs
        self._given_outputs = outputs
        self._deadline_ns = deadline_ns
        self._loop_timeout_ns = loop_timeout_ns
        self._abort_status: ErrorStatus | None = None
        self._interrupt: Callable[[], None] | None = None
        self._interrupted = self._since_ns = 0
        self._making: Stepwise[Workspace] | None = None
        self._tiles: Iterator[None] | None = None
        self._at_step: Step | None = None
        self._longest: tuple[int, Step | None] = 0, None
        self._bound_plans: list[BoundPlan] = []
        self._waiting: list[ControlFlow] = []
        is_brief = plan.is_straight and len(plan.steps) < CALLS_PER_CHECK
        self._yielder = None if is_brief else ThreadYielder()
        self._begun = workspace
        self._control = control
        self._job: IJob | None = None
        self.is_job = False
        self._arrays: Sequence[Array | None] = ()
        self.outputs: list[Array] = []

    def advance(self, pause: Pause | None = None) -> bool:
        """Run until the end, or until ``pause`` is requested; True at the end.

        Some of the work is done in any case, so that repeated calls come to the end.

        :raises AsyncnnError: if an operation fails, the deadline passes or the
            execution is aborted. It cannot be advanced again then.
        """
        if pause is None:
            pause = Pause()
        if self._deadline_ns is not None and self._job is None:
            self._since_ns = time.monotonic_ns()
        try:
            is_new = not self._bound_plans and self._job is None
            if is_new and not self._begin(pause):
                return False
            if self._job is not None:
                return self._run_job(self._job, pause)
            if not self._plan.is_straight:
                return QUIET.copy().run(self._run, pause)
            (bound,) = self._bound_plans
            if not QUIET.copy().run(self._run_plan, bound, pause, False):
                return False
            self.outputs = bound.outputs()
            self.close()
            return True
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the workspaces back; the execution has ended."""
        self._tiles = self._making = None
        self._waiting.clear()
        while self._bound_plans:
            self._program.release(self._bound_plans.pop().workspace)
        workspace, self._begun = self._begun, None
        if workspace is not None:
            self._program.release(workspace)

    def abort(self, status: ErrorStatus) -> None:
        """Make `advance` fail with ``status`` at the next boundary."""
        self._abort_status = status
        # Behind the status, which an engine looks at after it has set this.
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def longest_part(self) -> tuple[int, Step | None]:
        """Return the nanoseconds of the longest part yet, and its step; on any thread.

        The part under way counts. Only of a run with a deadline.
        """
        taken_ns = time.monotonic_ns() - self._since_ns if self._since_ns else 0
        longest = self._longest
        if longest[0] <= taken_ns:
            longest = taken_ns, self._at_step
        return longest_of(self._control, self._plan, longest)

    def _begin(self, pause: Pause) -> bool:
        """Bind a workspace; False if paused before there is one."""
        if self._abort_status is not None or self._deadline_ns is not None:
            self._check()
        workspace = self._begun or self._program.idle_workspace(self._plan)
        if workspace is None:
            if self._making is None:
                self._making = Stepwise(self._program.equipping(self._plan))
            if not self._making.advance(lambda: self._must_stop(pause)):
                self._check()
                return False
            workspace = self._making.result
        self._making = None
        # It goes on as it has begun, whatever its threads are then.
        if (
            workspace.job is None
            or not self.runs_jobs
            or (self._control is None and pause.threads > 1)
        ):
            self._begun = None
            self._bound_plans.append(
                BoundPlan(workspace, self._inputs, self._given_outputs)
            )
            return True
        self._begun, self._job, self.is_job = workspace, workspace.job, True
        self._control = self._control or Control()
        self.outputs = outputs_for(self._plan, self._given_outputs)
        self._arrays = (*self._inputs, *self.outputs)
        self._since_ns = 0  # from here on the control measures
        return True

    def _run_job(self, job: IJob, pause: Pause) -> bool:
        """Run it from where its control is; False if paused before the end."""
        control = self._control
        assert control is not None
        # An abort and a pause are set first, then they call what they find here. So
        # those that were before this are seen behind it.
        self._interrupt, pause.interrupt = control.stop, control.pause
        try:
            if self._abort_status is not None:
                self._check()
            limits = self._deadline_ns, pause, pause.from_ns
            outcome = job.run(self._arrays, control, *limits)
            if outcome == LATE:
                raise MissedDeadlineTransientError("the deadline passed")
            if outcome == STOPPED:
                self._check()
        except AsyncnnError:
            raise
        except Exception as error:
            raise failed_at(self._plan, control.position, error) from error
        finally:
            pause.interrupt = None
        if outcome == DONE:
            self.close()
        return outcome == DONE

    def _run(self, pause: Pause) -> bool:
        """Run the innermost bound plan; go in and out of control flow as it demands."""
        may_pause = False
        while True:
            bound = self._bound_plans[-1]
            if bound.position < len(bound.calls):
                if not self._run_plan(bound, pause, may_pause):
                    return False
                may_pause = True
                if bound.position < len(bound.calls):
                    self._enter(bound)
            elif not self._leave(bound):
                return True

    def _run_plan(self, bound: BoundPlan, pause: Pause, may_pause: bool) -> bool:
        """Run up to the end or the next IF or WHILE; False if paused before.

        Without ``may_pause`` the first step is not left for later.
        """
        calls, steps, program = bound.calls, bound.plan.steps, self._program
        first = bound.position
        yielder = self._yielder
        for position in range(first, len(calls)):
            bound.position = position
            if yielder is not None and not (position + 1) % CALLS_PER_CHECK:
                yielder.count(CALLS_PER_CHECK)
            if pause.requested and may_pause:
                return False
            may_pause = True
            if self._abort_status is not None or self._deadline_ns is not None:
                self._check(steps[position])
            call = calls[position]
            step = steps[position]
            try:
                if call is not None:
                    run, inputs, outputs = call
                    if type(run) is TiledRun:
                        if not self._run_tiles(run, inputs, outputs, pause):
                            return False
                    elif type(run) is InterruptibleRun:
                        if not self._run_elsewhere(run, inputs, outputs, pause):
                            return False
                        if bound.plan is program.open_plan:
                            self._take_open(step, bound, outputs)
                    else:
                        run(inputs, outputs)
                elif step.operation.type in CONTROL_FLOW:
                    return True
                elif not run_dynamic_step(
                    *(step, bound.slots, bound.plan.subgraph.operands),
                    partial(self._run_elsewhere, pause=pause),
                    partial(bound.grow, program.most_bytes),
                ):
                    return False
                elif has_learnt_shapes(step, bound.slots):
                    program.forget(bound.plan)
            except AsyncnnError:
                raise
            except Exception as error:
                raise failed_at(bound.plan, position, error) from error
        bound.position = len(calls)
        if yielder is not None:
            yielder.count((len(calls) - first) % CALLS_PER_CHECK)
        return True

    def _take_open(self, step: Step, bound: BoundPlan, outputs: list[Array]) -> None:
        """Take what was computed for lengths that the plan does not know."""
        slots, operands = bound.slots, bound.plan.subgraph.operands
        for index, result in zip(step.outputs, outputs, strict=True):
            store(slots, index, result, operands[index], step.operation.type)
        shapes = shapes_of([slots[port.index] for port in bound.plan.inputs])
        learnt = partial(has_learnt_shapes, step, slots)
        self._program.count_open_run(shapes, learnt)

    def _enter(self, bound: BoundPlan) -> None:
        step = bound.plan.steps[bound.position]
        control = begin(self._program, bound, step, _clamped(self._loop_timeout_ns))
        self._continue(bound, control, control.resume(None))

    def _leave(self, bound: BoundPlan) -> bool:
        """Return from a finished plan to what waits for it; False at the end."""
        self._bound_plans.pop()
        if not self._bound_plans:
            self.outputs = bound.outputs()
            self._program.release(bound.workspace)
            return False
        control = self._waiting.pop()
        following = control.resume(bound)
        self._program.release(bound.workspace)
        self._continue(self._bound_plans[-1], control, following)
        return True

    def _continue(
        self, bound: BoundPlan, control: ControlFlow, following: BoundPlan | None
    ) -> None:
        if following is None:
            bound.position += 1
        else:
            self._bound_plans.append(following)
            self._waiting.append(control)

    def _must_stop(self, pause: Pause) -> bool:
        return pause.requested or self._abort_status is not None or self._is_late

    @property
    def _is_late(self) -> bool:
        deadline_ns = self._deadline_ns
        return deadline_ns is not None and time.monotonic_ns() >= deadline_ns

    def _check(self, step: Step | None = None) -> None:
        if self._abort_status is not None:
            raise error_for(self._abort_status, "the execution was aborted")
        deadline_ns = self._deadline_ns
        if deadline_ns is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns - self._since_ns > self._longest[0]:
            self._longest = now_ns - self._since_ns, self._at_step
        self._since_ns = now_ns
        if step is not None:
            self._at_step = step
        if now_ns >= deadline_ns:
            raise MissedDeadlineTransientError("the deadline passed")

    def _run_tiles(
        self, run: TiledRun, inputs: Inputs, outputs: Outputs, pause: Pause
    ) -> bool:
        """Begin or go on with an operation in tiles; False if paused between two."""
        tiles = self._tiles or run.tiles(inputs, outputs)
        self._tiles = None
        for _ in tiles:
            if pause.requested:
                self._tiles = tiles
                return False
            if self._abort_status is not None or self._deadline_ns is not None:
                self._check()
        return True

    def _run_elsewhere(
        self, run: InterruptibleRun, inputs: Inputs, outputs: Outputs, pause: Pause
    ) -> bool:
        """Have another engine compute; False if it was interrupted for a pause.

        What it has computed by then is lost. So it may be interrupted a few times only,
        to come to an end under any load.
        """
        was_asked = pause.requested  # then this is what is done in any case
        threads = pause.threads
        may_pause = run.may_pause and self._interrupted < MOST_INTERRUPTED
        try:
            if threads > 1:
                run.spread(threads)
            run.clear()  # which may take long, or fail: another engine compiles, maybe
            # An abort and a pause are set first, then they interrupt what they find
            # here. So what was asked before this is seen below, what comes later
            # interrupts.
            self._interrupt = run.interrupt
            if may_pause:
                pause.interrupt = run.interrupt
            if may_pause and pause.requested and not was_asked:
                self._interrupted += 1
                return False
            for _ in range(MOST_ATTEMPTS):
                if self._abort_status is not None or self._deadline_ns is not None:
                    self._check()
                if run.attempt(inputs, outputs):
                    self._interrupted = 0
                    return True
                run.clear()  # before looking why, or what comes now would be lost
                self._check()
                if may_pause and pause.requested:
                    self._interrupted += 1
                    return False
            raise RuntimeError("it was interrupted each time, without a reason")
        finally:
            self._interrupt = pause.interrupt = None
            if threads > 1:
                run.spread(1)


def longest_of(
    control: IControl | None, plan: Plan, longest: tuple[int, Step | None]
) -> tuple[int, Step | None]:
    """Return the longest part of a run as a job, or ``longest`` if that is longer."""
    if control is None:
        return longest
    since_ns, part, longest_ns, longest_part = control.longest()
    taken_ns = time.monotonic_ns() - since_ns if since_ns else 0
    for part_ns, number in (longest_ns, longest_part), (taken_ns, part):
        if part_ns > longest[0]:
            longest = part_ns, plan.steps[number] if number >= 0 else None
    return longest


def names_of(plan: Plan) -> list[str]:
    """Return what the steps of a plan are, for people."""
    return [step.name for step in plan.steps]


def failed_at(plan: Plan, position: int, error: Exception) -> AsyncnnError:
    """Return an error for what a step has raised, which names the step."""
    return failure_of(error, f"{plan.steps[position].name} failed")


def run_straight(
    program: Program,
    plan: Plan,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> list[Array]:
    """Run a plan that ``is_straight`` in one go, without stopping; return its outputs.

    For plans so short that an execution would cost more than they do.

    :raises AsyncnnError: if an operation fails.
    """
    computed = outputs_for(plan, outputs)
    run_bound(program, plan, (*inputs, *computed))
    return computed


def run_bound(program: Program, plan: Plan, arrays: Sequence[Array | None]) -> None:
    """Run a plan that ``is_straight`` on arrays for its ports, inputs first.

    They have the shapes and dtypes of the ports; otherwise like `run_straight`.

    :raises AsyncnnError: if an operation fails.
    """
    workspace = program.idle_workspace(plan) or program.acquire(plan)
    try:
        if workspace.job is None:
            workspace.bind(arrays)
            QUIET.copy().run(_run_calls, plan, workspace.own_calls)
            return
        control = Control()
        try:
            workspace.job.run(arrays, control)
        except AsyncnnError:
            raise
        except Exception as error:
            raise failed_at(plan, control.position, error) from error
    finally:
        program.release(workspace)


def _run_calls(plan: Plan, calls: Sequence[Call | None]) -> None:
    position = 0
    try:
        for position, call in enumerate(calls):  # noqa: B007
            if call is not None:
                run, inputs, outputs = call
                run(inputs, outputs)
    except AsyncnnError:
        raise
    except Exception as error:
        raise failed_at(plan, position, error) from error


def _clamped(loop_timeout_ns: int | None) -> int:
    if loop_timeout_ns is None:
        return LOOP_TIMEOUT_DEFAULT_NS
    return min(loop_timeout_ns, LOOP_TIMEOUT_MAXIMUM_NS)
