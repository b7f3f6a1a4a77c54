"""Fenced executions: each begins when its fences have signalled, and signals one.

Waiting takes no thread. Executions whose fences have signalled stand in a queue that
the event loop works off, never one inside the other: a chain may be of any length. One
that waits for another of its device is notified by that, without a fence between them.

Source: HAL 1.3/IPreparedModel.hal (executeFenced) and 1.3/IFencedExecutionCallback.hal.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns, perf_counter_ns

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import check_deadline, earlier
from asyncnn.devices.buffer_use import IBufferUse
from asyncnn.devices.executable import Executable
from asyncnn.devices.preparations import NewShapes
from asyncnn.devices.run import Run
from asyncnn.devices.traced_work import Traced
from asyncnn.engine.job import made
from asyncnn.fenced_run import FencedRun, Source, too_many_fenced
from asyncnn.fences.core import Gate
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import closed_error
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionOptions, OutputShapes
from asyncnn.qos import Scheduler, calling_client
from asyncnn.tracing import active
from asyncnn.turn import TURN_NS, in_this_turn

logger = logging.getLogger(__name__)

_NONE = hal.ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_NOTHING = hal.Request((), (), ())
_DONE = ExecutionResult(_NONE, (), hal.NO_TIMING)


class FencedExecution(FencedRun, Run):
    """Work that begins once fences have signalled, and the end that others wait for.

    It has a ``gate`` while it waits or is ready, and then ``is_scheduled``, unless it
    was run at once. From its end on it keeps nothing that it has worked on.
    """

    owner: "FencedExecutions"
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
            self.refuse(
                hal.ResourceExhaustedTransientError("the execution was cancelled")
            )

    def refuse(self, error: hal.AsyncnnError) -> None:
        """End it before it was scheduled; does nothing if it has ended."""
        if self._result is None:
            if self.use is not None:
                self.use.settle(error.status, ())
            self._report_end(error, (), hal.NO_TIMING)

    def _opened(self, failure: hal.AsyncnnError | None) -> None:
        """Have it begin in turn; or fail, but not at once, as a long chain may."""
        if failure is not None:
            self.loop.call_soon(self.refuse, failure)
            return
        self.note_ready()
        self.owner.make_ready(self)

    def _report_end(
        self, error: hal.AsyncnnError | None, shapes: OutputShapes, timing: hal.Timing
    ) -> None:
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
            if status is hal.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                status = hal.ErrorStatus.GENERAL_FAILURE  # fences know nothing of sizes
            logger.info("fenced execution failed: %s: %s", status.name, reason)
            result = ExecutionResult(status, (), hal.NO_TIMING, reason)
        elif timing is not hal.NO_TIMING:
            waited_us = (self._launched_ns - self._asked_perf_ns) // 1000
            in_driver_us = timing.time_in_driver + waited_us
            timing = hal.Timing(timing.time_on_device, in_driver_us)
            result = ExecutionResult(_NONE, (), timing)
        self.complete(result, fenced)


class TracedFencedExecution(Traced, FencedExecution):
    """A fenced execution that is traced."""


class FencedExecutions:
    """The fenced executions of one device that are under way.

    At most ``max_waiting`` of them are ``open``. They take part in the scheduler's
    limit only once their fences have signalled; if it is reached then, they wait for
    one another.
    """

    def __init__(
        self, scheduler: Scheduler, new_shapes: NewShapes, *, max_waiting: int
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._new_shapes = new_shapes
        self._max_waiting = max_waiting
        self.open: set[FencedExecution] = set()
        self.is_stalled = False
        self._ready: deque[FencedExecution] = deque()
        self._turn_is_due = False
        self._turn_spent_ns = 0

    def launch(
        self,
        executable: Executable,
        request: hal.Request,
        use: IBufferUse | None,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
        arrays: Sequence[Array] | None = None,
    ) -> FencedExecution:
        """Launch an execution of a valid request once ``wait_for`` has signalled.

        ``arrays`` are for the ports of its plan, unless it has some. What waits
        for nothing and is short is run within the call, if that does not keep the loop.

        :raises InvalidArgumentError: if a fence has failed already, or is none.
        :raises MissedDeadlinePersistentError: if the deadline has passed already.
        :raises AsyncnnError: if the device takes no more work.
        """
        awaited = active_fences(wait_for) if wait_for else ()
        refusal = self._scheduler.refusal
        if refusal is not None:
            raise refusal()
        if len(self.open) >= self._max_waiting:
            raise too_many_fenced(self._max_waiting)
        if options.deadline is not None:
            check_deadline(options.deadline)
        kind = FencedExecution if active.recorder is None else TracedFencedExecution
        execution: FencedExecution = made(
            kind, executable, request, arrays, options, calling_client.get()
        )
        execution._report = execution._report_end
        execution.use, execution.owner, execution.loop = use, self, self.loop
        execution._asked_perf_ns = execution._launched_ns
        if options.duration is not None and not awaited:
            execution.note_ready()
        self.open.add(execution)
        waits = awaited or self._ready or self.is_stalled
        if not (waits or (execution.should_inline and self._turn_spent_ns > TURN_NS)):
            self._begin(execution)
            return execution
        execution.wait(awaited)
        if not awaited:
            self.make_ready(execution)
        return execution

    def close(self) -> None:
        """Fail everything that waits; what the scheduler has is left to it."""
        for execution in tuple(self.open):
            if not execution.is_scheduled:
                execution.refuse(closed_error())

    def make_ready(self, execution: FencedExecution) -> None:
        """Begin ``execution``, or let it fail, in the loop's next turn."""
        self._ready.append(execution)
        if not self.is_stalled:
            self._take_turn_soon()

    def go_on(self) -> None:
        """Begin with what waits for the scheduler, which has room again."""
        self.is_stalled = False
        self._take_turn_soon()

    def _take_turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self.loop.call_soon(in_this_turn, self._take_turn)

    def _take_turn(self) -> None:
        """Begin what is ready, as far as the loop can be kept."""
        self._turn_is_due = False
        until = time.monotonic_ns() + TURN_NS
        while self._ready and not self.is_stalled:
            execution = self._ready.popleft()
            if execution.status is None:
                self._begin(execution)
            if time.monotonic_ns() > until:
                break
        if self._ready and not self.is_stalled:
            self._take_turn_soon()

    def _end_turn(self) -> None:
        self._turn_spent_ns = 0

    def _begin(self, execution: FencedExecution) -> None:
        """Run it at once if that is short, else have it scheduled, or let it fail."""
        try:
            if execution.use is not None:
                execution.claim(execution.use)
            waits = not execution.has_plan and self._new_shapes.take(execution)
            if not waits and self._scheduler.submit(execution):
                if not self._turn_spent_ns:
                    self.loop.call_soon(self._end_turn)
                self._turn_spent_ns += execution.computed_ns
                return
        except hal.ResourceExhaustedTransientError as error:
            if not any(each.is_scheduled for each in self.open):
                execution.refuse(error)
                return
            if execution.gate is None:
                execution.wait(())
            self._ready.appendleft(execution)
            self.is_stalled = True
        except Exception as error:
            # Whatever it is, its fence ends, and the others have their turn.
            execution.refuse(hal.failure_of(error))
        else:
            execution.is_scheduled = True
            if execution.gate is not None:
                execution.leave_gate()
