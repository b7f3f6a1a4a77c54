"""A fenced execution over several devices: each partition waits for the one before.

Where all devices do fenced executions, and no size is open, all partitions are launched
at once, each with the fence of the one before: none of them takes a turn of this
process. From the first partition that is refused or fails, or with device-managed
buffers, the rest goes step by step, as any other execution does. Those that notify a
callback instead may go the same way.

Source: HAL 1.3/IPreparedModel.hal (executeFenced).
"""

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult, result_of
from asyncnn.deadlines import earlier
from asyncnn.fenced_run import FencedRun, Source, launcher_of
from asyncnn.fences.core import Gate
from asyncnn.hal.errors import (
    MISSED,
    AsyncnnError,
    ResourceExhaustedTransientError,
    closed_error,
)
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.qos import acting_for, calling_client
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.spaces import Space
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import Partitioned

_NONE = ErrorStatus.NONE


class FencedChain(FencedRun):
    """One fenced execution; it `is_done` once it has ended.

    One that has ``ended`` is not fenced: that is given the result.
    """

    def __init__(
        self,
        model: Partitioned,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None = None,
        ended: Callable[[ExecutionResult], None] | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._request = request
        self._options = options
        self._use = use
        self._ended = ended
        self._client = calling_client.get()
        self._launched_ns = self._ready_ns = time.monotonic_ns()
        self._awaited: list[ISyncFence] = []
        self._gate: Gate | None = None
        self._runs: list[FencedRun] = []
        self._failure: ExecutionResult | None = None
        self._space: Space | None = None
        self._run: SteppedRun | None = None
        self._is_cancelled = False
        self.is_done = False

    def launch(self, wait_for: Sequence[Source], *, was_refused: bool = False) -> None:
        """Begin once ``wait_for``, which are active, have signalled.

        The only device does not take it as a fenced one, if it ``was_refused``.
        """
        self._model.host.active.add(self)
        # The caller may close its own.
        self._awaited = [each.duplicate() for each in wait_for]
        if not was_refused and self._may_chain():
            self._guarded(lambda: self._chain(wait_for))
            if self._runs or self.is_done:
                return
        self._guarded(self._wait)

    def adopt(self, run: FencedRun, wait_for: Sequence[Source]) -> None:
        """Go on where the only partition was launched before."""
        self._model.host.active.add(self)
        self._awaited = [each.duplicate() for each in wait_for]
        self._runs.append(run)
        run.add_done_callback(self._chain_done)

    def cancel(self) -> None:
        """End at the next boundary, or before it begins."""
        self._is_cancelled = True
        if self._run is not None:
            self._run.die()
        elif self._runs:
            for run in self._runs:
                run.cancel()
        else:
            self._fail(_cancelled())

    def close(self) -> None:
        """End at once, since the framework is closed."""
        for run in self._runs:
            run.cancel()
        self._fail(closed_error())

    def _wait(self) -> None:
        """Begin here once all that it waits for has signalled."""
        if self._awaited:
            self._gate = Gate(self._awaited, self._options.deadline, self._opened)
        else:
            self._go_on(0, None)

    def _opened(self, failure: AsyncnnError | None) -> None:
        if failure is not None:
            self.loop.call_soon(self._fail, failure)
        else:
            self.loop.call_soon(self._go_on, 0, self._failure)

    def _may_chain(self) -> bool:
        """Return whether partitions can be launched before their inputs are there."""
        spaces = self._model.spaces
        members = [step.member for step in self._model.steps]
        if (
            self._use is not None
            or self._options.duration is not None
            or any(member.health.has_failed for member in members)
        ):
            return False
        if spaces is None:
            return True
        # What another process does not see is copied at the launch: much too soon.
        return spaces.is_static and (
            not any(member.is_remote for member in members)
            or (
                not any(member.copies for member in members)
                and spaces.are_shared(self._request)
            )
        )

    def _chain(self, wait_for: Sequence[Source]) -> None:
        """Launch partitions, each behind the one before, until one is refused."""
        options, spaces = self._options, self._model.spaces
        if spaces is not None:
            self._space = spaces.take(in_order=False)
        waits = wait_for
        for index, step in enumerate(self._model.steps):
            request = self._request
            if self._space is not None:
                request = self._space.request_of(index, request, step.prepared)
            try:
                run = launcher_of(step.prepared)(request, waits, options)
            except Exception:  # what is wrong shows when it is executed
                if not index:
                    return
                break
            self._runs.append(run)
            waits = [] if run.status is _NONE else [run]
        if waits:
            self._runs[-1].add_done_callback(self._chain_done)
        else:
            self._go_on(len(self._runs), None)

    def _chain_done(self, _: object) -> None:
        """Go on behind the partitions that were launched, or at one that has failed."""
        for index, run in enumerate(self._runs):
            status = run.status
            if status is None and not self.is_done:
                # A later one has failed before this one, which is at work, has ended.
                run.add_done_callback(self._chain_done)
                return
            if status is not _NONE:
                # Not within the call that ends another execution.
                more = run.reason, None, None, run.may_still_write
                failure = ExecutionResult(status or _NONE, (), NO_TIMING, *more)
                self.loop.call_soon(self._go_on, index, failure)
                return
        self._go_on(len(self._runs), None)

    def _go_on(self, index: int, failure: ExecutionResult | None) -> None:
        """Execute from partition ``index`` on, unless that was the last."""
        if self.is_done:
            self._give_space_back(is_clean=False)
            return
        on_device_us = self._on_device_us(index)
        if index == len(self._model.steps):
            in_driver_us = (time.monotonic_ns() - self._launched_ns) // 1000
            fenced_us = sum(
                run.get_execution_info()[2].time_in_driver for run in self._runs
            )
            fenced_us = min(fenced_us, in_driver_us)
            result = ExecutionResult(_NONE, self._model.declared, NO_TIMING)
            self._succeed(result, on_device_us, in_driver_us, fenced_us)
            return
        if self._is_cancelled:
            self._fail(_cancelled())
            return
        if failure is None or index or all(f.status is _NONE for f in self._awaited):
            self._guarded(lambda: self._step_from(index, on_device_us, failure))
        elif failure.status in MISSED or not self._model.recovers_from(failure.status):
            self._end(failure)
        else:
            # A device may have taken down what this waits for as well; that falls back
            # or fails, and its fence, which is not of the device, says which.
            self._failure = failure
            self._runs.clear()
            self._guarded(self._wait)

    def _step_from(
        self, index: int, on_device_us: int, failure: ExecutionResult | None
    ) -> None:
        options = self._options
        now = self._ready_ns = time.monotonic_ns()
        if self._runs:
            self._ready_ns = self._launched_ns
        if options.duration is not None:
            deadline = earlier(options.deadline, now, options.duration)
            options = replace(options, deadline=deadline)
        with acting_for(self._client):
            self._run = SteppedRun(
                self._model, self._request, options, self._stepped, self._use
            )
            space, self._space = self._space, None
            self._run.begin(index, space, on_device_us=on_device_us, failure=failure)

    def _stepped(self, result: ExecutionResult) -> None:
        if result.status is not _NONE:
            self._end(result)
            return
        now = time.monotonic_ns()
        launched_us = (now - self._launched_ns) // 1000
        ready_us = (now - self._ready_ns) // 1000
        self._succeed(result, result.timing.time_on_device, launched_us, ready_us)

    def _succeed(
        self,
        result: ExecutionResult,
        on_device_us: int,
        launched_us: int,
        fenced_us: int,
    ) -> None:
        fenced = NO_TIMING
        if self._options.measure == MeasureTiming.YES:
            least = 0 if on_device_us == UINT64_MAX else on_device_us
            launched = Timing(on_device_us, max(least, launched_us))
            fenced = Timing(on_device_us, max(least, fenced_us))
            result = replace(result, timing=launched)
        self._end(result, fenced)

    def _fail(self, error: Exception) -> None:
        self._end(result_of(error))

    def _end(self, result: ExecutionResult, fenced: Timing = NO_TIMING) -> None:
        if self.is_done:
            return
        is_clean = result.status is _NONE
        self._finish(is_clean=is_clean)
        if self._ended is not None:
            self._ended(result)
            return
        status = result.status
        if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            status = ErrorStatus.GENERAL_FAILURE  # fences know nothing of sizes
        self.complete(replace(result, status=status, output_shapes=()), fenced)

    def _finish(self, *, is_clean: bool) -> None:
        self.is_done = True
        if self._gate is not None:
            self._gate.close()
        for fence in self._awaited:
            fence.close()
        self._awaited.clear()
        if self._use is not None and self._run is None:
            self._use.end(ErrorStatus.GENERAL_FAILURE, ())
        self._give_space_back(is_clean=is_clean)
        self._model.host.ended(self)

    def _give_space_back(self, *, is_clean: bool) -> None:
        space, self._space = self._space, None
        if space is not None and self._model.spaces is not None:
            self._model.spaces.give_back(space, is_clean=is_clean)

    def _on_device_us(self, count: int) -> int:
        times = [
            run.get_execution_info()[2].time_on_device for run in self._runs[:count]
        ]
        return UINT64_MAX if UINT64_MAX in times else sum(times)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            self._fail(error)


def _cancelled() -> ResourceExhaustedTransientError:
    return ResourceExhaustedTransientError("the execution was cancelled")
