"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np

from asyncnn import hal
from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IExecutionCallback,
    OneShot,
)
from asyncnn.deadlines import check_deadline
from asyncnn.fenced_run import BasePreparedModel, FencedRun, Source
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments, refuse_execution
from asyncnn.hal.routes import Route
from asyncnn.hal.types import ExecutionOptions
from asyncnn.hal.validate import (
    RequestRules,
    execution_options,
    plain_request,
    signature_of,
)
from asyncnn.logs import EXECUTION
from asyncnn.service.client.answers import SentExecution
from asyncnn.service.client.asking import to_send
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.fenced_calls import NO_FENCES, RemoteFenced
from asyncnn.service.client.staging import StagedRequest
from asyncnn.tracing import Layer, Phase, span

logger = logging.getLogger(__name__)


class RemotePreparedModel(BasePreparedModel):
    """Model ``number`` of a connection; the driver frees it when this object goes.

    Requests are validated here, so that launch errors are returned by the call, and
    again by the driver. ``usual_route`` is how executions go as a rule, if the driver's
    device is made of several.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        model: hal.Model,
        usual_route: Route | None = None,
    ) -> None:
        self._connection = connection
        self.number = number
        self.usual_route = usual_route
        self._rules = RequestRules(model)
        self._model = model
        # Not what it is asked to check by: it must not keep the model.
        self._staging = connection.new_staging(partial(_check, self._rules))
        plain = plain_request(model)
        self._plain = None if plain is None else self._staging.plain(plain)
        arguments = () if plain is None else (*plain.inputs, *plain.outputs)
        self._sizes = tuple([each.location.length for each in arguments])
        weakref.finalize(self, connection.release_prepared_soon, number)

    def is_on(self, connection: Connection) -> bool:
        """Return whether that is the model's connection."""
        return self._connection is connection

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why its connection has ended; see `IMortal`."""
        return self._connection.cause_of_death()

    async def save_to_cache(
        self, model_cache: hal.Handle, data_cache: hal.Handle, token: bytes
    ) -> hal.ErrorStatus:
        """Have the driver save the model; see `ISavable.save_to_cache`."""
        connection = self._connection
        try:
            connection.check_open()
            files = connection.cache_files
            cache = to_send((model_cache,), (data_cache,), token, files)
            return await connection.queries.save(self.number, cache)
        except hal.AsyncnnError as error:
            logger.info("a model is not cached: %s: %s", error.status.name, error)
            return error.status

    @property
    def signature(self) -> hal.Model:
        """The inputs and outputs of the model; see `IDescribed`."""
        return signature_of(self._model)

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        try:
            options = execution_options(measure, deadline, loop_timeout_duration)
            sent = self._staging.sent(request)
        except hal.AsyncnnError as error:
            return refuse_execution(callback, error)
        execution = NotifyingExecution(self._connection, request, sent)
        execution.callback = callback
        refused = self.launch(execution, options).result
        if refused is not None:
            return refused.status
        callback.link_to_death(execution.abandon)
        return hal.ErrorStatus.NONE

    def launch_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Completion | None:
        """Launch an execution on arrays of the client; see `IBinding.launch_on`."""
        plain = self._plain
        if plain is None or len(tensors) != len(self._sizes):
            return None
        for tensor, size in zip(tensors, self._sizes, strict=True):
            if type(tensor) is not np.ndarray or tensor.nbytes != size:
                return None
            base = tensor.base
            # Others may be shared: then they are not copied.
            if not (base is None or (type(base) is np.ndarray and base.base is None)):
                return None
        idle = plain.idle()
        try:
            staged = idle.pop() if idle else self._staging.take(plain)
        except hal.AsyncnnError:
            return None  # the other way says why
        arrays, count = cast("Sequence[Array]", tensors), len(plain.inputs)
        if plain.has_large_inputs:
            staged.inputs += [array.data.cast("B") for array in arrays[:count]]
        else:
            for target, array in zip(staged.targets, arrays, strict=False):
                target[:] = array.data.cast("B")
        for array in arrays[count:]:
            staged.outputs.append(array.data)
        execution = RemoteExecution(self._connection, staged.request, staged)
        return self.launch(execution, options)

    def create_reusable_execution(self, request: hal.Request) -> StagedRequest:
        """Return a request that is not looked up again; see `IReusing`.

        :raises InvalidArgumentError: if it breaks a rule.
        """
        return self._staging.bound(request)

    def launch(
        self, execution: "RemoteExecution | hal.Request", options: ExecutionOptions
    ) -> Completion:
        """Launch an execution, and return its end; see `IBinding.launch`.

        Large inputs are copied in turns of the loop before it is sent.
        """
        if EXECUTION.is_on:
            EXECUTION("send", model=self.number, deadline_ns=options.deadline)
        try:
            if not isinstance(execution, RemoteExecution):
                sent = self._staging.sent(execution)
                execution = RemoteExecution(self._connection, execution, sent)
        except hal.AsyncnnError as error:
            refused = ExecutionFuture()
            refuse_execution(refused, error)
            return refused
        connection, staged = self._connection, execution.staged
        try:
            if staged is not None and staged.layout.has_large_inputs:
                connection.check_open()
                launch = partial(connection.execute, self.number, execution, options)
                connection.deferred.start(execution, launch, options.deadline)
            else:
                connection.execute(self.number, execution, options)
        except hal.AsyncnnError as error:
            execution.let_go(hal.ErrorStatus.NONE)
            execution.refuse(error)
        return execution

    def launch_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        :raises AsyncnnError: if it is not taken.
        """
        connection, number = self._connection, self.number
        if EXECUTION.is_on:
            EXECUTION("send fenced", model=number, fences=len(wait_for))
        named = connection.fences.named(wait_for) if wait_for else NO_FENCES
        if options.deadline is not None:
            check_deadline(options.deadline)
        sent = self._staging.sent(request, is_fenced=True)
        fenced, fences = RemoteFenced(connection, request, sent), connection.fences
        fenced.fences, fenced.loop = fences, fences.loop
        staged = fenced.staged
        try:
            if staged is not None and staged.layout.has_large_inputs:
                staged.fill()
            connection.execute(number, fenced, options, named)
        except hal.AsyncnnError:
            fenced.let_go(hal.ErrorStatus.NONE)
            raise
        return fenced

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        callback, *channels = asked
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT, None
        return await self._connection.bursts.configure(self.number, callback, *channels)


def _check(rules: RequestRules, request: hal.Request, is_fenced: bool) -> None:
    with span("validate", Layer.DRIVER, Phase.EXECUTION):
        rules.check(request, allow_unspecified_output=not is_fenced)


class RemoteExecution(SentExecution):
    """One execution under way, which is awaited."""

    _settle = Completion._resolve

    def abandon(self) -> None:
        """Notify the driver that nobody waits, or send it no more."""
        self.is_abandoned = True
        if self.number:
            self._connection.cancel(self.number)


class NotifyingExecution(RemoteExecution):
    """One that notifies its ``callback``."""

    callback: IExecutionCallback

    def took(self, route: Route) -> None:
        """Learn, before the outcome, of an unusual route."""
        super().took(route)
        if self._result is None:
            self.callback.took(route)

    def _settle(self, result: ExecutionResult, *_: object) -> None:
        self._resolve(result)
        callback = self.callback
        callback.unlink_to_death()
        callback.reason = result.reason
        if result.is_left:
            callback.is_left = True
        notify = OneShot(callback.notify_1_3)
        notify(result.status, result.output_shapes, result.timing)
