"""One run of a program, with subgraphs, steps of open shapes, and deadlines."""

import time
from collections.abc import Sequence
from functools import partial

from asyncnn.engine.boundaries import (
    CALLS_PER_CHECK,
    QUIET,
    Pause,
    Stoppable,
    ThreadYielder,
    Unpaused,
)
from asyncnn.engine.control_flow import ControlFlow, begin
from asyncnn.engine.dynamic import run_dynamic_step
from asyncnn.engine.plan import CONTROL_FLOW, Plan
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import Frame
from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    LOOP_TIMEOUT_DEFAULT_NS,
    LOOP_TIMEOUT_MAXIMUM_NS,
)
from asyncnn.kernels.kernel import (
    InterruptibleRun,
    TiledRun,
)


class PlanExecution(Stoppable):
    """Runs ``plan`` of ``program`` on request arrays.

    ``inputs`` holds None for an omitted input; ``outputs`` holds None where the caller
    has no array of the right shape, then a new one is made. `advance` may be called
    from any thread, but from one at a time; `abort` from any thread at any time.

    ``loop_timeout_ns`` bounds each WHILE: 2 s if it is None, 15 s at most.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        *,
        deadline_ns: int | None = None,
        loop_timeout_ns: int | None = None,
    ) -> None:
        self._program = program
        self._plan = plan
        self._inputs = inputs
        self._given_outputs = outputs
        super().__init__(deadline_ns)
        self._loop_timeout_ns = _clamped(loop_timeout_ns)
        self._frames: list[Frame] = []
        self._waiting: list[ControlFlow] = []
        self._yielder = ThreadYielder()
        self.outputs: list[Array] = []

    def advance(self, pause: Pause | None = None) -> bool:
        """Run until the end, or until ``pause`` is requested; True at the end.

        Some of the work is done in any case, so that repeated calls come to the end.

        :raises AsyncnnError: if an operation fails, the deadline passes or the
            execution is aborted. It cannot be advanced again then.
        """
        if pause is None:
            pause = Unpaused()
        if self._deadline_ns is not None:
            self._since_ns = time.monotonic_ns()
        try:
            if not self._frames and not self._begin(pause):
                return False
            return QUIET.copy().run(self._run, pause)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the workspaces back; the execution has ended."""
        self._tiles = self._making = None
        self._waiting.clear()
        while self._frames:
            self._program.release(self._frames.pop().workspace)

    def _begin(self, pause: Pause) -> bool:
        """Bind a workspace; False if paused before there is one."""
        self._check()
        workspace = self._workspace(self._program, self._plan, pause)
        if workspace is None:
            return False
        self._frames.append(Frame(workspace, self._inputs, self._given_outputs))
        return True

    def _run(self, pause: Pause) -> bool:
        """Run the innermost frame; go in and out of control flow as it demands."""
        may_pause = False
        while True:
            frame = self._frames[-1]
            if frame.position < len(frame.calls):
                if not self._run_frame(frame, pause, may_pause):
                    return False
                may_pause = True
                if frame.position < len(frame.calls):
                    self._enter(frame)
            elif not self._leave(frame):
                return True

    def _run_frame(self, frame: Frame, pause: Pause, may_pause: bool) -> bool:
        """Run up to the end or the next IF or WHILE; False if paused before.

        Without ``may_pause`` the first step is not left for later.
        """
        calls, steps = frame.calls, frame.plan.steps
        first = frame.position
        for position in range(first, len(calls)):
            frame.position = position
            if not (position + 1) % CALLS_PER_CHECK:
                self._yielder.count(CALLS_PER_CHECK)
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
                    else:
                        run(inputs, outputs)
                elif step.operation.type in CONTROL_FLOW:
                    return True
                elif not run_dynamic_step(
                    *(step, frame.slots, frame.plan.subgraph.operands),
                    partial(self._run_elsewhere, pause=pause),
                ):
                    return False
            except AsyncnnError:
                raise
            except Exception as error:
                raise failure_of(error, f"{step.name} failed") from error
        frame.position = len(calls)
        self._yielder.count((len(calls) - first) % CALLS_PER_CHECK)
        return True

    def _enter(self, frame: Frame) -> None:
        """Begin the IF or WHILE that ``frame`` has come to."""
        step = frame.plan.steps[frame.position]
        control = begin(self._program, frame, step, self._loop_timeout_ns)
        self._continue(frame, control, control.resume(None))

    def _leave(self, frame: Frame) -> bool:
        """Return from a finished frame to what waits for it; False at the end."""
        self._frames.pop()
        if not self._frames:
            self.outputs = frame.outputs()
            self._program.release(frame.workspace)
            return False
        control = self._waiting.pop()
        following = control.resume(frame)
        self._program.release(frame.workspace)
        self._continue(self._frames[-1], control, following)
        return True

    def _continue(
        self, frame: Frame, control: ControlFlow, following: Frame | None
    ) -> None:
        if following is None:
            frame.position += 1
        else:
            self._frames.append(following)
            self._waiting.append(control)


def _clamped(loop_timeout_ns: int | None) -> int:
    if loop_timeout_ns is None:
        return LOOP_TIMEOUT_DEFAULT_NS
    return min(loop_timeout_ns, LOOP_TIMEOUT_MAXIMUM_NS)
