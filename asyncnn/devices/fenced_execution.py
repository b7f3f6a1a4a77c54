"""One fenced execution: work that is its own end, and the gate that it waits at.

Source: HAL 1.3/IFencedExecutionCallback.hal.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from time import monotonic_ns, perf_counter_ns
from typing import Protocol

from asyncnn.deadlines import late_for_fences
from asyncnn.devices.buffer_use import IBufferUse
from asyncnn.devices.executable import Executable
from asyncnn.devices.run import Run
from asyncnn.execution import FencedCompletion
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedTransientError,
    waited_in_vain,
)
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.qos import calling_client
from asyncnn.tracing import Layer, Phase, active

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_NOTHING = Request((), (), ())


class Owner(Protocol):
    """The fenced executions of a device."""

    loop: asyncio.AbstractEventLoop

    def make_ready(self, execution: "FencedExecution") -> None:
        """Have ``execution`` begin, or fail, soon and not inside this call."""
        ...

    def forget(self, execution: "FencedExecution") -> None:
        """Note that ``execution`` has ended."""
        ...


class FencedExecution(FencedCompletion, Run):  # type: ignore[misc]  # __await__
    """Work that begins once fences have signalled, and the end that others wait for.

    It has a ``gate`` while it waits or is ready, and then ``is_scheduled``, unless it
    was run at once. From its end on it keeps nothing that it has worked on.
    """

    __slots__ = (
        *FencedCompletion.slots,
        "_asked_perf_ns",
        "_dependants",
        "gate",
        "is_scheduled",
        "owner",
    )

    def __init__(
        self,
        owner: Owner,
        executable: Executable,
        request: Request,
        options: ExecutionOptions,
        use: IBufferUse | None,
    ) -> None:
        client = calling_client.get()
        super().__init__(executable, request, options, None, client, True)
        self._use = use
        self.owner = owner
        self.loop = owner.loop
        self._core = self._waiters = self.outcome = None
        self._asked_perf_ns = self._launched_ns
        self._dependants: list[Gate] = []
        self.gate: Gate | None = None
        self.is_scheduled = False

    def note_ready(self) -> None:
        """Note that it waits for nothing, or nothing more: it counts its time anew."""
        duration, executable = self._options.duration, self._executable
        if duration is not None:
            now_ns = self._asked_ns = monotonic_ns()
            limits = (self._options.deadline, now_ns + duration)
            self.deadline_ns = min(limit for limit in limits if limit is not None)
            if self.decision is None and not executable.are_short:
                self.decision = threading.Lock()
        # It may have been launched long ago.
        self.should_inline = executable.should_inline and self.deadline_ns is None
        if self._launched_ns:
            self._launched_ns = perf_counter_ns()

    def claim_buffers(self) -> None:
        """Claim the device-managed buffers of the request, if it names any.

        :raises AsyncnnError: if one is not to be had.
        """
        if self._use is not None:
            self.claim(self._use)

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
        if self.outcome is None:
            if self._use is not None:
                self._use.settle(error.status, ())
            self._tell(error, (), NO_TIMING)

    def tell_gate(self, gate: "Gate") -> None:
        """Have ``gate`` told of the end, which is still to come."""
        self._dependants.append(gate)

    def _tell(
        self,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """End, and tell who waits; shapes are not told."""
        self.owner.forget(self)
        if self.gate is not None:
            self.leave_gate()
        if not self.is_left:  # else a lane still works on it
            self._request = _NOTHING
            self._arrays = self._execution = self._use = None
            self._outputs = self._places = ()
        if error is not None:
            status, reason = error.status, str(error)
            if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                status = ErrorStatus.GENERAL_FAILURE  # fences know nothing of sizes
            logger.info("fenced execution failed: %s: %s", status.name, reason)
            self.complete(status, reason)
        elif timing is NO_TIMING:
            self.complete(_NONE)
        else:
            waited_us = (self._launched_ns - self._asked_perf_ns) // 1000
            in_driver_us = timing.time_in_driver + waited_us
            launched = Timing(timing.time_on_device, in_driver_us)
            self.complete(_NONE, "", launched, timing)
        if self._dependants:
            for gate in self._dependants:
                gate.tell(self)
            self._dependants.clear()


class Gate:
    """What an execution waits for: fences, others of its device, and its deadline.

    The execution is made ready, once, when all of them have signalled or one has
    failed: then there is a ``failure``.
    """

    __slots__ = ("_begun_ns", "_execution", "_left", "_timer", "_watched", "failure")

    def __init__(self, execution: FencedExecution) -> None:
        self._execution = execution
        self._begun_ns = monotonic_ns()
        self._left = 0
        self._watched: list[ISyncFence] = []
        self._timer: asyncio.TimerHandle | None = None
        self.failure: AsyncnnError | None = None
        if execution.deadline_ns is not None:
            delay = (execution.deadline_ns - self._begun_ns) / 1e9
            self._timer = execution.loop.call_later(delay, self._expire)

    def wait(self, sources: Sequence[ISyncFence | FencedCompletion]) -> None:
        """Wait for these, which are active, and some."""
        self._left = len(sources)
        for source in sources:
            run = source.producer if isinstance(source, SyncFence) else source
            if isinstance(run, FencedExecution) and run.owner is self._execution.owner:
                run.tell_gate(self)
                continue
            own: ISyncFence
            if isinstance(source, FencedCompletion):
                own = source.fence
            else:
                own = source.duplicate()  # the caller may close the fence
            self._watched.append(own)
            own.add_done_callback(self.tell)

    def tell(self, source: ISyncFence | FencedCompletion) -> None:
        """Note that ``source`` has ended."""
        if self._execution.gate is not self or self.failure is not None:
            return
        self._left -= 1
        if source.status is not _NONE:
            self.failure = waited_in_vain(source.reason)
        elif self._left:
            return
        else:
            self._unwatch()
            self._execution.note_ready()
            if active.recorder is not None:
                active.recorder.add(
                    "wait-fence",
                    Layer.DRIVER,
                    Phase.EXECUTION,
                    self._begun_ns,
                    monotonic_ns(),
                    active.recorder.new_group(),
                )
        self._execution.owner.make_ready(self._execution)

    def close(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unwatch()

    def _unwatch(self) -> None:
        for fence in self._watched:
            fence.remove_done_callback(self.tell)
            fence.close()
        self._watched.clear()

    def _expire(self) -> None:
        execution = self._execution
        execution.refuse(late_for_fences(execution.deadline_ns, self._begun_ns))
