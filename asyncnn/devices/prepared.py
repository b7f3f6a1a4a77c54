"""The reference device's prepared model."""

import logging
from collections.abc import Sequence
from functools import partial

from asyncnn.callbacks import (
    ExecutionFuture,
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    OneShot,
)
from asyncnn.devices.work import ExecuteWork
from asyncnn.engine import Program
from asyncnn.errors import (
    AsyncnnError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
)
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    Handle,
    MeasureTiming,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules
from asyncnn.qos import Scheduler

logger = logging.getLogger(__name__)

_FORGETTING = 1.02
"""Growth per execution of the least duration seen, which decides on inlining. One run
that was disturbed does not count; a model that became slow is noticed within some tens.
"""


class ReferencePreparedModel:
    """A program and the scheduler that executes it.

    Executions of one prepared model have its priority and may overlap. Bursts and
    fenced executions are refused with GENERAL_FAILURE.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        priority: Priority,
        inline_below_ns: float,
    ) -> None:
        self._program = program
        self._scheduler = scheduler
        self._priority = priority
        self._rules = RequestRules(program.model)
        self._inline_below_ns = inline_below_ns
        self._least_run_ns = float("inf")
        self._runs_inline = False

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
        report = partial(self._executed, OneShot(callback.notify_1_3), callback)
        try:
            self._rules.check(request, allow_unspecified_output=True)
            _check_measure(measure)
            work = ExecuteWork(
                self._program,
                request,
                measure,
                self._priority,
                deadline,
                loop_timeout_duration,
                report,
            )
            if self._runs_inline and self._scheduler.is_idle:
                early = callback.takes_early_results
                self._scheduler.submit_inline(work, finish_now=early)
                return ErrorStatus.NONE
            self._scheduler.submit(work)
        except AsyncnnError as error:
            report(error, (), NO_TIMING, 0)
            # A deadline that has passed is an outcome, not an error of the call.
            missed = isinstance(error, MissedDeadlinePersistentError)
            return ErrorStatus.NONE if missed else error.status
        callback.link_to_death(
            partial(
                self._scheduler.cancel, work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            )
        )
        return ErrorStatus.NONE

    async def execute_synchronously_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
    ) -> tuple[ErrorStatus, tuple[OutputShape, ...], Timing]:
        """Execute; see `IPreparedModel.execute_synchronously_1_3`."""
        callback = ExecutionFuture()
        self.execute_1_3(request, measure, deadline, loop_timeout_duration, callback)
        result = await callback
        return result.status, result.output_shapes, result.timing

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Handle],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, Handle, IFencedExecutionCallback | None]:
        """Refuse: this device has no fences."""
        return ErrorStatus.GENERAL_FAILURE, Handle(), None

    def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Refuse: this device has no message queues."""
        return ErrorStatus.GENERAL_FAILURE, None

    def _executed(
        self,
        notify: OneShot[[ErrorStatus, tuple[OutputShape, ...], Timing]],
        callback: IExecutionCallback,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        run_ns: int,
    ) -> None:
        callback.unlink_to_death()
        if error is None:
            self._observe(run_ns)
            notify(ErrorStatus.NONE, shapes, timing)
            return
        logger.info("execution failed: %s: %s", error.status.name, error)
        callback.reason = str(error)
        notify(error.status, shapes, timing)

    def _observe(self, run_ns: int) -> None:
        """Learn how long executions take, to decide where the next one runs."""
        self._least_run_ns = min(run_ns, self._least_run_ns * _FORGETTING)
        self._runs_inline = (
            self._least_run_ns < self._inline_below_ns
            and self._program.declared_shapes is not None
        )


def _check_measure(measure: MeasureTiming) -> None:
    if measure not in (MeasureTiming.NO, MeasureTiming.YES):
        raise InvalidArgumentError(f"{measure} is not a MeasureTiming")
