"""How executions of the framework end, as their callbacks are notified.

`CallbackReport` reports the result of what went step by step, as `begin` has it.
"""

import asyncio
import logging

from asyncnn.callbacks import ExecutionResult, IExecutionCallback, OneShot
from asyncnn.hal.types import ErrorStatus, ExecutionOptions, Request
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import Partitioned

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE


class CallbackReport:
    """Tells a callback the result of a run, and not before its call has returned.

    Unless it takes results so early: ``is_called`` is True until then.
    """

    __slots__ = ("_callback", "is_called")

    def __init__(self, callback: IExecutionCallback) -> None:
        self._callback = callback
        self.is_called = True

    def __call__(self, result: ExecutionResult) -> None:
        """Tell the result, in a later turn of the loop if it has come too early."""
        if self.is_called and not self._callback.takes_early_results:
            asyncio.get_running_loop().call_soon(self._tell, result)
        else:
            self._tell(result)

    def _tell(self, result: ExecutionResult) -> None:
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
    request: Request,
    options: ExecutionOptions,
    use: BuffersInUse | None = None,
    failure: ExecutionResult | None = None,
) -> None:
    """Execute step by step, and notify a callback; the first failed by ``failure``.

    :raises GeneralFailureError: as `SteppedRun`.
    """
    report = CallbackReport(callback)
    run = SteppedRun(model, request, options, report, use)
    run.begin(failure=failure)
    report.is_called = False
    if not run.is_over:
        callback.link_to_death(run.die)
