"""A prepared model of the framework: one partition or several.

One whose only partition is on the CPU, or is to have no fallback, needs none of this:
the framework gives out what the device has prepared. One on another device is handed
each request as it is; only how it ends is looked at. Several partitions go step by step
(`stepping`) or as a chain of fences (`fenced_chain`).
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import cast

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IExecutionCallback,
    launched,
    result_of,
)
from asyncnn.execution import Execution, binding_of, reusable
from asyncnn.fenced_run import FencedRun, Source, launcher_of
from asyncnn.hal.errors import closed_error
from asyncnn.hal.interfaces import cause_of_death
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments
from asyncnn.hal.routes import Route
from asyncnn.hal.types import ExecutionOptions
from asyncnn.hal.validate import RequestRules, plain_request, signature_of
from asyncnn.runtime.framework import Fallback
from asyncnn.runtime.framework.fenced_chain import ChainingModel, FencedChain
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.outcomes import LaterWatch, Watch, begin
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import Host, PreparedSteps
from asyncnn.runtime.framework.waiting_run import IStarted, WaitingRun

logger = logging.getLogger(__name__)

_NONE = hal.ErrorStatus.NONE


class FrameworkPreparedModel(ChainingModel):
    """An `IPreparedModel` of partitions that are prepared on several devices."""

    def __init__(self, prepared: PreparedSteps, fallback: Fallback, host: Host) -> None:
        super().__init__(prepared, fallback, host)
        model = prepared.arguments.model
        self.usual_route = Route(tuple(step.usual for step in self.steps))
        self.signature: hal.Model = signature_of(model)
        self.buffers = host.buffers.of(self.signature)
        self.waiting_runs = host.active
        self._rules = RequestRules(model)
        self._binding = binding_of(self.direct)
        self._plain = plain_request(model)
        self._output_bytes = [
            size_of_data_bytes(o.type, o.dimensions) for o in self.operands
        ]
        # If one of two neighbours is here, handing on takes a turn of the loop anyway.
        remote = [step.member.is_remote for step in self.steps]
        self._is_chained = (
            host.chains_drivers
            and any(both == (True, True) for both in pairwise(remote))
            and all(self._output_bytes)
        )

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        direct = self.direct
        if (
            direct is not None
            and deadline is None
            and not self.has_buffers
            and not self.health.has_failed
            and not self.host.is_closed
        ):
            kind = Watch if callback.takes_early_results else LaterWatch
            watch = kind(self, callback, request, measure, loop_timeout_duration)
            try:
                status = direct.execute_1_3(
                    request, measure, None, loop_timeout_duration, watch
                )
            except Exception as error:
                result = result_of(error)
                watch.reason = result.reason
                watch.notify_1_3(result.status, (), hal.NO_TIMING)
                return hal.ErrorStatus.NONE
            if watch.is_waiting:
                watch.wait()
            return hal.ErrorStatus.NONE if watch.falls_back else status
        return super().execute_1_3(
            request, measure, deadline, loop_timeout_duration, callback
        )

    def launch_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Awaitable[ExecutionResult] | None:
        """Have the only device launch on arrays; see `IBinding.launch_on`."""
        if (
            self._binding is None
            or self._plain is None
            or options.deadline is not None
            or self.has_buffers
            or self.health.has_failed
            or self.host.is_closed
        ):
            return None
        with suppress(Exception):  # what is wrong shows when it is executed
            end = self._binding.launch_on(tensors, options, are_usual)
            if end is not None:
                return self._watched(_Bound(end, tensors, self._plain), options)
        return None

    def create_reusable_execution(self, request: hal.Request) -> hal.Request:
        """Check a request; have the only device bind it, if there is only one."""
        if self.direct is not None and not self.has_buffers:
            return reusable(self.direct, request)
        self._rules.check(request)
        return Execution(request.inputs, request.outputs, request.pools, self)

    def launch(
        self, request: hal.Request, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch an execution, and return its end; see `IBinding.launch`."""
        return launched(self, request, options)

    async def _watched(
        self, bound: "_Bound", options: ExecutionOptions
    ) -> ExecutionResult:
        """Wait for what the only device executes, or go on where that fails."""
        try:
            self.host.active.add(bound)
            result = await bound.end
        except Exception as error:
            result = result_of(error)
        finally:
            self.host.ended(bound)
        if result.status is _NONE:
            if self.health.has_failed:
                self.health.succeeded()
            return result
        if self.was_closed_over(result.status):
            closed = closed_error()
            return replace(result, status=closed.status, reason=str(closed))
        if not self.recovers_from(result.status):
            return result
        callback = ExecutionFuture()
        begin(self, callback, bound.request(), options, result)
        return await callback

    def checked(self, request: hal.Request, *, is_fenced: bool) -> BuffersInUse | None:
        """Check a request; see `StartingModel.checked`."""
        if self.host.is_closed:
            raise closed_error()
        is_ours = type(request) is Execution and request.executable is self
        if is_fenced or not is_ours:
            self._rules.check(request, allow_unspecified_output=not is_fenced)
        return self.in_use(request)

    def start(
        self,
        request: hal.Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        notify: Callable[[ExecutionResult], None],
    ) -> IStarted:
        """Execute partition after partition; see `StartingModel.start`."""
        if self._is_chained and use is None and self._has_room(request):
            chain = FencedChain(self, request, options)
            chain.launch(())
            chain.add_done_callback(partial(self._chained, notify))
            return chain
        run = SteppedRun(self, request, options, notify, use)
        run.begin()
        return run

    def _chained(
        self, notify: Callable[[ExecutionResult], None], chain: FencedChain
    ) -> None:
        result = chain.result
        assert result is not None
        shapes = self.declared if result.status is _NONE else ()
        notify(replace(result, output_shapes=shapes))

    def _has_room(self, request: hal.Request) -> bool:
        return all(
            argument.has_no_value or argument.location.length >= size
            for argument, size in zip(request.outputs, self._output_bytes, strict=True)
        )

    def launch_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        :raises AsyncnnError: if it is not taken.
        """
        direct = self.direct
        kind: type[WaitingRun] = WaitingRun
        if (
            direct is not None
            and not self.has_buffers
            and not self.health.has_failed
            and not self.host.is_closed
        ):
            with suppress(Exception):  # what is wrong shows when it is executed
                run = launcher_of(direct)(request, wait_for, options)
                if run.status is _NONE:
                    return run
                chain = FencedChain(self, request, options)
                chain.adopt(run, wait_for)
                return chain
        else:
            kind = FencedChain
        return self.waiting(kind, request, wait_for, options)

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        return self.host.bursts.configure(self, *asked)

    @property
    def queued(self) -> hal.IPreparedModel | None:
        """The driver's model that has all of it; see `IRecovering`."""
        is_elsewhere = self.direct is not None and self.steps[0].member.is_remote
        return self.direct if is_elsewhere else None

    @property
    def is_well(self) -> bool:
        """Whether the only device has not failed lately; see `IRecovering`."""
        return self.direct is None or not self.health.has_failed

    def recover(
        self, request: hal.Request, options: ExecutionOptions, failure: ExecutionResult
    ) -> Awaitable[ExecutionResult]:
        """Go on where an execution has failed in a burst; see `IRecovering`."""
        callback = ExecutionFuture()
        begin(self, callback, request, options, failure)
        return callback

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why what was launched has failed; see `IMortal`.

        The CPU may compute other executions, in place of a device that has died.
        """
        if self.host.is_closed:
            return closed_error()
        return cause_of_death(*(step.prepared for step in self.steps))


class _Bound(msgspec.Struct, frozen=True, eq=False):
    """What the only device executes on tensors, and the request that they are."""

    end: Awaitable[ExecutionResult]
    _tensors: Sequence[object]
    _plain: hal.Request

    def request(self) -> hal.Request:
        arrays = cast("Sequence[Array]", self._tensors)
        pools = [hal.Memory("ashmem", a.nbytes, hal.Handle(), a.data) for a in arrays]
        return hal.Request(self._plain.inputs, self._plain.outputs, tuple(pools))

    def close(self) -> None:
        if isinstance(self.end, Completion):
            self.end.abandon()
