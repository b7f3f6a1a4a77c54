"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref
from collections.abc import Sequence

from asyncnn.callbacks import (
    ExecutionFuture,
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    OneShot,
)
from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    Handle,
    MeasureTiming,
    Model,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules
from asyncnn.service.connection import Connection
from asyncnn.service.staging import Staged, Staging

logger = logging.getLogger(__name__)


class RemotePreparedModel:
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
            if measure not in (MeasureTiming.NO, MeasureTiming.YES):
                raise InvalidArgumentError(f"{measure} is not a MeasureTiming")
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
