"""Work that prepares: models, and plans of models for new shapes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic_ns
from typing import Any, ClassVar

from asyncnn import hal
from asyncnn.deadlines import lateness
from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.caching import Prepare
from asyncnn.devices.executable import Executable
from asyncnn.devices.process_wide import NOTHING
from asyncnn.devices.run import Run
from asyncnn.engine import Program
from asyncnn.engine.arguments import input_shapes
from asyncnn.engine.program import InputShapes
from asyncnn.pacing import Steps, Stepwise, long_work, make_way
from asyncnn.qos import Client, Pause, Scheduler, Work
from asyncnn.tracing import Layer, Phase, Trace, begin

ReportPrepared = Callable[[Compiled | hal.AsyncnnError], None]

_MISSED = hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT


def trace_queue(trace: Trace, phase: Phase, ended_ns: int) -> None:
    """Record how long something has waited for its turn."""
    trace.add("queue", Layer.DRIVER, phase, trace.started_ns, ended_ns)


def trace_end(trace: Trace, name: str, phase: Phase, status: hal.ErrorStatus) -> None:
    """Record all of a preparation or an execution, which ends now."""
    failure = "" if status is hal.ErrorStatus.NONE else status.name
    trace.end(name, Layer.DRIVER, phase, failure)


class _SteppedWork(Work):
    """Work in steps, within ``computing``, until the end or until it is given up."""

    is_separable: ClassVar[bool] = True
    is_awaited: ClassVar[bool] = False

    def __init__(
        self,
        priority: hal.Priority,
        deadline_ns: int | None,
        computing: AbstractContextManager[object],
        client: Client | None = None,
    ) -> None:
        super().__init__(priority, deadline_ns, client=client)
        self._computing = computing
        self._error: hal.AsyncnnError | None = None
        self._is_given_up = False

    def fail(self, error: hal.AsyncnnError) -> None:
        if self._error is None:
            self._error, self._is_given_up = error, True

    def _take(self, steps: Stepwise[Any], pause: Pause) -> bool:
        must_stop = partial(self._is_to_stop, pause)
        with self._computing, long_work(must_stop, is_awaited=self.is_awaited):
            return steps.advance(lambda: self._must_stop(pause)) or self._is_given_up

    def _is_to_stop(self, pause: Pause) -> bool:
        return pause.requested or self._is_given_up

    def _must_stop(self, pause: Pause) -> bool:
        if self._is_to_stop(pause):
            return True
        make_way()
        return self._is_to_stop(pause)


class PrepareWork(_SteppedWork):
    """Prepares a model, within ``computing``; reports it, or why there is none."""

    def __init__(
        self,
        prepare: Prepare,
        priority: hal.Priority,
        deadline_ns: int | None,
        report: ReportPrepared,
        computing: AbstractContextManager[object] = NOTHING,
    ) -> None:
        super().__init__(priority, deadline_ns, computing)
        self._prepare = prepare
        self._report = report
        self._steps: Stepwise[Compiled] | None = None
        self._asked_ns = monotonic_ns()
        self._trace = begin()

    def advance(self, pause: Pause) -> bool:
        """Prepare until the end, until `abort`, or until it is to pause."""
        resumed_ns = monotonic_ns()
        if self._steps is None:
            self._steps = Stepwise(self._prepare())
            if self._trace is not None:
                trace_queue(self._trace, Phase.PREPARATION, resumed_ns)
        has_ended = self._take(self._steps, pause)
        if self._is_given_up:
            self._steps.close()
        if self._trace is not None:
            ended_ns = monotonic_ns()
            self._trace.add(
                "prepare", Layer.CPU, Phase.COMPILATION, resumed_ns, ended_ns
            )
        return has_ended

    def abort(self, status: hal.ErrorStatus) -> None:
        """Report ``status`` instead of a model that is not ready yet."""
        if self._error is None:
            reason = "the preparation was aborted"
            if status is _MISSED and self.deadline_ns is not None:
                reason = lateness(self.deadline_ns, self._asked_ns)
            self.fail(hal.error_for(status, reason))

    def finish(self) -> hal.ErrorStatus:
        """Report the outcome."""
        status = hal.ErrorStatus.NONE
        if self._error is not None:
            status = self._error.status
            self._report(self._error)
        else:
            assert self._steps is not None
            self._report(self._steps.result)
        if self._trace is not None:
            trace_end(self._trace, "preparation", Phase.PREPARATION, status)
        return status


class PlanWork(_SteppedWork):
    """Makes the plan of a model for input shapes, and notifies ``planned`` why not.

    One that is under way as its deadline passes goes on: the next run will need it.
    """

    keeps_its_lane: ClassVar[bool] = True
    is_awaited: ClassVar[bool] = True

    def __init__(
        self,
        executable: Executable,
        shapes: InputShapes,
        waiting: Work,
        planned: Callable[[hal.AsyncnnError | None], None],
    ) -> None:
        order = waiting.priority, waiting.deadline_ns
        super().__init__(*order, executable.computing, waiting.client)
        self._steps = Stepwise(_planning(executable.program, shapes))
        self._waiting = [planned]

    def advance(self, pause: Pause) -> bool:
        """Plan until the end, until nobody wants it, or until it is to pause."""
        return self._take(self._steps, pause)

    def abort(self, status: hal.ErrorStatus) -> None:
        """Report ``status`` instead of a plan."""
        self._error = hal.error_for(
            status, "it was still being compiled for its shapes"
        )
        self._is_given_up = status is not hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT

    def finish(self) -> hal.ErrorStatus:
        """Notify whoever waits, and keep nothing of it: this may go on."""
        self._waiting.pop()(self._error)
        return hal.ErrorStatus.NONE if self._error is None else self._error.status


def _planning(program: Program, shapes: InputShapes) -> Steps[None]:
    # Work that came before may have made it.
    if program.known_plan(shapes) is None:
        yield from program.planning(shapes)


class NewShapes:
    """Has executions wait for plans that are made beside the lanes.

    ``executions`` has the lanes, ``plans`` a thread of its own: to compile a model for
    other shapes may take as long as to prepare it. Belongs to the event loop.
    """

    def __init__(self, executions: Scheduler, plans: Scheduler) -> None:
        self._executions = executions
        self._plans = plans
        self._planning: dict[Work, PlanWork] = {}

    def take(self, work: Run) -> bool:
        """Submit ``work`` once its request has a plan; False if that has one.

        Where nothing more can be planned beside the lanes, it is on its own.

        :raises DeviceUnavailableError: as `Scheduler.submit`.
        :raises MissedDeadlinePersistentError: likewise.
        """
        executable, program = work._executable, work._executable.program
        shapes = input_shapes(program, work._request)
        if program.known_plan(shapes) or program.plan_at_once(shapes):
            return False
        plan = PlanWork(
            executable, shapes, work, lambda error: self._planned(work, error)
        )
        try:
            self._plans.submit(plan)
        except hal.ResourceExhaustedTransientError:
            return False
        self._planning[work] = plan
        return True

    def cancel(self, work: Work, status: hal.ErrorStatus) -> None:
        """Stop work that was taken, or submitted; see `Scheduler.cancel`."""
        plan = self._planning.get(work)
        if plan is None:
            self._executions.cancel(work, status)
        else:
            self._plans.cancel(plan, status)

    def _planned(self, work: Work, error: hal.AsyncnnError | None) -> None:
        del self._planning[work]
        if error is None:
            try:
                self._executions.submit(work)
                return
            except hal.MissedDeadlinePersistentError:  # it has passed since the call
                error = hal.MissedDeadlineTransientError("it had just been compiled")
            except hal.AsyncnnError as refusal:
                error = refusal
        else:
            self._executions.count_refusal(work, error.status)
        work.fail(error)
        work.finish()
