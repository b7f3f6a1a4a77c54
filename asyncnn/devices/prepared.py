"""The reference device's prepared model."""

import logging
from functools import partial
from typing import TypeAlias

from asyncnn.callbacks import (
    IExecutionCallback,
    OneShot,
)
from asyncnn.devices.inline import Inliner
from asyncnn.devices.work import ExecuteWork
from asyncnn.engine import Program
from asyncnn.errors import (
    AsyncnnError,
    MissedDeadlinePersistentError,
    OutputInsufficientSizeError,
)
from asyncnn.hal.refusals import NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules, validate_measure_timing
from asyncnn.qos import Scheduler

logger = logging.getLogger(__name__)

NotifyExecuted: TypeAlias = OneShot[[ErrorStatus, tuple[OutputShape, ...], Timing]]
"""The notification of an `IExecutionCallback`, given once."""


class ReferencePreparedModel(NoFencesNorBursts):
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
        self._inliner = Inliner(program, inline_below_ns)

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
        notify = OneShot(callback.notify_1_3)
        try:
            self._rules.check(request, allow_unspecified_output=True)
            validate_measure_timing(measure)
            if self._inliner.is_due and deadline is None and self._scheduler.is_idle:
                self._execute_inline(request, measure, callback, notify)
            else:
                self._schedule(
                    request, measure, deadline, loop_timeout_duration, callback, notify
                )
        except AsyncnnError as error:
            _fail(callback, notify, error)
            # A deadline that has passed is an outcome, not an error of the call.
            missed = isinstance(error, MissedDeadlinePersistentError)
            return ErrorStatus.NONE if missed else error.status
        return ErrorStatus.NONE

    def _execute_inline(
        self,
        request: Request,
        measure: MeasureTiming,
        callback: IExecutionCallback,
        notify: NotifyExecuted,
    ) -> None:
        """Execute now and notify: at once where that is allowed, else soon."""
        try:
            shapes, run_ns = self._inliner.run(request)
        except AsyncnnError as error:
            self._scheduler.call_soon(_fail, callback, notify, error)
            return
        timing = NO_TIMING
        if measure == MeasureTiming.YES:
            timing = Timing(run_ns // 1000, run_ns // 1000)
        if callback.takes_early_results:
            notify(ErrorStatus.NONE, shapes, timing)
        else:
            self._scheduler.call_soon(notify, ErrorStatus.NONE, shapes, timing)

    def _schedule(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback,
        notify: NotifyExecuted,
    ) -> None:
        work = ExecuteWork(
            self._program,
            request,
            measure,
            self._priority,
            deadline,
            loop_timeout_duration,
            partial(self._executed, callback, notify),
        )
        self._scheduler.submit(work)
        callback.link_to_death(
            partial(
                self._scheduler.cancel, work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            )
        )

    def _executed(
        self,
        callback: IExecutionCallback,
        notify: NotifyExecuted,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        run_ns: int,
    ) -> None:
        callback.unlink_to_death()
        if error is not None:
            _fail(callback, notify, error)
            return
        self._inliner.observe(run_ns)
        notify(ErrorStatus.NONE, shapes, timing)


def _fail(
    callback: IExecutionCallback, notify: NotifyExecuted, error: AsyncnnError
) -> None:
    logger.info("execution failed: %s: %s", error.status.name, error)
    callback.reason = str(error)
    shapes: tuple[OutputShape, ...] = ()
    if isinstance(error, OutputInsufficientSizeError):
        shapes = error.output_shapes
    notify(error.status, shapes, NO_TIMING)
