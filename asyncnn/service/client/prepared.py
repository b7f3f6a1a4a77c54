"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref
from collections.abc import Sequence
from functools import partial

from asyncnn.callbacks import (
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    OneShot,
)
from asyncnn.grace import check_deadline
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    failure_of,
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
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules, signature_of, validate_measure_timing
from asyncnn.logs import EXECUTION
from asyncnn.service.caches import to_send
from asyncnn.service.client.answers import DeferredExecutions, Executed
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
        self._staging = connection.new_staging()
        self.refusal = ""
        weakref.finalize(self, connection.release_prepared_soon, number)

    @property
    def number(self) -> int:
        """The number that the driver knows the model by."""
        return self._number

    def is_on(self, connection: Connection) -> bool:
        """Tell whether that is the model's connection."""
        return self._connection is connection

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why its connection has ended; see `IMortal`."""
        return self._connection.cause_of_death()

    async def save_to_cache(
        self, model_cache: Handle, data_cache: Handle, token: bytes
    ) -> ErrorStatus:
        """Have the driver save the model; see `ISavable.save_to_cache`."""
        connection = self._connection
        try:
            connection.check_open()
            files = connection.cache_files
            cache = to_send((model_cache,), (data_cache,), token, files)
            return await connection.queries.save(self._number, cache)
        except AsyncnnError as error:
            logger.info("a model is not cached: %s: %s", error.status.name, error)
            return error.status

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
        if EXECUTION.is_on:
            EXECUTION("send", model=number, deadline_ns=deadline)
        try:
            validate_measure_timing(measure)
            # One that is bound was found correct, and can have changed in nothing.
            bound = connection.bindings.number_of(number, request)
            staged = None
            if bound is None:
                self._rules.check(request, allow_unspecified_output=True)
                connection.check_open()
                staged = self._staging.stage(request)
                if staged:
                    request = staged.request
            executed = _Execution(
                connection.deferred, self._staging, request.pools, staged, callback
            )
            options = measure, deadline, loop_timeout_duration
            if bound is not None:
                execution = connection.execute_bound(bound, *options, executed)
            elif staged and staged.layout.has_large_inputs:
                launch = partial(self._launch, request, *options, executed)
                deferred = connection.deferred.start(staged.fill, launch, executed)
                callback.link_to_death(deferred.cancel)
                return ErrorStatus.NONE
            else:
                if staged:
                    staged.fill()
                execution = self._launch(request, *options, executed)
        except AsyncnnError as error:
            callback.reason = str(error)
            OneShot(callback.notify_1_3)(error.status, (), NO_TIMING)
            return error.status
        callback.link_to_death(partial(connection.cancel, execution))
        return ErrorStatus.NONE

    def _launch(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout: int | None,
        executed: Executed,
    ) -> int:
        """Send a valid request whose pools all travel; return its number.

        :raises AsyncnnError: if it cannot be sent.
        """
        connection, number = self._connection, self._number
        bound = connection.bindings.number_of(number, request)
        if bound is None:
            bound = connection.bind(number, request)
        if bound is None:
            return connection.execute(
                number, request, measure, deadline, loop_timeout, executed
            )
        return connection.execute_bound(
            bound, measure, deadline, loop_timeout, executed
        )

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
        if EXECUTION.is_on:
            EXECUTION("send fenced", model=number, fences=len(wait_for))
        try:
            validate_measure_timing(measure)
            self._rules.check(request, allow_unspecified_output=False)
            connection.check_open()
            named = connection.fences.named(wait_for)
            check_deadline(deadline)
            bound, request, staged = self._sendable(request)
            fenced = RemoteFenced(
                connection.fences, self._staging, request.pools, staged
            )
            order = connection.order(
                number, bound, request, measure, deadline, loop_timeout_duration
            )
            connection.fences.execute(order, named, duration, fenced)
        except AsyncnnError as error:
            logger.info("fenced execution refused: %s: %s", error.status.name, error)
            self.refusal = str(error)
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
            staged.fill()
            request = staged.request
            bound = connection.bindings.number_of(number, request)
        if bound is None:
            bound = connection.bind(number, request)
        return bound, request, staged


class _Execution:
    """One execution under way: copies outputs back and notifies.

    Keeps ``pools``, which the driver uses until then. The connection calls it once,
    maybe after it has let it expire, and shields itself from what it raises.
    """

    __slots__ = ("_callback", "_deferred", "_failure", "_pools", "_staged", "_staging")

    def __init__(
        self,
        deferred: DeferredExecutions,
        staging: Staging,
        pools: Sequence[object],
        staged: Staged | None,
        callback: IExecutionCallback,
    ) -> None:
        self._deferred = deferred
        self._staging = staging
        self._pools = pools
        self._staged = staged
        self._callback: IExecutionCallback | None = callback
        self._failure: AsyncnnError | None = None

    def __call__(
        self,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        reason: str,
    ) -> None:
        staged, callback = self._staged, self._callback
        if callback is None:  # nobody waits any more, and nobody writes to the slab
            self._let_go(status)
            return
        callback.unlink_to_death()
        if status is not ErrorStatus.NONE:
            logger.info("execution failed: %s: %s", status.name, reason)
            callback.reason = reason
        if staged is None:
            self._let_go(status)
            callback.notify_1_3(status, shapes, timing)
            return
        notify = partial(self._give_back, callback, status, shapes, timing)
        if status is ErrorStatus.NONE and staged.layout.has_large_outputs:
            self._deferred.finish(partial(self._copy_back, staged), notify)
            return
        if status is ErrorStatus.NONE:
            self._copy_back(staged)
        notify()

    def expire(self, error: AsyncnnError) -> None:
        """Notify that the driver has not answered; its slab stays until it has."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback.unlink_to_death()
            if self._staged is not None:
                self._staged.release()
            callback.reason = str(error)
            callback.notify_1_3(error.status, (), NO_TIMING)

    def _copy_back(self, staged: Staged) -> None:
        try:
            staged.copy_back()
        except Exception as error:
            logger.exception("the outputs of an execution could not be taken")
            self._failure = failure_of(error)

    def _let_go(self, status: ErrorStatus) -> None:
        pools, self._pools = self._pools, ()
        staged, self._staged = self._staged, None
        self._staging.ended(pools, staged, status)

    def _give_back(
        self,
        callback: IExecutionCallback,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self._let_go(status)
        failure = self._failure
        if failure is not None:
            callback.reason = str(failure)
            status, shapes, timing = failure.status, (), NO_TIMING
        callback.notify_1_3(status, shapes, timing)
