"""One run of a plan that can pause, be aborted or miss its deadline between steps."""

import time
from collections.abc import Sequence

import numpy as np

from asyncnn.engine.late import Slots, run_late
from asyncnn.engine.plan import Plan, Step
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import Call, Workspace
from asyncnn.errors import AsyncnnError, GeneralFailureError, error_for
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus


class Pause:
    """Asks an execution to stop at its next boundary between two operations."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


NEVER = Pause()
"""A pause that nobody requests."""


class Frame:
    """A plan under way: its bound calls, its operands' arrays, and the next step."""

    __slots__ = ("calls", "plan", "position", "slots", "workspace")

    def __init__(
        self,
        workspace: Workspace,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
    ) -> None:
        self.workspace = workspace
        self.plan: Plan = workspace.plan
        self.slots: Slots = workspace.slots.copy()
        subgraph = self.plan.subgraph
        for index, array in zip(subgraph.input_indexes, inputs, strict=True):
            self.slots[index] = array
        for index, array in zip(subgraph.output_indexes, outputs, strict=True):
            self.slots[index] = self._output(index, array)
        self.calls: list[Call | None] = workspace.calls(self.slots)
        self.position = 0

    def _output(self, index: int, given: Array | None) -> Array | None:
        shape = self.plan.shapes[index]
        if given is not None or shape is None:
            return given
        return np.empty(shape, DTYPES[self.plan.subgraph.operands[index].type])

    def outputs(self) -> list[Array]:
        """Return the arrays of the subgraph's outputs, all computed."""
        arrays = [self.slots[index] for index in self.plan.subgraph.output_indexes]
        return [array for array in arrays if array is not None]


class Execution:
    """Runs ``plan`` of ``program`` on request arrays.

    ``inputs`` holds None for an omitted input; ``outputs`` holds None where the caller
    has no array of the right shape, then a new one is made. `advance` may be called
    from any thread, but from one at a time; `abort` from any thread at any time.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        *,
        deadline_ns: int | None = None,
    ) -> None:
        self._program = program
        self._plan = plan
        self._inputs = inputs
        self._given_outputs = outputs
        self._deadline_ns = deadline_ns
        self._abort_status: ErrorStatus | None = None
        self._frame: Frame | None = None
        self.outputs: list[Array] = []

    def abort(self, status: ErrorStatus) -> None:
        """Make `advance` fail with ``status`` at the next boundary."""
        self._abort_status = status

    def advance(self, pause: Pause = NEVER) -> bool:
        """Run until the end, or until ``pause`` is requested; True at the end.

        :raises AsyncnnError: if an operation fails, the deadline passes or the
            execution is aborted. It cannot be advanced again then.
        """
        try:
            if self._frame is None:
                self._frame = self._begin()
            finished = self._run(self._frame, pause)
        except BaseException:
            self.close()
            raise
        if finished:
            self.outputs = self._frame.outputs()
            self.close()
        return finished

    def close(self) -> None:
        """Give the workspace back; the execution has ended."""
        if self._frame is not None:
            self._program.release(self._frame.workspace)
            self._frame = None

    def _begin(self) -> Frame:
        self._check()
        workspace = self._program.acquire(self._plan)
        return Frame(workspace, self._inputs, self._given_outputs)

    def _check(self) -> None:
        if self._abort_status is not None:
            raise error_for(self._abort_status, "the execution was aborted")
        if self._deadline_ns is not None and time.monotonic_ns() >= self._deadline_ns:
            raise error_for(
                ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline passed"
            )

    def _run(self, frame: Frame, pause: Pause) -> bool:
        calls = frame.calls
        position = frame.position
        with np.errstate(all="ignore"):
            while position < len(calls):
                if pause.requested:
                    frame.position = position
                    return False
                if self._abort_status is not None or self._deadline_ns is not None:
                    self._check()
                call = calls[position]
                step = frame.plan.steps[position]
                try:
                    if call is None:
                        run_late(step, frame.slots, frame.plan.subgraph.operands)
                    else:
                        run, inputs, outputs = call
                        run(inputs, outputs)
                except AsyncnnError:
                    raise
                except Exception as error:
                    raise _failure(step, error) from error
                position += 1
        return True


def _failure(step: Step, error: Exception) -> GeneralFailureError:
    name = step.operation.type.name
    return GeneralFailureError(f"{name} failed: {type(error).__name__}: {error}")
