"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
from msgspec.structs import replace

from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IBurstCallback,
    IExecutionCallback,
    OneShot,
    SynchronousByCallback,
)
from asyncnn.deadlines import check_deadline
from asyncnn.fenced_run import FencedByLaunch, FencedRun, Source
from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import refuse_execution
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionOptions,
    Handle,
    MeasureTiming,
    Model,
    Request,
)
from asyncnn.hal.validate import (
    RequestRules,
    execution_options,
    plain_request,
    signature_of,
)
from asyncnn.logs import EXECUTION
from asyncnn.service.client.answers import SentExecution
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.fenced import NO_FENCES, RemoteFenced
from asyncnn.service.client.pools import Sendable
from asyncnn.service.client.preparations import to_send
from asyncnn.service.client.staging import Layout, Staging, Travelling
from asyncnn.tracing import Layer, Phase, span

logger = logging.getLogger(__name__)


class RemotePreparedModel(SynchronousByCallback, FencedByLaunch):
    """Model ``number`` of a connection; the driver frees it when this object goes.

    Requests are validated here, so that launch errors are returned by the call, and
    again by the driver. ``usual_route`` is how executions go as a rule, if the driver's
    device is made of several.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        model: Model,
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
            return await connection.queries.save(self.number, cache)
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
        try:
            options = execution_options(measure, deadline, loop_timeout_duration)
            execution = self._checked(request)
        except AsyncnnError as error:
            return refuse_execution(callback, error)
        execution.callback = callback
        refused = self.launch(execution, options).result
        if refused is not None:
            return refused.status
        callback.link_to_death(execution.abandon)
        return ErrorStatus.NONE

    def _checked(self, request: Request) -> "RemoteExecution":
        """Return an execution of a request, whatever pools it has."""
        sendable = self._sendable(request)
        return RemoteExecution(self._connection, self._staging, request, sendable)

    def _sendable(self, request: Request, is_fenced: bool = False) -> Sendable:
        """Return what to send for a request, which is checked unless it came before."""
        known: Travelling | Layout
        # One of another connection, before its driver was restarted, say, is news.
        if (
            type(request) is BoundRequest
            and request.staging is self._staging
            and request.known.is_strict >= is_fenced
        ):
            known = request.known
        else:
            known = self._staging.known(request, is_fenced)
        if isinstance(known, Layout):
            return self._staging.staged(known, request.pools)
        return known

    def bind(self, tensors: Sequence[object]) -> "RemoteExecution | None":
        """Return an execution on arrays of the client alone; see `IBinding.bind`."""
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
        try:
            staged = self._staging.take(plain)
        except AsyncnnError:
            return None  # the other way says why
        arrays, count = cast("Sequence[Array]", tensors), len(plain.inputs)
        for array in arrays[:count]:
            staged.inputs.append(array.data.cast("B"))
        for array in arrays[count:]:
            staged.outputs.append(array.data)
        return RemoteExecution(self._connection, self._staging, staged.request, staged)

    def create_reusable_execution(self, request: Request) -> "BoundRequest":
        """Return a request that is not looked up again; see `IReusing`.

        :raises InvalidArgumentError: if it breaks a rule.
        """
        try:
            known = self._staging.known(request, True)
        except AsyncnnError:  # a fenced execution may not have what others may
            known = self._staging.known(request, False)
        arguments = request.inputs, request.outputs, request.pools
        return BoundRequest(*arguments, self._staging, known)

    def launch(
        self, execution: "RemoteExecution | Request", options: ExecutionOptions
    ) -> Completion:
        """Launch an execution, and return its end; see `IBinding.launch`.

        Large inputs are copied on a thread before it is sent.
        """
        if EXECUTION.is_on:
            EXECUTION("send", model=self.number, deadline_ns=options.deadline)
        try:
            if not isinstance(execution, RemoteExecution):
                execution = self._checked(execution)
        except AsyncnnError as error:
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
                if staged is not None:
                    staged.fill()
                connection.execute(self.number, execution, options)
        except AsyncnnError as error:
            execution.refuse(error)
        return execution

    def launch_fenced(
        self, request: Request, wait_for: Sequence[Source], options: ExecutionOptions
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
        sendable = self._sendable(request, is_fenced=True)
        fenced = RemoteFenced(connection, self._staging, request, sendable)
        if fenced.staged is not None:
            fenced.staged.fill()
        connection.check_unsent()
        order = connection.order(number, fenced, options)
        connection.fences.execute(order, named, options.duration, fenced)
        return fenced

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
            self.number, callback, request_channel, result_channel
        )


class BoundRequest(Request, frozen=True, eq=False):
    """A request that is not looked up again; ``known`` is what to send, or how."""

    staging: Staging
    known: Travelling | Layout


def _check(rules: RequestRules, request: Request, is_fenced: bool) -> None:
    """Check a request as the driver will."""
    with span("validate", Layer.DRIVER, Phase.EXECUTION):
        rules.check(request, allow_unspecified_output=not is_fenced)


class RemoteExecution(SentExecution):
    """One execution under way, which is awaited or notifies its ``callback``."""

    __slots__ = SentExecution.slots

    def took(self, route: Route) -> None:
        """Learn, before the outcome, of an unusual route."""
        super().took(route)
        if self.callback is not None and self._result is None:
            self.callback.took(route)

    def abandon(self) -> None:
        """Tell the driver that nobody waits, or send it no more."""
        self.is_abandoned = True
        if self.number:
            self._line.cancel(self.number)

    def _settle(self, result: ExecutionResult, *_: object) -> None:
        if self._route is not None:
            result = replace(result, route=self._route)
        self._resolve(result)
        callback = self.callback
        if callback is not None:
            callback.unlink_to_death()
            callback.reason = result.reason
            notify = OneShot(callback.notify_1_3)
            notify(result.status, result.output_shapes, result.timing)
