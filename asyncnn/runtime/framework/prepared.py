"""A prepared model of the framework: one partition or several.

One whose only partition is on the CPU, or is to have no fallback, needs none of this:
the framework gives out what the device has prepared. One on another device is handed
each request as it is; only how it ends is looked at. Several partitions go step by step
(`stepping`) or as a chain of fences (`fenced_chain`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from itertools import pairwise
from typing import cast

from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    SynchronousByCallback,
    launched,
)
from asyncnn.devices.buffer_use import BufferUse
from asyncnn.devices.device_buffers import Buffers
from asyncnn.execution import binding_of
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    failure_of,
)
from asyncnn.hal.interfaces import (
    IBurstContext,
    IPreparedModel,
    ISyncFence,
    cause_of_death,
)
from asyncnn.hal.operands import is_scalar, size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import refuse_execution
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    Handle,
    MeasureTiming,
    Memory,
    Model,
    OutputShape,
    Request,
)
from asyncnn.hal.validate import (
    RequestRules,
    execution_options,
    plain_request,
    signature_of,
)
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.burst_model import BurstModel
from asyncnn.runtime.framework.fallback import FINAL, closed_error
from asyncnn.runtime.framework.fenced_chain import FencedChain, UnfencedChain
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.outcomes import LaterWatch, Report, Watch
from asyncnn.runtime.framework.partition_preparing import Prepared
from asyncnn.runtime.framework.spaces import Spaces
from asyncnn.runtime.framework.stepping import IClosable, SteppedRun

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE


class Host:
    """What prepared models have of their framework: what ends with it.

    ``active`` are executions under way. ``is_closed`` is set once it is closed.
    """

    def __init__(
        self, buffers: Buffers, bursts: OpenBursts, settings: FrameworkSettings
    ) -> None:
        self.buffers = buffers
        self.bursts = bursts
        self.max_intermediate_bytes = settings.max_intermediate_bytes
        self.chains_drivers = settings.chains_drivers
        self.active: set[IClosable] = set()
        self.is_closed = False
        self._waiting: asyncio.Future[None] | None = None

    def ended(self, active: IClosable) -> None:
        """Note that an execution has ended."""
        self.active.discard(active)
        if self._waiting is not None and not self.active and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait_idle(self) -> None:
        """Wait until nothing is executed; nothing more must be launched."""
        if self.active:
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiting)


class FrameworkPreparedModel(SynchronousByCallback):
    """An `IPreparedModel` of partitions that are prepared on several devices."""

    def __init__(self, prepared: Prepared, fallback: Fallback, host: Host) -> None:
        model = prepared.arguments.model
        self.plan = prepared.plan
        self.steps = prepared.steps
        self.whole = prepared.whole
        self.fallback = fallback
        self.spaces: Spaces | None = None
        if prepared.submodels is not None:
            most = host.max_intermediate_bytes
            self.spaces = Spaces(prepared.submodels, most, prepared.reservation)
        operands = [model.main.operands[i] for i in model.main.output_indexes]
        self.declared = tuple(
            OutputShape(() if is_scalar(o.type) else o.dimensions, True)
            for o in operands
        )
        self.usual_route = Route(tuple(step.usual for step in self.steps))
        self.signature: Model = signature_of(model)
        self.buffers = host.buffers.of(self.signature)
        self.has_buffers = False
        self.refusal = ""
        self._host = host
        self._rules = RequestRules(model)
        self._direct = self.steps[0].prepared if len(self.steps) == 1 else None
        self._binding = binding_of(self._direct)
        self._plain = plain_request(model)
        self.health = self.steps[0].member.health
        self._output_bytes = [
            size_of_data_bytes(o.type, o.dimensions) for o in operands
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
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        direct = self._direct
        if (
            direct is not None
            and deadline is None
            and not self.has_buffers
            and not self.health.has_failed
            and not self._host.is_closed
        ):
            kind = Watch if callback.takes_early_results else LaterWatch
            watch = kind(self, callback, request, measure, loop_timeout_duration)
            try:
                status = direct.execute_1_3(
                    request, measure, None, loop_timeout_duration, watch
                )
            except Exception as error:
                failure = failure_of(error)
                watch.reason = str(failure)
                watch.notify_1_3(failure.status, (), NO_TIMING)
                return ErrorStatus.NONE
            if watch.is_waiting:
                watch.wait()
            return ErrorStatus.NONE if watch.falls_back else status
        return self._step_by_step(
            request, measure, deadline, loop_timeout_duration, callback
        )

    def bind(
        self, tensors: Sequence[object], request: Request | None = None
    ) -> "_Bound | None":
        """Have the only device bind arrays; see `IBinding.bind`."""
        if (
            self._binding is None
            or request is not None
            or self._plain is None
            or self.has_buffers
            or self.health.has_failed
            or self._host.is_closed
        ):
            return None
        execution = self._binding.bind(tensors)
        return None if execution is None else _Bound(execution, tensors, self._plain)

    def launch(
        self, execution: "_Bound | Request", options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch an execution, and return its end; see `IBinding.launch`."""
        if isinstance(execution, _Bound):
            if options.deadline is None:
                return self._bound(execution, options)
            execution = execution.request()
        return launched(self, execution, options)

    async def _bound(
        self, bound: "_Bound", options: ExecutionOptions
    ) -> ExecutionResult:
        """Execute what the only device has bound, or go on where that fails."""
        assert self._binding is not None
        active = self._host.active
        try:
            end = bound.end = self._binding.launch(bound.execution, options)
            active.add(bound)
            result = await end
        except Exception as error:
            failure = failure_of(error)
            result = ExecutionResult(failure.status, (), NO_TIMING, str(failure))
        finally:
            self.ended(bound)
        if result.status is _NONE:
            if self.health.has_failed:
                self.health.succeeded()
            return result
        if not self.recovers_from(result.status):
            return result
        callback = ExecutionFuture()
        failed = result.status, result.reason
        self.fall_back(callback, bound.request(), options, failed)
        return await callback

    def _step_by_step(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout: int | None,
        callback: IExecutionCallback,
    ) -> ErrorStatus:
        use: BuffersInUse | None = None
        try:
            if self._host.is_closed:
                raise closed_error()
            if not self._rules.remembers(request):
                self._rules.check(request)
                use = self._in_use(self.buffers.use(request))
            options = execution_options(measure, deadline, loop_timeout)
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise MissedDeadlinePersistentError("the deadline has passed already")
            if use is not None:
                request = use.begin(request)
        except AsyncnnError as error:
            if use is not None:
                use.end(error.status, ())
            status = refuse_execution(callback, error)
            # A deadline that has passed is an outcome, not an error of the call.
            missed = isinstance(error, MissedDeadlinePersistentError)
            return _NONE if missed else status
        report = Report(callback, use)
        if self._is_chained and use is None and self._has_room(request):
            chain = UnfencedChain(self, request, options, report)
            chain.launch(())
            report.is_called = False
            if not chain.is_done:
                callback.link_to_death(chain.cancel)
            return _NONE
        run = SteppedRun(self, request, options, report)
        run.begin()
        report.is_called = False
        if not run.is_over:
            callback.link_to_death(run.die)
        return _NONE

    def _has_room(self, request: Request) -> bool:
        """Tell whether the outputs have enough room, which fences say nothing of."""
        return all(
            argument.has_no_value or argument.location.length >= size
            for argument, size in zip(request.outputs, self._output_bytes, strict=True)
        )

    def fall_back(
        self,
        callback: IExecutionCallback,
        request: Request,
        options: ExecutionOptions,
        failure: tuple[ErrorStatus, str],
    ) -> None:
        """Go on where the only partition has failed."""
        report = Report(callback, None)
        run = SteppedRun(self, request, options, report)
        run.begin_at(0, None, failure=failure)
        report.is_called = False
        if not run.is_over:
            callback.link_to_death(run.die)

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, ISyncFence | None, IFencedExecutionCallback | None]:
        """Launch a fenced execution; see `IPreparedModel.execute_fenced`."""
        direct, was_refused = self._direct, False
        if (
            direct is not None
            and not self.has_buffers
            and not self.health.has_failed
            and not self._host.is_closed
        ):
            was_refused = True
            try:
                launched = direct.execute_fenced(
                    request,
                    wait_for,
                    measure,
                    deadline,
                    loop_timeout_duration,
                    duration,
                )
            except Exception as error:  # what is wrong shows when it is executed
                launched = failure_of(error).status, None, None
            _, fence, callback = launched
            if callback is not None:
                if fence is None:
                    return launched
                options = ExecutionOptions(
                    measure, deadline, loop_timeout_duration, duration
                )
                chain = FencedChain(self, request, options, None)
                chain.adopt(callback, fence, wait_for)
                return _NONE, chain.fence, chain
        try:
            if self._host.is_closed:
                raise closed_error()
            use = None
            if not self._rules.remembers(request):
                self._rules.check(request, allow_unspecified_output=False)
                use = self._in_use(self.buffers.use(request))
            options = execution_options(
                measure, deadline, loop_timeout_duration, duration
            )
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise MissedDeadlinePersistentError("the deadline has passed already")
            chain = FencedChain(self, request, options, use)
            chain.launch(active_fences(wait_for), was_refused=was_refused)
        except AsyncnnError as error:
            logger.info("fenced execution refused: %s: %s", error.status.name, error)
            self.refusal = str(error)
            return error.status, None, None
        if chain.is_done and chain.get_execution_info()[0] is _NONE and not wait_for:
            return _NONE, None, chain
        return _NONE, chain.fence, chain

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`."""
        return self.serve_burst(self, callback, request_channel, result_channel)

    def serve_burst(
        self,
        prepared: IPreparedModel,
        callback: IBurstCallback | None,
        requests: Handle,
        results: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst of ``prepared`` in this process."""
        return self._host.bursts.configure(prepared, callback, requests, results)

    def _in_use(self, use: BufferUse | None) -> BuffersInUse | None:
        return None if use is None else BuffersInUse(use, self.signature)

    def for_burst(self) -> BurstModel:
        """Return the model for a burst of this process; see `IRecovering`."""
        return BurstModel(self)

    async def configure_directly(
        self, callback: IBurstCallback | None, requests: Handle, results: Handle
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Have the only device serve a burst itself, or else serve it here."""
        direct = self._direct
        if direct is not None and not self.health.has_failed:
            status, context = await direct.configure_execution_burst(
                callback, requests, results
            )
            if status is _NONE:
                return status, context
        return ErrorStatus.GENERAL_FAILURE, None

    @property
    def is_well(self) -> bool:
        """Whether the only device has not failed lately; see `IRecovering`."""
        return self._direct is None or not self.health.has_failed

    def recovers_from(self, status: ErrorStatus) -> bool:
        """Tell whether `execute_1_3` may do better; see `IRecovering`."""
        return (
            self.fallback is not Fallback.FORBID
            and status not in FINAL
            and not self._host.is_closed
        )

    def recover(
        self,
        request: Request,
        options: ExecutionOptions,
        callback: IExecutionCallback,
        failure: ExecutionResult,
    ) -> None:
        """Go on where an execution has failed in a burst; see `IRecovering`."""
        if self._direct is None:
            # It has gone step by step, and no other device could compute it.
            callback.reason = failure.reason
            callback.notify_1_3(failure.status, failure.output_shapes, NO_TIMING)
            return
        self.fall_back(callback, request, options, (failure.status, failure.reason))

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why what was launched has failed; see `IMortal`.

        The CPU may compute other executions, in place of a device that has died.
        """
        if self._host.is_closed:
            return closed_error()
        return cause_of_death(*(step.prepared for step in self.steps))

    def began(self, run: IClosable) -> None:
        """Note that an execution has begun."""
        self._host.active.add(run)

    def ended(self, run: IClosable) -> None:
        """Note that an execution has ended."""
        self._host.ended(run)


class _Bound:
    """What the only device has bound to ``tensors``, and the request that they are."""

    __slots__ = ("_plain", "_tensors", "end", "execution")

    def __init__(
        self, execution: object, tensors: Sequence[object], plain: Request
    ) -> None:
        self.execution = execution
        self._tensors = tensors
        self._plain = plain
        self.end: Awaitable[ExecutionResult] | None = None

    def request(self) -> Request:
        """Return the request that others can execute."""
        arrays = cast("Sequence[Array]", self._tensors)
        pools = [Memory("ashmem", a.nbytes, Handle(), a.data) for a in arrays]
        return Request(self._plain.inputs, self._plain.outputs, tuple(pools))

    def close(self) -> None:
        """Have the device stop, as the framework is closed."""
        if isinstance(self.end, Completion):
            self.end.abandon()
