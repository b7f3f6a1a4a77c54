"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import time
import weakref
from collections.abc import Sequence
from functools import partial

from asyncnn.callbacks import (
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    OneShot,
)
from asyncnn.errors import AsyncnnError, MissedDeadlinePersistentError
from asyncnn.hal.interfaces import IBurstContext, ISyncFence
from asyncnn.hal.refusals import NoFencesNorBursts
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
from asyncnn.hal.validate import RequestRules, signature_of, validate_measure_timing
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.fenced import RemoteFenced
from asyncnn.service.client.staging import Staged, Staging

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
        self._model = model
        self._staging = Staging()
        weakref.finalize(self, connection.release_prepared_soon, number)

    @property
    def number(self) -> int:
        """The number that the driver knows the model by."""
        return self._number

    def is_on(self, connection: Connection) -> bool:
        """Tell whether that is the model's connection."""
        return self._connection is connection

    @property
    def signature(self) -> Model:
        """The inputs and outputs of the model; see `IDescribed`."""
        return signature_of(self._model)

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
        connection, number = self._connection, self._number
        try:
            validate_measure_timing(measure)
            # One that is bound was found correct, and can have changed in nothing.
            bound = connection.bindings.number_of(number, request)
            staged = None
            if bound is None:
                self._rules.check(request, allow_unspecified_output=True)
                staged = self._staging.stage(request)
                if staged:
                    request = staged.request
                    bound = connection.bindings.number_of(number, request)
                if bound is None:
                    bound = connection.bind(number, request)
            executed = _Execution(self._staging, staged, callback)
            if bound is None:
                execution = connection.execute(
                    number, request, measure, deadline, loop_timeout_duration, executed
                )
            else:
                execution = connection.execute_bound(
                    bound, measure, deadline, loop_timeout_duration, executed
                )
        except AsyncnnError as error:
            callback.reason = str(error)
            OneShot(callback.notify_1_3)(error.status, (), NO_TIMING)
            return error.status
        callback.link_to_death(partial(connection.cancel, execution))
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
        connection, number = self._connection, self._number
        try:
            validate_measure_timing(measure)
            self._rules.check(request, allow_unspecified_output=False)
            named = connection.fences.named(wait_for)
            _check_deadline(deadline)
            bound, request, staged = self._sendable(request)
            fenced = RemoteFenced(connection.fences, self._staging, staged)
            order = connection.order(
                number, bound, request, measure, deadline, loop_timeout_duration
            )
            connection.fences.execute(order, named, duration, fenced)
        except AsyncnnError as error:
            logger.info("fenced execution refused: %s: %s", error.status.name, error)
            return error.status, None, None
        return ErrorStatus.NONE, fenced.fence, fenced

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst; see `IPreparedModel.configure_execution_burst`."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT, None
        return await self._connection.bursts.configure(
            self._number, callback, request_channel, result_channel
        )

    def _sendable(self, request: Request) -> tuple[int | None, Request, Staged | None]:
        """Return a valid request in pools that travel, and its number if it has one.

        :raises AsyncnnError: if it cannot be staged or sent.
        """
        connection, number = self._connection, self._number
        bound = connection.bindings.number_of(number, request)
        if bound is not None:
            return bound, request, None
        staged = self._staging.stage(request)
        if staged:
            request = staged.request
            bound = connection.bindings.number_of(number, request)
        if bound is None:
            bound = connection.bind(number, request)
        return bound, request, staged


def _check_deadline(deadline: int | None) -> None:
    if deadline is not None and time.monotonic_ns() >= deadline:
        raise MissedDeadlinePersistentError("the deadline has passed already")


class _Execution:
    """One execution under way: copies outputs back and notifies.

    The connection calls it once, and shields itself from what it raises.
    """

    __slots__ = ("_callback", "_staged", "_staging")

    def __init__(
        self,
        staging: Staging,
        staged: Staged | None,
        callback: IExecutionCallback,
    ) -> None:
        self._staging = staging
        self._staged = staged
        self._callback = callback

    def __call__(
        self,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        reason: str,
    ) -> None:
        callback = self._callback
        callback.unlink_to_death()
        if status is not ErrorStatus.NONE:
            logger.info("execution failed: %s: %s", status.name, reason)
            callback.reason = reason
        if self._staged is not None:
            if status is ErrorStatus.NONE:
                self._staged.copy_back()
            self._staging.give_back(self._staged)
        callback.notify_1_3(status, shapes, timing)
