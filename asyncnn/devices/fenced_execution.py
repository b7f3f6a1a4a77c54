"""One fenced execution: its job, its fences, and the callback that tells how it ended.

Source: HAL 1.3/IFencedExecutionCallback.hal.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import FencedOutcome
from asyncnn.deadlines import late_for_fences
from asyncnn.devices.buffer_use import IBufferUse
from asyncnn.devices.executable import Executable
from asyncnn.devices.preparations import NewShapes
from asyncnn.devices.traced_work import recorded_work
from asyncnn.devices.work import ExecuteWork, ReportExecuted
from asyncnn.fences import FenceSource, SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    OutputInsufficientSizeError,
    ResourceExhaustedTransientError,
    waited_in_vain,
)
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.qos import Client, Scheduler
from asyncnn.tracing import Layer, Phase, active


class FencedJob(msgspec.Struct, frozen=True, eq=False):
    """A validated request and all that its execution needs, but for the fences."""

    executable: Executable
    client: Client
    request: Request
    options: ExecutionOptions
    use: IBufferUse | None = None

    @property
    def may_be_run_at_once(self) -> bool:
        """Whether it is short enough for the loop, and bound to no time."""
        return (
            self.executable.inliner.should_inline
            and self.options.deadline is None
            and self.options.duration is None
        )

    def settle(self, status: ErrorStatus, shapes: tuple[OutputShape, ...]) -> None:
        """Give up the buffers: it has ended."""
        if self.use is not None:
            self.use.settle(status, shapes)

    def claimed_work(
        self, report: ReportExecuted, due_ns: int | None = None
    ) -> ExecuteWork:
        """Return the work of executing it, with its buffers claimed.

        It has to end by ``due_ns``, too, if that is before its deadline.
        """
        options = self.options
        if due_ns is not None:
            deadline_ns = options.deadline
            if deadline_ns is None or due_ns < deadline_ns:
                options = replace(options, deadline=due_ns)
        kind = ExecuteWork if active.recorder is None else recorded_work()
        work = kind(
            self.executable,
            self.request,
            options,
            report,
            self.client,
            reports_early=True,
        )
        if self.use is not None:
            work.claim(self.use)
        return work


def timing_of(measure: MeasureTiming, on_device_us: int, in_driver_us: int) -> Timing:
    """Return what is reported of a success: nothing unless it was asked for."""
    if measure != MeasureTiming.YES:
        return NO_TIMING
    return Timing(on_device_us, max(on_device_us, in_driver_us))


def as_fenced(error: AsyncnnError) -> tuple[ErrorStatus, str]:
    """Return status and reason for a fence, which knows of no insufficient sizes."""
    if isinstance(error, OutputInsufficientSizeError):
        return ErrorStatus.GENERAL_FAILURE, str(error)
    return error.status, str(error)


logger = logging.getLogger(__name__)


class Owner(Protocol):
    """What an execution needs of the device's others."""

    scheduler: Scheduler
    new_shapes: NewShapes

    def producer_of(self, fence: ISyncFence) -> "FencedExecution | None":
        """Return the execution under way that will signal ``fence``."""
        ...

    def make_ready(self, execution: "FencedExecution") -> None:
        """Have ``execution`` begin, or fail, soon and not inside this call."""
        ...

    def forget(self, execution: "FencedExecution") -> None:
        """Note that ``execution`` has ended."""
        ...


class FencedExecution(FencedOutcome):
    """One execution that waits for fences or runs; its own fence tells of the end."""

    __slots__ = (
        "_dependants",
        "_due_ns",
        "_failure",
        "_job",
        "_launched_ns",
        "_owner",
        "_source",
        "_timer",
        "_waiting",
        "_watched",
        "_work",
        "fence",
    )

    def __init__(self, owner: Owner, job: FencedJob) -> None:
        super().__init__()
        self._owner = owner
        self._job: FencedJob | None = job
        self._launched_ns = time.monotonic_ns()
        self.fence: SyncFence
        self._source: FenceSource
        self.fence, self._source = SyncFence.pair()
        self._waiting = 0
        self._due_ns: int | None = None
        self._watched: list[ISyncFence] = []
        self._dependants: list[FencedExecution] = []
        self._failure: AsyncnnError | None = None
        self._work: ExecuteWork | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._job is None

    @property
    def is_scheduled(self) -> bool:
        """Whether it has been given to the scheduler."""
        return self._work is not None

    @property
    def may_be_run_at_once(self) -> bool:
        """Whether it is short enough for the loop, and bound to no time."""
        return self._job is not None and self._job.may_be_run_at_once

    def wait(self, fences: Sequence[ISyncFence]) -> None:
        """Become ready when all of ``fences`` have signalled or one has failed."""
        assert self._job is not None
        if self._job.options.deadline is not None:
            deadline, loop = self._job.options.deadline, asyncio.get_running_loop()
            delay = (deadline - self._launched_ns) / 1e9
            self._timer = loop.call_later(delay, self._expire)
        self._waiting = len(fences)
        for fence in fences:
            producer = self._owner.producer_of(fence)
            if producer is not None:
                producer._dependants.append(self)
            else:
                own = fence.duplicate()  # the caller may close the fence
                self._watched.append(own)
                own.add_done_callback(self._watched_is_done)
        if not fences:
            self._become_ready()

    def note_ready(self) -> None:
        """Note that it waits for nothing any more: its duration counts from now."""
        assert self._job is not None
        if self._job.options.duration is not None:
            self._due_ns = time.monotonic_ns() + self._job.options.duration
        if self._watched:
            self._unwatch()
        if active.recorder is not None:
            active.recorder.add(
                "wait-fence",
                Layer.DRIVER,
                Phase.EXECUTION,
                self._launched_ns,
                time.monotonic_ns(),
                active.recorder.new_group(),
            )

    def begin(self, *, may_run: bool) -> bool:
        """Run at once if that is short, else on a lane; True if it is on a lane.

        :raises AsyncnnError: if the scheduler refuses it, a fence has failed, or a
            buffer is not to be had.
        """
        job = self._job
        assert job is not None
        if self._failure is not None:
            raise self._failure
        work = job.claimed_work(self._executed, self._due_ns)
        owner = self._owner
        waits = not work.has_plan and work.plan_first(owner.new_shapes)
        if not waits and owner.scheduler.run_or_submit(work, may_run=may_run):
            return False
        self._work = work
        self._stop_timer()
        return True

    def cancel(self) -> None:
        """End at the next boundary between two operations, or before it begins."""
        if self._work is not None:
            status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            self._owner.new_shapes.cancel(self._work, status)
        else:
            self.fail(ResourceExhaustedTransientError("the execution was cancelled"))

    def fail(self, error: AsyncnnError) -> None:
        """End without success, and make what waits for it fail as well."""
        if self._job is None:
            return
        status, reason = as_fenced(error)
        logger.info("fenced execution failed: %s: %s", status.name, reason)
        self.complete(status, NO_TIMING, NO_TIMING)
        self._end(self._job, status)
        self._source.fail(status, reason)
        for dependant in self._dependants:
            dependant._fence_failed(reason)
        self._dependants.clear()

    def _succeed(
        self,
        job: FencedJob,
        shapes: tuple[OutputShape, ...],
        launched: Timing,
        fenced: Timing,
    ) -> None:
        self.complete(ErrorStatus.NONE, launched, fenced)
        self._end(job, ErrorStatus.NONE, shapes)
        self._source.signal()
        for dependant in self._dependants:
            dependant._fence_signalled()
        self._dependants.clear()

    def _end(
        self, job: FencedJob, status: ErrorStatus, shapes: tuple[OutputShape, ...] = ()
    ) -> None:
        """Let go of everything that was needed until now."""
        job.settle(status, shapes)
        self._job = None
        # It was raised: its traceback refers to this execution, and to the job.
        self._failure = None
        self._stop_timer()
        if self._watched:
            self._unwatch()
        self._owner.forget(self)
        self._work = None

    def _executed(
        self,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        job = self._job
        assert job is not None
        if error is not None:
            self.fail(error)
            return
        launched = self._since_launch(job, timing.time_on_device)
        self._succeed(job, shapes, launched, timing)

    def _since_launch(self, job: FencedJob, on_device_us: int) -> Timing:
        in_driver_us = (time.monotonic_ns() - self._launched_ns) // 1000
        return timing_of(job.options.measure, on_device_us, in_driver_us)

    def _watched_is_done(self, fence: ISyncFence) -> None:
        if self._job is None:
            return
        if fence.status is ErrorStatus.NONE:
            self._fence_signalled()
        else:
            self._fence_failed(fence.reason)

    def _fence_signalled(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self._failure is None and self._job is not None:
            self._become_ready()

    def _fence_failed(self, reason: str) -> None:
        if self._failure is not None or self._job is None:
            return
        self._failure = waited_in_vain(reason)
        self._owner.make_ready(self)

    def _become_ready(self) -> None:
        self.note_ready()
        self._owner.make_ready(self)

    def _expire(self) -> None:
        self._timer = None
        assert self._job is not None
        self.fail(late_for_fences(self._job.options.deadline, self._launched_ns))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unwatch(self) -> None:
        for fence in self._watched:
            fence.remove_done_callback(self._watched_is_done)
            fence.close()
        self._watched.clear()
