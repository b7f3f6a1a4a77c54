"""The reference device's prepared model."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from asyncnn.burst import OpenBursts
from asyncnn.callbacks import (
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    OneShot,
)
from asyncnn.devices.buffers import Buffers
from asyncnn.devices.fenced import FencedExecutions, FencedJob
from asyncnn.devices.inline import Inliner
from asyncnn.devices.settings import DeviceSettings
from asyncnn.devices.statistics import ModelStatistics
from asyncnn.devices.work import ExecuteWork, ReportExecuted
from asyncnn.engine import Program
from asyncnn.errors import (
    AsyncnnError,
    MissedDeadlinePersistentError,
    OutputInsufficientSizeError,
)
from asyncnn.hal.interfaces import IBurstContext, ISyncFence
from asyncnn.hal.refusals import NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    Handle,
    MeasureTiming,
    Model,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules, signature_of, validate_measure_timing
from asyncnn.qos import Client, Scheduler, Survey, Tally, calling_client

logger = logging.getLogger(__name__)

NotifyExecuted: TypeAlias = OneShot[[ErrorStatus, tuple[OutputShape, ...], Timing]]
"""The notification of an `IExecutionCallback`, given once."""


class ReferencePreparedModel(NoFencesNorBursts):
    """A program and the scheduler that executes it.

    Executions of one prepared model have its priority and may overlap. It was prepared
    for the client of number ``client``. One that ``stays_ready`` keeps its memory while
    its device is idle. ``buffers`` is its way to device-managed ones.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        fenced: FencedExecutions,
        bursts: OpenBursts,
        buffers: Buffers,
        priority: Priority,
        settings: DeviceSettings,
        *,
        client: int,
        stays_ready: bool = False,
    ) -> None:
        self._program = program
        self._scheduler = scheduler
        self._fenced = fenced
        self._bursts = bursts
        self._priority = priority
        self._client = client
        self._rules = RequestRules(program.model)
        self._refuses_hopeless = settings.refuses_hopeless
        self.buffers = buffers.of(signature_of(program.model))
        self._tally = Tally()
        self._inliner = Inliner(
            program,
            settings.inline_below_us * 1000,
            partial(scheduler.count_inline, self._tally),
        )
        self.stays_ready = stays_ready

    @property
    def signature(self) -> Model:
        """The inputs and outputs of the model; see `IDescribed`."""
        return signature_of(self._program.source)

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
        notify: NotifyExecuted = OneShot(callback.notify_1_3)
        try:
            self._rules.check(request, allow_unspecified_output=True)
            validate_measure_timing(measure)
            use = self.buffers.use(request)
            if use is not None:
                request = use.claim()
                notify = OneShot(use.settling(notify))
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
        try:
            self._rules.check(request, allow_unspecified_output=False)
            validate_measure_timing(measure)
            use = self.buffers.use(request)
            is_bound = wait_for or deadline is not None or duration is not None
            if not is_bound and self._inliner.is_due and self._fenced.has_turn:
                done = self._fenced.run_at_once(self._inliner, request, measure, use)
                return ErrorStatus.NONE, *done
            job = FencedJob(
                self._work,
                self._inliner,
                calling_client.get(),
                request,
                measure,
                deadline,
                loop_timeout_duration,
                duration,
                use,
            )
            fence, outcome = self._fenced.launch(job, wait_for)
        except AsyncnnError as error:
            logger.info("fenced execution refused: %s: %s", error.status.name, error)
            return error.status, None, None
        return ErrorStatus.NONE, fence, outcome

    def statistics(self, number: int, survey: Survey) -> ModelStatistics:
        """Return what became of this model's executions; ``number`` names it."""
        return ModelStatistics(
            number=number,
            client=self._client,
            operations=len(self._program.model.main.operations),
            priority=self._priority,
            executions=survey.of(self._tally),
            idle_bytes=self._program.idle_bytes,
        )

    def trim(self) -> int:
        """Free the buffers that no execution uses; return their bytes."""
        return self._program.trim()

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`."""
        return self._bursts.configure(self, callback, request_channel, result_channel)

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
        report = partial(self._executed, callback, notify)
        work = self._work(
            calling_client.get(),
            request,
            measure,
            deadline,
            loop_timeout_duration,
            report,
        )
        self._scheduler.submit(work)
        callback.link_to_death(
            partial(
                self._scheduler.cancel, work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            )
        )

    def _work(
        self,
        client: Client,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        report: ReportExecuted,
    ) -> ExecuteWork:
        return ExecuteWork(
            self._program,
            request,
            measure,
            self._priority,
            deadline,
            loop_timeout_duration,
            report,
            client=client,
            least_ns=self._inliner.certain_ns if self._refuses_hopeless else 0,
            tally=self._tally,
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
