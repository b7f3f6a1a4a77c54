"""The fenced executions of a device: admission, and when each begins."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from asyncnn.callbacks import TURN_NS, FencedOutcome
from asyncnn.devices.buffers import BufferUse
from asyncnn.devices.fenced.execution import FencedExecution
from asyncnn.devices.fenced.job import FencedJob, as_fenced, timing_of
from asyncnn.devices.inline import Inliner
from asyncnn.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import NO_TIMING, ErrorStatus, MeasureTiming, Request
from asyncnn.qos import Scheduler


class FencedExecutions:
    """The fenced executions of one device that are under way.

    At most ``max_waiting`` of them. They take part in the scheduler's limit only once
    their fences have signalled; if it is reached then, they wait for one another.
    """

    def __init__(self, scheduler: Scheduler, *, max_waiting: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.scheduler = scheduler
        self._max_waiting = max_waiting
        self._open: dict[int, FencedExecution] = {}
        self._ready: deque[FencedExecution] = deque()
        self._scheduled = 0
        self._is_stalled = False
        self._turn_is_due = False
        self._turn_spent_ns = 0

    @property
    def has_turn(self) -> bool:
        """Whether a short execution may keep the loop, and nobody is before it."""
        return (
            self._turn_spent_ns < TURN_NS
            and not self._ready
            and self.scheduler.is_idle
            and not self.scheduler.is_closed
        )

    def run_at_once(
        self,
        inliner: Inliner,
        request: Request,
        measure: MeasureTiming,
        use: BufferUse | None,
    ) -> tuple[SyncFence | None, FencedOutcome]:
        """Run a request that waits for nothing; if that goes well it needs no fence.

        :raises AsyncnnError: if the buffers that it uses cannot be claimed.
        """
        outcome = FencedOutcome()
        if use is not None:
            request = use.claim()
        try:
            shapes, run_ns = inliner.run(request)
        except AsyncnnError as error:
            status, reason = as_fenced(error)
            if use is not None:
                use.settle(status, ())
            outcome.complete(status, NO_TIMING, NO_TIMING)
            return SyncFence.failed(status, reason), outcome
        if use is not None:
            use.settle(ErrorStatus.NONE, shapes)
        if not self._turn_spent_ns:
            self._loop.call_soon(self._end_turn)
        self._turn_spent_ns += run_ns
        timing = timing_of(measure, run_ns // 1000, run_ns // 1000)
        outcome.complete(ErrorStatus.NONE, timing, timing)
        return None, outcome

    def launch(
        self, job: FencedJob, wait_for: Sequence[ISyncFence]
    ) -> tuple[SyncFence, FencedExecution]:
        """Launch ``job`` once ``wait_for`` has signalled; return its fence and outcome.

        :raises InvalidArgumentError: if a fence has failed already, or is none.
        :raises MissedDeadlinePersistentError: if the deadline has passed already.
        :raises AsyncnnError: if the device takes no more work.
        """
        active = active_fences(wait_for)
        self._admit(job)
        execution = FencedExecution(self, job)
        self._open[id(execution.fence)] = execution
        try:
            execution.wait(active)
        except AsyncnnError as error:
            execution.fail(error)
            raise
        return execution.fence, execution

    def close(self) -> None:
        """Fail everything that waits; what the scheduler has is left to it."""
        for execution in list(self._open.values()):
            if not execution.is_scheduled:
                execution.fail(DeviceUnavailableError("the device was closed"))

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
        if self.scheduler.is_closed:
            raise DeviceUnavailableError("the device is closed")
        if len(self._open) >= self._max_waiting:
            raise ResourceExhaustedTransientError(
                f"{len(self._open)} fenced executions are under way, the limit",
                hint="await some of them first, or raise max_waiting",
            )
        if job.deadline_ns is not None and time.monotonic_ns() >= job.deadline_ns:
            raise MissedDeadlinePersistentError("the deadline has passed already")

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
            if execution.begin(may_be_inline=self.scheduler.is_idle):
                self._scheduled += 1
        except ResourceExhaustedTransientError as error:
            if self._scheduled:
                self._ready.appendleft(execution)
                self._is_stalled = True
            else:
                execution.fail(error)
        except AsyncnnError as error:
            execution.fail(error)


def active_fences(fences: Sequence[ISyncFence]) -> list[ISyncFence]:
    """Return the fences that are still to be waited for.

    :raises InvalidArgumentError: if one has failed, or is no fence.
    """
    active: list[ISyncFence] = []
    for position, fence in enumerate(fences):
        if fence is None:
            raise InvalidArgumentError(f"fence {position} is empty")
        status = fence.status
        if status is None:
            active.append(fence)
        elif status is not ErrorStatus.NONE:
            raise InvalidArgumentError(
                f"fence {position} has failed: {status.name}: {fence.reason}"
            )
    return active
