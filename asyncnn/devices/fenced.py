"""Fenced executions: each begins when its fences have signalled, and signals one.

Waiting takes no thread. Executions whose fences have signalled stand in a queue that
the event loop works off, never one inside the other: a chain may be of any length. A
fence between two executions of one device is resolved here, without its callbacks.

Source: HAL 1.3/IPreparedModel.hal (executeFenced) and 1.3/IFencedExecutionCallback.hal.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from asyncnn.callbacks import TURN_NS, FencedOutcome
from asyncnn.deadlines import check_deadline
from asyncnn.devices.fenced_execution import FencedExecution, FencedJob, as_fenced
from asyncnn.devices.preparations import NewShapes
from asyncnn.fences import SyncFence
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    ResourceExhaustedTransientError,
    failure_of,
    too_many,
)
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShape, Timing
from asyncnn.qos import Scheduler


class FencedExecutions:
    """The fenced executions of one device that are under way.

    At most ``max_waiting`` of them. They take part in the scheduler's limit only once
    their fences have signalled; if it is reached then, they wait for one another.
    """

    def __init__(
        self, scheduler: Scheduler, new_shapes: NewShapes, *, max_waiting: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.scheduler = scheduler
        self.new_shapes = new_shapes
        self._max_waiting = max_waiting
        self._open: dict[int, FencedExecution] = {}
        self._ready: deque[FencedExecution] = deque()
        self._scheduled = 0
        self._is_stalled = False
        self._turn_is_due = False
        self._turn_spent_ns = 0

    def launch(
        self, job: FencedJob, wait_for: Sequence[ISyncFence]
    ) -> tuple[SyncFence | None, FencedOutcome]:
        """Launch ``job`` once ``wait_for`` has signalled; return its fence and outcome.

        What waits for nothing and is short is run within the call. If that goes well,
        there is no fence.

        :raises InvalidArgumentError: if a fence has failed already, or is none.
        :raises MissedDeadlinePersistentError: if the deadline has passed already.
        :raises AsyncnnError: if the device takes no more work.
        """
        if not wait_for and job.may_be_run_at_once and self._has_turn:
            return self._run_at_once(job)
        active = active_fences(wait_for)
        self._admit(job)
        execution = FencedExecution(self, job)
        self._open[id(execution.fence)] = execution
        if not (active or self._ready or self._is_stalled or job.may_be_run_at_once):
            execution.note_ready()
            self._begin(execution)  # on a lane: nothing that waits is before it
            return execution.fence, execution
        try:
            execution.wait(active)
        except AsyncnnError as error:
            execution.fail(error)
            raise
        return execution.fence, execution

    @property
    def _has_turn(self) -> bool:
        """Whether a short execution may keep the loop, and nobody is before it."""
        return (
            self._turn_spent_ns < TURN_NS
            and not self._ready
            and self.scheduler.is_idle
            and not self.scheduler.is_closed
        )

    def _run_at_once(self, job: FencedJob) -> tuple[SyncFence | None, FencedOutcome]:
        """Run a job that waits for nothing."""
        outcome = FencedOutcome()
        failed: list[SyncFence] = []

        def report(
            error: AsyncnnError | None, shapes: tuple[OutputShape, ...], timing: Timing
        ) -> None:
            if error is None:
                outcome.complete(ErrorStatus.NONE, timing, timing)
                return
            status, reason = as_fenced(error)
            outcome.complete(status, NO_TIMING, NO_TIMING)
            failed.append(SyncFence.failed(status, reason))

        work = job.claimed_work(report)
        self.scheduler.run_or_submit(work)
        if not self._turn_spent_ns:
            self._loop.call_soon(self._end_turn)
        self._turn_spent_ns += work.computed_ns
        return (failed[0] if failed else None), outcome

    def close(self) -> None:
        """Fail everything that waits; what the scheduler has is left to it."""
        for execution in list(self._open.values()):
            if not execution.is_scheduled:
                execution.fail(DeviceClosedError("the device is closed"))

    def producer_of(self, fence: ISyncFence) -> FencedExecution | None:
        """Return the execution under way that will signal ``fence``."""
        return self._open.get(id(fence))

    def make_ready(self, execution: FencedExecution) -> None:
        """Begin ``execution``, or let it fail, in the loop's next turn."""
        self._ready.append(execution)
        if not self._is_stalled:
            self._take_turn_soon()

    def forget(self, execution: FencedExecution) -> None:
        """Note that ``execution`` has ended."""
        del self._open[id(execution.fence)]
        if execution.is_scheduled:
            self._scheduled -= 1
            if self._is_stalled:
                self._is_stalled = False
                self._take_turn_soon()

    def _admit(self, job: FencedJob) -> None:
        refusal = self.scheduler.cause_of_death()
        if refusal is not None:
            raise refusal
        if len(self._open) >= self._max_waiting:
            raise too_many(
                "pending fenced executions",
                "DeviceSettings.max_waiting",
                self._max_waiting,
                hint="await some of them first",
            )
        check_deadline(job.options.deadline)

    def _take_turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Begin what is ready, as far as the loop can be kept."""
        self._turn_is_due = False
        until = time.monotonic_ns() + TURN_NS
        while self._ready and not self._is_stalled:
            execution = self._ready.popleft()
            if not execution.is_done:
                self._begin(execution)
            if time.monotonic_ns() > until:
                break
        if self._ready and not self._is_stalled:
            self._take_turn_soon()

    def _end_turn(self) -> None:
        self._turn_spent_ns = 0

    def _begin(self, execution: FencedExecution) -> None:
        try:
            if execution.begin(may_run=execution.may_be_run_at_once):
                self._scheduled += 1
        except ResourceExhaustedTransientError as error:
            if self._scheduled:
                self._ready.appendleft(execution)
                self._is_stalled = True
            else:
                execution.fail(error)
        except Exception as error:
            # Whatever it is, its fence ends, and the others have their turn.
            execution.fail(failure_of(error))
