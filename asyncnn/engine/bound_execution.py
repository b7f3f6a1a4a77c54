"""Runs of straight plans on an array for each port: the short way of most requests.

Such a plan has neither control flow nor steps of open shapes, so that all that a run
needs is a workspace and a position. One that an engine computes alone is a job, which
is run by one call; else the workspace's calls are bound to the arrays.
"""

import time
from collections.abc import Sequence

import numpy as np

from asyncnn.engine.boundaries import (
    CALLS_PER_CHECK,
    QUIET,
    Pause,
    Stoppable,
    ThreadYielder,
)
from asyncnn.engine.delegation import Step
from asyncnn.engine.job import DONE, LATE, STOPPED, Control, IControl, IJob, INativeLane
from asyncnn.engine.plan import Plan
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import Call, Workspace
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    failure_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import InterruptibleRun, TiledRun


class BoundExecution(Stoppable):
    """Runs a straight ``plan`` on ``arrays`` for its ports, inputs first.

    They have the shapes and dtypes of the ports. Otherwise like `PlanExecution`. It is
    a ``job`` if an engine computes it alone.
    """

    __slots__ = (
        "_arrays",
        "_bound",
        "_control",
        "_position",
        "_program",
        "_yielder",
        "job",
        "plan",
    )

    def __init__(
        self,
        program: Program,
        plan: Plan,
        arrays: Sequence[Array | None],
        deadline_ns: int | None,
    ) -> None:
        # All here, as a call of the base would be felt with small models.
        self._deadline_ns = deadline_ns
        self._abort_status = self._interrupt = self._tiles = self._making = None
        self._interrupted = self._position = self._since_ns = 0
        self._at_step, self._longest = None, (0, None)
        self._program = program
        self.plan = plan
        self._arrays = arrays
        self._bound: Workspace | None = None
        self._control: IControl | None = None
        self.job: IJob | None = None
        self._yielder: ThreadYielder | None = None

    def advance(self, pause: Pause) -> bool:
        """Run until the end, or until ``pause`` is requested; see `PlanExecution`."""
        program, workspace = self._program, self._bound
        try:
            if workspace is None:
                workspace = program.idle_workspace(self.plan)
                if workspace is None:
                    was_asked = pause.requested
                    self._since_ns = time.monotonic_ns()
                    workspace = self._workspace(program, self.plan, pause)
                    if workspace is None:
                        return False
                    if pause.requested and not was_asked:  # which took long, maybe
                        program.release(workspace)
                        return False
                self._bound, self._making = workspace, None
                self._since_ns = 0
                # It goes on as it has begun, whatever its threads are then.
                self.job = workspace.job if pause.threads == 1 else None
                if self.job is None:
                    workspace.bind(self._arrays)
            job = self.job
            if job is None:
                has_ended = QUIET.copy().run(self._run, workspace.own_calls, pause)
            else:
                control = self._control
                if control is None:
                    self._control = control = Control()
                # An abort and a pause are set first, then they call what they find
                # here. So those that were before this are seen behind it.
                self._interrupt, pause.interrupt = control.stop, control.pause
                if self._abort_status is not None:
                    self._check()
                outcome = job.run(self._arrays, control, self._deadline_ns, pause)
                pause.interrupt = None
                if outcome == LATE:
                    raise MissedDeadlineTransientError("the deadline passed")
                if outcome == STOPPED:
                    self._check()
                has_ended = outcome == DONE
        except BaseException as error:
            self._fail(error, pause)
            raise
        if has_ended:
            self._bound = None
            if self.job is None:
                workspace.unbind()
            program.release(workspace)
        return has_ended

    def offer(self, lane: INativeLane, pause: Pause) -> bool:
        """Have a native lane go on; False if `advance` has to.

        It comes back as the token of the run. Nothing is made for it: there is a
        workspace, and a job. What is wrong with the arrays is for `advance` to raise.
        """
        if self._bound is None:
            workspace = self._program.idle_workspace(self.plan)
            if workspace is None:
                return False
            self._bound, self.job = workspace, workspace.job
            if self.job is None:
                workspace.bind(self._arrays)
        if self.job is None:
            return False
        if self._control is None:
            self._control = Control()
        # As in `advance`: set before an abort or a pause may look for them.
        self._interrupt, pause.interrupt = self._control.stop, self._control.pause
        if self._abort_status is not None:
            self._control.stop()
        deadline_ns, review_ns = self._deadline_ns, pause.from_ns
        try:
            self.job.offer(
                *(lane.thread, lane, self._arrays, self._control),
                *(deadline_ns, pause, review_ns),
            )
        except Exception:
            return False
        return True

    def come_back(self, pause: Pause, outcome: int | BaseException) -> bool:
        """Return what `advance` would for what a native lane has done."""
        try:
            pause.interrupt = None
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome == LATE:
                raise MissedDeadlineTransientError("the deadline passed")
            if outcome == STOPPED:
                self._check()
        except BaseException as error:
            self._fail(error, pause)
            raise
        workspace = self._bound
        if outcome == DONE and workspace is not None:
            self._bound = None
            self._program.release(workspace)
        return outcome == DONE

    def _fail(self, error: BaseException, pause: Pause) -> None:
        """End with ``error``, or with a better one for it."""
        self.close()
        if self.job is None or self._control is None:
            return
        pause.interrupt = None
        if isinstance(error, Exception) and not isinstance(error, AsyncnnError):
            name = self.plan.steps[self._control.position].name
            raise failure_of(error, f"{name} failed") from error

    def longest_part(self) -> tuple[int, Step | None]:
        """See `Stoppable`."""
        longest = super().longest_part()
        if self._control is None:
            return longest
        since_ns, part, longest_ns, longest_part = self._control.longest()
        taken_ns = time.monotonic_ns() - since_ns if since_ns else 0
        for part_ns, number in (longest_ns, longest_part), (taken_ns, part):
            if part_ns > longest[0]:
                longest = part_ns, self.plan.steps[number] if number >= 0 else None
        return longest

    def close(self) -> None:
        """Give the workspace back; the execution has ended."""
        self._tiles = self._making = None
        workspace, self._bound = self._bound, None
        if workspace is not None:
            if self.job is None:
                workspace.unbind()
            self._program.release(workspace)

    def _run(self, calls: Sequence[Call | None], pause: Pause) -> bool:
        """Run up to the end; False if paused before. The first call is always made."""
        if self._deadline_ns is not None:
            self._since_ns = time.monotonic_ns()
        first = self._position
        if len(calls) >= CALLS_PER_CHECK and self._yielder is None:
            self._yielder = ThreadYielder()
        for position in range(first, len(calls)):
            self._position = position
            if self._yielder is not None and not (position + 1) % CALLS_PER_CHECK:
                self._yielder.count(CALLS_PER_CHECK)
            if position > first and pause.requested:
                return False
            if self._abort_status is not None or self._deadline_ns is not None:
                self._check(self.plan.steps[position])
            call = calls[position]
            if call is None:
                continue
            run, inputs, outputs = call
            try:
                if type(run) is InterruptibleRun:
                    if not self._run_elsewhere(run, inputs, outputs, pause):
                        return False
                elif type(run) is TiledRun:
                    if not self._run_tiles(run, inputs, outputs, pause):
                        return False
                else:
                    run(inputs, outputs)
            except AsyncnnError:
                raise
            except Exception as error:
                name = self.plan.steps[position].name
                raise failure_of(error, f"{name} failed") from error
        return True


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
    computed: list[Array] = []
    for array, port in zip(outputs, plan.outputs, strict=True):
        if array is None or array.shape != port.shape:
            assert port.shape is not None
            array = np.empty(port.shape, port.dtype)
        computed.append(array)
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
            name = plan.steps[control.position].name
            raise failure_of(error, f"{name} failed") from error
    finally:
        if workspace.job is None:
            workspace.unbind()
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
        raise failure_of(error, f"{plan.steps[position].name} failed") from error
