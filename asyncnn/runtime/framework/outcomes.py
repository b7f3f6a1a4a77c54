"""How executions of the framework end, as their callbacks are notified.

`Watch` stands between a device that has all of a model and the client, and looks at the
status alone. `CallbackReport` reports the result of what went step by step, as `begin`
has it.
"""

import asyncio
import logging
from typing import ClassVar

import msgspec

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult, IExecutionCallback, OneShot
from asyncnn.hal.errors import closed_error
from asyncnn.hal.types import ExecutionOptions, OutputShapes
from asyncnn.hal.validate import execution_options
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import Partitioned

logger = logging.getLogger(__name__)

_NONE = hal.ErrorStatus.NONE


class Watch(IExecutionCallback):
    """Looks at how the only partition ends, and otherwise passes that on."""

    takes_early_results: ClassVar[bool] = True

    __slots__ = (
        "_callback",
        "_is_linked",
        "_loop_timeout",
        "_measure",
        "_model",
        "_request",
        "falls_back",
        "is_waiting",
    )

    def __init__(
        self,
        model: Partitioned,
        callback: IExecutionCallback,
        request: hal.Request,
        measure: hal.MeasureTiming,
        loop_timeout: int | None,
    ) -> None:
        # All here, as a call of the base would be felt with tiny models.
        self.reason = ""
        self._is_dead = False
        self._recipients = []
        self._model = model
        self._callback = callback
        self._request = request
        self._measure = measure
        self._loop_timeout = loop_timeout
        self._is_linked = False
        self.is_waiting = True
        self.falls_back = False

    def wait(self) -> None:
        """End when the client does not wait any more, or the framework is closed."""
        self._is_linked = True
        self._model.host.active.add(self)
        self._callback.link_to_death(self.die)

    def notify_1_3(
        self, status: hal.ErrorStatus, output_shapes: OutputShapes, timing: hal.Timing
    ) -> None:
        """Pass the outcome on, unless the CPU may do better."""
        self.is_waiting = False
        callback, model = self._callback, self._model
        if self._is_linked:
            model.host.ended(self)
            callback.unlink_to_death()
        if status is _NONE and model.health.has_failed:
            model.health.succeeded()
        is_final = self._is_dead or self.is_left  # it may write yet: nobody else does
        if model.was_closed_over(status):
            error = closed_error()
            status, self.reason = error.status, str(error)
        if status is _NONE or is_final or not model.recovers_from(status):
            callback.reason = self.reason
            if self.is_left:
                callback.is_left = True
            callback.notify_1_3(status, output_shapes, timing)
            return
        self.falls_back = True
        options = execution_options(self._measure, None, self._loop_timeout)
        failure = ExecutionResult(status, (), hal.NO_TIMING, self.reason)
        begin(model, callback, self._request, options, failure)

    def close(self) -> None:
        """Have the device stop: that, or its result, is passed on when it has."""
        self.die()


class LaterWatch(Watch):
    """The same for callbacks that must not be notified before the call returns."""

    takes_early_results: ClassVar[bool] = False

    __slots__ = ()


class CallbackReport(msgspec.Struct, eq=False):
    """Notifies a callback of the result of a run, not before its call has returned.

    Unless it takes results so early: ``is_called`` is True until then.
    """

    _callback: IExecutionCallback
    is_called: bool = True

    def __call__(self, result: ExecutionResult) -> None:
        """Report the result, in a later turn of the loop if it has come too early."""
        if self.is_called and not self._callback.takes_early_results:
            asyncio.get_running_loop().call_soon(self._notify, result)
        else:
            self._notify(result)

    def _notify(self, result: ExecutionResult) -> None:
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = result.reason
        if result.is_left:
            callback.is_left = True
        if result.route is not None:
            try:
                callback.took(result.route)
            except (Exception, asyncio.CancelledError):  # the result is still reported
                logger.exception("a callback failed as it was notified of a route")
        OneShot(callback.notify_1_3)(result.status, result.output_shapes, result.timing)


def begin(
    model: Partitioned,
    callback: IExecutionCallback,
    request: hal.Request,
    options: ExecutionOptions,
    failure: ExecutionResult,
) -> None:
    """Execute step by step, and notify a callback; the first has failed already."""
    report = CallbackReport(callback)
    run = SteppedRun(model, request, options, report)
    run.begin(failure=failure)
    report.is_called = False
    if run.is_pending:
        callback.link_to_death(run.die)
