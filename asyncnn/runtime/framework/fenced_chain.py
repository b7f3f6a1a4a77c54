"""A fenced execution over several devices: each partition waits for the one before.

Where all devices do fenced executions, and no size is open, all partitions are launched
at once, each with the fence of the one before: none of them takes a turn of this
process. From the first partition that is refused or fails, or with device-managed
buffers, the rest goes step by step, as any other execution does. Those that notify a
callback instead may go the same way.

Source: HAL 1.3/IPreparedModel.hal (executeFenced).
"""

import time
from collections.abc import Sequence

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.fenced_run import FencedRun, Source, launcher_of
from asyncnn.hal.errors import MISSED
from asyncnn.hal.types import UINT64_MAX, ExecutionOptions
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.spaces import Space
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import Partitioned
from asyncnn.runtime.framework.waiting_run import StartingModel, WaitingRun

_NONE = hal.ErrorStatus.NONE


class ChainingModel(Partitioned, StartingModel):
    """A model whose partitions `FencedChain` launches."""


class FencedChain(WaitingRun):
    """One such execution; it waits here where it cannot be launched at once."""

    _model: ChainingModel

    def __init__(
        self,
        model: ChainingModel,
        request: hal.Request,
        options: ExecutionOptions,
        use: BuffersInUse | None = None,
    ) -> None:
        super().__init__(model, request, options, use)
        self._awaited: list[hal.ISyncFence] = []
        self._runs: list[FencedRun] = []
        self._index = 0
        self._failure: ExecutionResult | None = None
        self._space: Space | None = None
        self._is_cancelled = False

    def launch(self, awaited: Sequence[Source]) -> None:
        """Launch all partitions that can be, or wait for what is ``awaited``."""
        if self._may_chain():
            self._note(awaited)
            try:
                self._chain(awaited)
            except Exception as error:
                self._fail(hal.failure_of(error))
            if self._runs or not self.is_pending:
                return
        super().launch(awaited)

    def adopt(self, run: FencedRun, wait_for: Sequence[Source]) -> None:
        """Go on where the only partition was launched before."""
        self._note(wait_for)
        self._runs.append(run)
        run.add_done_callback(self._chain_done)

    def cancel(self) -> None:
        """End at the next boundary, or before it begins."""
        self._is_cancelled = True
        if self._execution is None and self._runs:
            for run in self._runs:
                run.cancel()
        else:
            super().cancel()

    def close(self) -> None:
        """End at once, since the framework is closed."""
        for run in self._runs:
            run.cancel()
        super().close()

    def _note(self, awaited: Sequence[Source]) -> None:
        self._model.waiting_runs.add(self)
        # The caller may close its own.
        self._awaited = [each.duplicate() for each in awaited]

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
            if status is None and self.is_pending:
                # A later one has failed before this one, which is at work, has ended.
                run.add_done_callback(self._chain_done)
                return
            if status is not _NONE:
                # Not within the call that ends another execution.
                more = run.reason, None, None, run.may_still_write
                failure = ExecutionResult(status or _NONE, (), hal.NO_TIMING, *more)
                self.loop.call_soon(self._go_on, index, failure)
                return
        self._go_on(len(self._runs), None)

    def _go_on(self, index: int, failure: ExecutionResult | None) -> None:
        """Execute from partition ``index`` on, unless that was the last."""
        if not self.is_pending:
            self._give_space_back(is_clean=False)
        elif index == len(self._model.steps):
            self._succeed()
        elif self._is_cancelled:
            super().cancel()
        elif failure is None or index or all(f.status is _NONE for f in self._awaited):
            self._index, self._failure = index, failure
            self._begin()
        elif failure.status in MISSED or not self._model.recovers_from(failure.status):
            self._ended(failure)
        else:
            # A device may have taken down what this waits for as well; that falls back
            # or fails, and its fence, which is not of the device, says which.
            self._failure = failure
            self._runs.clear()
            super().launch(self._awaited)

    def _started(self, options: ExecutionOptions) -> SteppedRun:
        model, request, index = self._model, self._request, self._index
        run = SteppedRun(model, request, options, self._ended, self._use)
        space, self._space = self._space, None
        before_us = self._on_device_us(index)
        run.begin(index, space, on_device_us=before_us, failure=self._failure)
        return run

    def _succeed(self) -> None:
        """End, as all partitions have, where they were launched."""
        if self._options.measure != hal.MeasureTiming.YES:
            self._finish(ExecutionResult(_NONE, (), hal.NO_TIMING))
            return
        on_device_us = self._on_device_us(len(self._runs))
        least_us = 0 if on_device_us == UINT64_MAX else on_device_us
        launched_us = (time.monotonic_ns() - self._launched_ns) // 1000
        times = [run.get_execution_info()[2].time_in_driver for run in self._runs]
        launched, fenced = (
            hal.Timing(on_device_us, max(least_us, us))
            for us in (launched_us, min(sum(times), launched_us))
        )
        self._finish(ExecutionResult(_NONE, (), launched), fenced)

    def _finish(
        self, result: ExecutionResult, fenced: hal.Timing = hal.NO_TIMING
    ) -> None:
        for fence in self._awaited:
            fence.close()
        self._awaited.clear()
        self._give_space_back(is_clean=result.status is _NONE)
        if self._index:  # partitions before have waited by themselves
            fenced = result.timing
        super()._finish(result, fenced)

    def _give_space_back(self, *, is_clean: bool) -> None:
        space, self._space = self._space, None
        if space is not None and self._model.spaces is not None:
            self._model.spaces.give_back(space, is_clean=is_clean)

    def _on_device_us(self, count: int) -> int:
        times = [
            run.get_execution_info()[2].time_on_device for run in self._runs[:count]
        ]
        return UINT64_MAX if UINT64_MAX in times else sum(times)
