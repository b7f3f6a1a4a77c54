"""One run of a program, which can pause, be aborted or miss its deadline at boundaries.

`Execution` has subgraphs, deadlines and dynamic steps; `run_straight` is the short way
of a program without any. `ThreadYielder` gives other threads the interpreter between
short operations.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import Protocol

import numpy as np

from asyncnn.engine.control_flow import ControlFlow, begin
from asyncnn.engine.delegation import Step
from asyncnn.engine.dynamic import run_dynamic_step
from asyncnn.engine.plan import CONTROL_FLOW, Plan
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import Call, Frame, Workspace
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    MissedDeadlineTransientError,
    error_for,
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
from asyncnn.pacing import Stepwise

CALLS_PER_CHECK = 64
"""Calls between two readings of the clock."""

MOST_INTERRUPTED = 4
"""Times that one call of another engine is interrupted, and begun anew, for a pause."""

YIELD_AFTER_NS = 3_000_000
"""Nanoseconds of short calls after which others get a turn."""

_YIELD_S = 1e-6
"""The system makes some 50 us of it: about what it takes to wake a thread."""


class ThreadYielder:
    """Pauses a thread every few milliseconds that it spends on many short calls.

    A thread that computes gives up the interpreter when another has waited for a switch
    interval in vain. But short operations of NumPy release it for a microsecond or two
    of their own accord, BLAS on small matrices above all. Each time the thread that
    waits is woken, finds it taken again, and waits anew, so that the interval never
    ends: event loops were seen to stand still for 100 ms. So a series of short
    operations pauses now and then for long enough to be relieved. Longer calls need no
    pause.
    """

    __slots__ = ("_calls", "_since_ns")

    def __init__(self) -> None:
        self._calls = 0
        self._since_ns = time.monotonic_ns()

    def count(self, calls: int) -> None:
        """Note that so many calls were made; pause if others are due."""
        self._calls += calls
        if self._calls < CALLS_PER_CHECK:
            return
        self._calls = 0
        if time.monotonic_ns() - self._since_ns >= YIELD_AFTER_NS:
            time.sleep(_YIELD_S)
            self._since_ns = time.monotonic_ns()


_QUIET = Context()
"""Here NumPy does not complain of overflow and the like. Running something in a copy
takes a tenth of what `numpy.errstate` does around it.
"""
_QUIET.run(np.seterr, all="ignore")


class Pause(Protocol):
    """Asks an execution to stop at its next boundary.

    That is between two operations, or between two parts of one that takes long.
    ``interrupt`` is called, on any thread, when that is asked while another engine
    computes.
    """

    interrupt: Callable[[], None] | None

    @property
    def requested(self) -> bool:
        """Whether it is to stop."""


class Unpaused:
    """A pause that nobody requests."""

    interrupt: Callable[[], None] | None = None
    requested = False


class Execution:
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
        self._deadline_ns = deadline_ns
        self._loop_timeout_ns = _clamped(loop_timeout_ns)
        self._abort_status: ErrorStatus | None = None
        self._interrupt: Callable[[], None] | None = None
        self._interrupted = 0
        self._frames: list[Frame] = []
        self._waiting: list[ControlFlow] = []
        self._tiles: Iterator[None] | None = None
        self._making: Stepwise[Workspace] | None = None
        self._yielder = ThreadYielder()
        self.outputs: list[Array] = []

    def abort(self, status: ErrorStatus) -> None:
        """Make `advance` fail with ``status`` at the next boundary."""
        self._abort_status = status
        # Behind the status, which an engine looks at after it has set this.
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def advance(self, pause: Pause | None = None) -> bool:
        """Run until the end, or until ``pause`` is requested; True at the end.

        Some of the work is done in any case, so that repeated calls come to the end.

        :raises AsyncnnError: if an operation fails, the deadline passes or the
            execution is aborted. It cannot be advanced again then.
        """
        if pause is None:
            pause = Unpaused()
        try:
            if not self._frames and not self._begin(pause):
                return False
            return _QUIET.copy().run(self._run, pause)
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
        """Take a workspace, or go on making one; False if paused meanwhile."""
        self._check()
        workspace = self._program.idle_workspace(self._plan)
        if workspace is None:
            if self._making is None:
                self._making = Stepwise(self._program.equipping(self._plan))
            if not self._making.advance(lambda: self._must_stop(pause)):
                self._check()
                return False
            workspace = self._making.result
        self._making = None
        self._frames.append(Frame(workspace, self._inputs, self._given_outputs))
        return True

    def _must_stop(self, pause: Pause) -> bool:
        return pause.requested or self._abort_status is not None or self._is_late

    @property
    def _is_late(self) -> bool:
        deadline_ns = self._deadline_ns
        return deadline_ns is not None and time.monotonic_ns() >= deadline_ns

    def _check(self) -> None:
        if self._abort_status is not None:
            raise error_for(self._abort_status, "the execution was aborted")
        if self._is_late:
            raise MissedDeadlineTransientError("the deadline passed")

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
                self._check()
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
                else:
                    run_dynamic_step(step, frame.slots, frame.plan.subgraph.operands)
            except AsyncnnError:
                raise
            except Exception as error:
                raise failure(step, error) from error
        frame.position = len(calls)
        self._yielder.count((len(calls) - first) % CALLS_PER_CHECK)
        return True

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
        run.clear()  # which may take long: another engine compiles, maybe
        # An abort and a pause are set first, then they interrupt what they find here.
        # So what was asked before this is seen below, what comes later interrupts.
        self._interrupt = run.interrupt
        may_pause = self._interrupted < MOST_INTERRUPTED
        if may_pause:
            pause.interrupt = run.interrupt
        try:
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


def run_straight(
    program: Program,
    plan: Plan,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> list[Array]:
    """Run a plan that ``is_straight`` in one go, without stopping; return its outputs.

    For plans so short that an `Execution` would cost more than they do.

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
        _QUIET.copy().run(_run_calls, plan, workspace.bind(arrays))
    finally:
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
        raise failure(plan.steps[position], error) from error


def failure(step: Step, error: Exception) -> GeneralFailureError:
    """Return the error that says which operation failed, and how."""
    return GeneralFailureError(f"{step.name} failed: {type(error).__name__}: {error}")
