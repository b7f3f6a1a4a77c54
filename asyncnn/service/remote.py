"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref

from asyncnn.callbacks import (
    IExecutionCallback,
    OneShot,
)
from asyncnn.errors import AsyncnnError
from asyncnn.hal.refusals import NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    Model,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules, validate_measure_timing
from asyncnn.service.connection import Connection
from asyncnn.service.staging import Staged, Staging

logger = logging.getLogger(__name__)


class RemotePreparedModel(NoFencesNorBursts):
    """Model ``number`` of a connection; the driver frees it when this object goes.

    Requests are validated here, so that launch errors are returned by the call, and
    again by the driver.
    """

    def __init__(self, connection: Connection, number: int, model: Model) -> None:
        self._connection = connection
        self._number = number
        self._rules = RequestRules(model)
        self._staging = Staging()
        weakref.finalize(self, connection.release_prepared_soon, number)

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
            staged = self._staging.stage(request)
            execution = self._connection.execute(
                self._number,
                staged.request if staged else request,
                measure,
                deadline,
                loop_timeout_duration,
                _Execution(self._staging, staged, callback, notify),
            )
        except AsyncnnError as error:
            callback.reason = str(error)
            notify(error.status, (), NO_TIMING)
            return error.status
        callback.link_to_death(lambda: self._connection.cancel(execution))
        return ErrorStatus.NONE


class _Execution:
    """One execution under way: copies outputs back and notifies."""

    __slots__ = ("_callback", "_notify", "_staged", "_staging")

    def __init__(
        self,
        staging: Staging,
        staged: Staged | None,
        callback: IExecutionCallback,
        notify: OneShot[[ErrorStatus, tuple[OutputShape, ...], Timing]],
    ) -> None:
        self._staging = staging
        self._staged = staged
        self._callback = callback
        self._notify = notify

    def __call__(
        self,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        reason: str,
    ) -> None:
        self._callback.unlink_to_death()
        if status is not ErrorStatus.NONE:
            logger.info("execution failed: %s: %s", status.name, reason)
            self._callback.reason = reason
        if self._staged is not None:
            if status is ErrorStatus.NONE:
                self._staged.copy_back()
            self._staging.give_back(self._staged)
        self._notify(status, shapes, timing)
