"""Executions of drivers of HAL 1.0 to 1.2, and what is made of their results.

A result that comes behind its deadline is a missed one. The driver may write to the
outputs until it answers, so nobody is notified before, unless it leaves that too long.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from asyncnn import hal
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import ExecutionResult, result_of
from asyncnn.deadlines import DEADLINE_GRACE_S, lateness, unanswered
from asyncnn.devices.device_buffers import Buffers
from asyncnn.fenced_run import too_many_fenced
from asyncnn.hal.errors import closed_error
from asyncnn.hal.types import UINT64_MAX, ExecutionOptions, OutputShapes
from asyncnn.hal.versions import v1_0, v1_2
from asyncnn.hal.versions.convert import convert_status
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.steps import ActiveExecutions, IClosable

_NONE = hal.ErrorStatus.NONE
_FAILED = hal.ErrorStatus.GENERAL_FAILURE


class OnAnswer(hal.CallbackObject):
    """The callback of a driver, of either kind; ``take`` gets what it is given."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[..., None]) -> None:
        super().__init__()
        self._take = take

    def notify(self, *answer: Any) -> None:
        """Pass it on."""
        self._take(*answer)

    notify_1_2 = notify


class OnAnswer1_0(OnAnswer, v1_0.IPreparedModelCallback, v1_0.IExecutionCallback):  # noqa: N801
    """One of HAL 1.0 and 1.1."""

    __slots__ = ()


class OnAnswer1_2(OnAnswer, v1_2.IPreparedModelCallback, v1_2.IExecutionCallback):  # noqa: N801
    """One of HAL 1.2."""

    __slots__ = ()


def on_answer_in(version: hal.HalVersion, take: Callable[..., None]) -> OnAnswer:
    """Return the callback of a driver of ``version``."""
    return (OnAnswer1_0 if version < hal.HalVersion.V1_2 else OnAnswer1_2)(take)


class OlderHost(ActiveExecutions):
    """What the prepared models of one driver share. It belongs to the event loop."""

    active: "set[OlderExecution]"  # type: ignore[assignment]

    def __init__(
        self,
        version: hal.HalVersion,
        buffers: Buffers,
        bursts: OpenBursts,
        max_waiting: int,
        cause_of_death: Callable[[], hal.DeviceUnavailableError | None],
    ) -> None:
        super().__init__(buffers, bursts)
        self.version = version
        self.tells_shapes = version >= hal.HalVersion.V1_2
        self.fenced: set[IClosable] = set()
        self.served: set[ServedBurst] = set()
        self._max_waiting = max_waiting
        self.cause_of_death = cause_of_death

    def check(self, *, is_fenced: bool) -> None:
        """Check that the driver takes one more execution.

        :raises DeviceUnavailableError: if it takes none.
        :raises ResourceExhaustedTransientError: if too many wait for fences.
        """
        cause = self.cause_of_death()
        if cause is not None:
            raise cause
        if is_fenced and len(self.fenced) >= self._max_waiting:
            raise too_many_fenced(self._max_waiting)

    async def aclose(self) -> None:
        """End bursts and what waits for fences; have the driver stop the rest.

        What it does not stop soon is not waited for any more.
        """
        self.bursts.close()
        for burst in tuple(self.served):
            burst.end()
        for run in tuple(self.fenced):
            run.close()
        for execution in tuple(self.active):
            execution.die()
        await self.wait_idle(DEADLINE_GRACE_S)
        for run in tuple(self.active):
            run.close()


class ServedBurst:
    """An `IBurstContext` of the driver's own, which ends with the device."""

    def __init__(self, host: OlderHost, context: hal.IBurstContext) -> None:
        self._host = host
        self._context = context
        self._death = hal.CallbackObject()
        self.free_memory = context.free_memory
        self.cancel = context.cancel
        self.link_to_death = self._death.link_to_death
        host.served.add(self)
        context.link_to_death(self.end)

    def close(self) -> None:
        """Release it; see `IBurstContext.close`."""
        self._host.served.discard(self)
        self._context.close()

    def end(self) -> None:
        """Release it, and report that no more results will come."""
        self.close()
        self._death.die()


class OlderExecution:
    """One execution of the driver, and what is made of its result."""

    def __init__(
        self,
        host: OlderHost,
        options: ExecutionOptions,
        completed: Callable[..., OutputShapes],
        use: BuffersInUse | None,
        notify: Callable[[ExecutionResult], None],
    ) -> None:
        self._host = host
        self._options = options
        self._completed = completed
        self._use = use
        self._notify = notify
        self._is_stopped = self._is_late = self._is_notified = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked_ns = time.monotonic_ns()
        self._callback = on_answer_in(host.version, self._take)
        self._early: ExecutionResult | None = None
        self._is_launched = False
        self.is_pending = True

    def launch(self, prepared: Any, request: v1_0.Request) -> None:
        """Give the driver's prepared model the request.

        :raises AsyncnnError: if it does not take it, whatever its callback got.
        """
        host, deadline, callback = self._host, self._options.deadline, self._callback
        host.active.add(self)
        if deadline is not None:
            delay = (deadline - self._asked_ns) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)
        try:
            if host.tells_shapes:
                measure = hal.MeasureTiming(self._options.measure)
                status = prepared.execute_1_2(request, measure, callback)
            else:
                status = prepared.execute(request, callback)
        except (Exception, asyncio.CancelledError) as error:
            self._forget()
            raise hal.failure_of(error) from error
        status = convert_status(status, host.version)
        if status is not _NONE:
            self._forget()
            raise hal.error_for(status, callback.reason)
        self._is_launched = True
        if self._early is not None:
            self._deliver(self._early)

    def die(self) -> None:
        """Have the driver stop, if it can, as nobody wants the result any more."""
        if self.is_pending:
            self._is_stopped = True
            self._callback.die()

    def close(self) -> None:
        """Report that it has failed, as the device is closed."""
        self._give_up(self._host.cause_of_death() or closed_error())

    def _expire(self) -> None:
        self._is_late = True
        self.die()
        if self.is_pending:  # it may have stopped at once
            late = unanswered(DEADLINE_GRACE_S)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DEADLINE_GRACE_S, self._give_up, late)

    def _give_up(self, error: hal.AsyncnnError) -> None:
        """Report an error; buffers are in use until the driver has answered."""
        self._leave()
        if not self._is_notified:
            self._is_notified = True
            self._notify(result_of(error, is_left=True))

    def _take(self, *answer: Any) -> None:
        if not self.is_pending:
            return  # the driver has notified its callback before
        try:
            result = self._result(*answer)
        except Exception as error:  # it may be anything
            self._callback.reason = (
                f"the driver's answer is wrong: {hal.failure_of(error)}"
            )
            result = self._result(_FAILED)
        self._forget()
        if self._is_launched:
            self._deliver(result)
        else:
            self._early = result

    def _forget(self) -> None:
        if not self.is_pending:
            return
        self.is_pending = False
        del self._completed  # has the request, and this goes with the next collection
        self._leave()

    def _leave(self) -> None:
        self._host.ended(self)
        if self._timer is not None:
            self._timer.cancel()

    def _deliver(self, result: ExecutionResult) -> None:
        if self._use is not None:
            self._use.end(result.status, result.output_shapes)
        if not self._is_notified:
            self._is_notified = True
            self._notify(result)

    def _result(
        self,
        status: hal.ErrorStatus,
        shapes: OutputShapes = (),
        timing: hal.Timing = hal.NO_TIMING,
    ) -> ExecutionResult:
        status = convert_status(status, self._host.version)
        shapes = self._completed(status, shapes)
        reason, deadline = self._callback.reason, self._options.deadline
        now = time.monotonic_ns()
        if status in (_NONE, _FAILED):
            if deadline is not None and (self._is_late or now >= deadline):
                status, shapes = hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT, ()
                reason = lateness(deadline, self._asked_ns)
            elif status is _FAILED and self._is_stopped:
                status = hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
                reason = "the execution was cancelled"
        if status is not _NONE or self._options.measure != hal.MeasureTiming.YES:
            return ExecutionResult(status, shapes, hal.NO_TIMING, reason)
        in_driver_us = (now - self._asked_ns) // 1000
        on_device_us = timing.time_on_device
        if not 0 <= on_device_us <= UINT64_MAX:
            raise hal.GeneralFailureError(f"a timing of {on_device_us} us")
        if on_device_us != UINT64_MAX:
            in_driver_us = max(in_driver_us, on_device_us)
        return ExecutionResult(status, shapes, hal.Timing(on_device_us, in_driver_us))
