"""One fenced execution: work that is its own end, and the gate that it waits at.

Source: HAL 1.3/IFencedExecutionCallback.hal.
"""

import logging
import threading
from collections.abc import Sequence
from time import monotonic_ns, perf_counter_ns
from typing import Protocol

from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import earlier
from asyncnn.devices.run import Run
from asyncnn.fenced_run import FencedRun, Source
from asyncnn.fences.core import Gate
from asyncnn.hal.errors import AsyncnnError, ResourceExhaustedTransientError
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShapes, Request, Timing

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_NOTHING = Request((), (), ())
_DONE = ExecutionResult(_NONE, (), NO_TIMING)


class FencedRuns(Protocol):
    """The fenced executions of a device; see `FencedExecutions`."""

    open: "set[FencedExecution]"
    is_stalled: bool

    def make_ready(self, execution: "FencedExecution") -> None:
        """Have ``execution`` begin, or fail, soon and not inside this call."""
        ...

    def go_on(self) -> None:
        """Begin with what waits for the scheduler, which has room again."""
        ...


class FencedExecution(FencedRun, Run):
    """Work that begins once fences have signalled, and the end that others wait for.

    It has a ``gate`` while it waits or is ready, and then ``is_scheduled``, unless it
    was run at once. From its end on it keeps nothing that it has worked on.
    """

    owner: FencedRuns
    gate: Gate | None = None
    is_scheduled = False
    _asked_perf_ns = 0

    __init__ = Run.__init__
    abandon = Run.abandon

    def note_ready(self) -> None:
        """Note that it waits for nothing, or nothing more: it counts its time anew."""
        duration, executable = self._options.duration, self._executable
        if duration is not None:
            now_ns = self._asked_ns = monotonic_ns()
            self.deadline_ns = earlier(self._options.deadline, now_ns, duration)
            if self.decision is None and not executable.are_short:
                self.decision = threading.Lock()
                self.goes_native = False
        # It may have been launched long ago.
        self.should_inline = executable.should_inline and self.deadline_ns is None
        if self._launched_ns:
            self._launched_ns = perf_counter_ns()

    def wait(self, sources: Sequence[Source]) -> None:
        """Wait for these, which have not ended, or just its deadline."""
        self.gate = Gate(sources, self.deadline_ns, self._opened)

    def leave_gate(self) -> None:
        """Have nothing that it has waited for, nor a timer, refer to it."""
        gate, self.gate = self.gate, None
        assert gate is not None
        gate.close()

    def cancel(self) -> None:
        """End at the next boundary between two operations, or before it begins."""
        if self.is_scheduled:
            self.abandon()
        else:
            self.refuse(ResourceExhaustedTransientError("the execution was cancelled"))

    def refuse(self, error: AsyncnnError) -> None:
        """End it before it was scheduled; does nothing if it has ended."""
        if self._result is None:
            if self.use is not None:
                self.use.settle(error.status, ())
            self._report_end(error, (), NO_TIMING)

    def _opened(self, failure: AsyncnnError | None) -> None:
        """Have it begin in turn; or fail, but not at once, as a long chain may."""
        if failure is not None:
            self.loop.call_soon(self.refuse, failure)
            return
        self.note_ready()
        self.owner.make_ready(self)

    def _report_end(
        self, error: AsyncnnError | None, shapes: OutputShapes, timing: Timing
    ) -> None:
        """End, and notify who waits; shapes are not reported."""
        owner = self.owner
        owner.open.discard(self)
        if owner.is_stalled and self.is_scheduled:
            owner.go_on()
        self._report = None
        if self.gate is not None:
            self.leave_gate()
        if not self.is_left:  # else a lane still works on it
            self._request = _NOTHING
            self._arrays = self._execution = self.use = None
            self._outputs = self._places = ()
        fenced, result = timing, _DONE
        if error is not None:
            status, reason = error.status, str(error)
            if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                status = ErrorStatus.GENERAL_FAILURE  # fences know nothing of sizes
            logger.info("fenced execution failed: %s: %s", status.name, reason)
            result = ExecutionResult(status, (), NO_TIMING, reason)
        elif timing is not NO_TIMING:
            waited_us = (self._launched_ns - self._asked_perf_ns) // 1000
            in_driver_us = timing.time_in_driver + waited_us
            timing = Timing(timing.time_on_device, in_driver_us)
            result = ExecutionResult(_NONE, (), timing)
        self.complete(result, fenced)
