"""A prepared model in another process, as an `IPreparedModel`."""

import logging
import weakref
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import cast

import numpy as np

from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IBurstCallback,
    IExecutionCallback,
    OneShot,
    SynchronousByCallback,
    Waiter,
)
from asyncnn.deadlines import check_deadline
from asyncnn.fenced_run import FencedByLaunch, FencedRun, Source
from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import refuse_execution
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    Handle,
    MeasureTiming,
    Model,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.hal.validate import (
    RequestRules,
    execution_options,
    plain_request,
    signature_of,
)
from asyncnn.logs import EXECUTION
from asyncnn.service.client.answers import DeferredExecution, SentMemory
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.fenced import NO_FENCES, RemoteFenced
from asyncnn.service.client.pools import Sendable
from asyncnn.service.client.preparations import to_send
from asyncnn.service.client.staging import Layout, Staged, Staging, Travelling
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
            execution = self._execute(request, options, callback)
        except AsyncnnError as error:
            return refuse_execution(callback, error)
        callback.link_to_death(execution.abandon)
        return ErrorStatus.NONE

    def _execute(
        self,
        request: Request,
        options: ExecutionOptions,
        callback: IExecutionCallback | None = None,
    ) -> "_Execution":
        """Check a request, and send it, whatever pools it has."""
        if EXECUTION.is_on:
            EXECUTION("send", model=self.number, deadline_ns=options.deadline)
        sendable = self._sendable(request)
        staged = sendable if isinstance(sendable, Staged) else None
        if staged is not None:
            request = staged.request
        memory = SentMemory(self._staging, request.pools, staged)
        execution = _Execution(self._connection, sendable, memory, callback)
        self._send(execution, request, options)
        return execution

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

    def bind(self, tensors: Sequence[object]) -> "_Execution | None":
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
        arrays, count = cast("Sequence[Array]", tensors), len(plain.inputs)
        try:
            staged = self._staging.staged_arrays(plain, arrays[:count], arrays[count:])
        except (AsyncnnError, TypeError, ValueError):
            return None  # the other way says why
        memory = SentMemory(self._staging, staged.request.pools, staged)
        return _Execution(self._connection, staged, memory)

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
        self, execution: "_Execution | Request", options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch an execution, and return its end; see `IBinding.launch`."""
        if not isinstance(execution, _Execution):
            try:
                return self._execute(execution, options)
            except AsyncnnError as error:
                refused = ExecutionFuture()
                refuse_execution(refused, error)
                return refused
        if EXECUTION.is_on:
            EXECUTION("send", model=self.number, deadline_ns=options.deadline)
        staged = execution.memory.staged
        assert staged is not None
        try:
            self._send(execution, staged.request, options)
        except AsyncnnError as error:
            execution.refuse(error)
        return execution

    def _send(
        self, execution: "_Execution", request: Request, options: ExecutionOptions
    ) -> None:
        """Send a valid request whose pools all travel, filled in before."""
        connection, staged = self._connection, execution.memory.staged
        if staged is not None:
            if staged.layout.has_large_inputs:
                connection.check_open()
                launch = partial(self._launch, execution, request, options)
                execution.sending = connection.deferred.start(
                    staged.fill, launch, execution, options.deadline
                )
                return
            staged.fill()
        execution.number = self._launch(execution, request, options)

    def _launch(
        self, execution: "_Execution", request: Request, options: ExecutionOptions
    ) -> int:
        """Send a request, by its number if it has one; return the execution's."""
        connection, prepared = self._connection, self.number
        bound = execution.sendable.number
        if bound is None:
            bound = connection.bind(prepared, request, execution.sendable)
        return connection.execute(prepared, request, options, execution, bound)

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
        staged = sendable if isinstance(sendable, Staged) else None
        if staged is not None:
            staged.fill()
            request = staged.request
        bound = sendable.number
        if bound is None:
            bound = connection.bind(number, request, sendable)
        connection.check_unsent()
        memory = SentMemory(self._staging, request.pools, staged)
        fenced = RemoteFenced(connection.fences, memory)
        order = connection.order(number, request, options, bound)
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


class _Execution(Completion):
    """One execution under way: takes the outputs back, and is awaited or notifies.

    The connection calls it once, maybe after it has let it expire, and shields itself
    from what it raises.
    """

    __slots__ = (
        "_callback",
        "_connection",
        "_result",
        "_route",
        "_waiting",
        "memory",
        "number",
        "sendable",
        "sending",
    )

    def __init__(
        self,
        connection: Connection,
        sendable: Sendable,
        memory: SentMemory,
        callback: IExecutionCallback | None = None,
    ) -> None:
        self._connection = connection
        self.sendable = sendable
        self._callback = callback
        self._result: ExecutionResult | None = None
        self._waiting: dict[Waiter, None] | None = None
        self._route: Route | None = None
        self.memory = memory
        self.number: int | None = None
        self.sending: DeferredExecution | None = None

    def __call__(
        self,
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        reason: str,
    ) -> None:
        # Nobody waits any more, and nobody writes to the slab.
        if self._result is not None:
            self.memory.let_go(status)
            return
        if status is not ErrorStatus.NONE:
            logger.info("execution failed: %s: %s", status.name, reason)
        result = ExecutionResult(status, shapes, timing, reason, None, self._route)
        end = partial(self._end, result)
        self.memory.take_outputs(status, self._connection.deferred.finish, end)

    def took(self, route: Route) -> None:
        self._route = route
        if self._callback is not None and self._result is None:
            self._callback.took(route)

    def expire(self, error: AsyncnnError) -> None:
        """Report that the driver has not answered; its slab stays until it has."""
        if self._result is None:
            self.memory.release()
            self.refuse(error)

    def refuse(self, error: AsyncnnError) -> None:
        """Report an error of this end."""
        self._resolve(ExecutionResult(error.status, (), NO_TIMING, str(error)))

    def abandon(self) -> None:
        """Tell the driver that nobody waits, or send it no more."""
        if self.sending is not None:
            self.sending.cancel()
        elif self.number is not None:
            self._connection.cancel(self.number)

    def _resolve(self, result: ExecutionResult) -> None:
        super()._resolve(result)
        callback = self._callback
        if callback is not None:
            callback.unlink_to_death()
            callback.reason = result.reason
            notify = OneShot(callback.notify_1_3)
            notify(result.status, result.output_shapes, result.timing)

    def _end(self, result: ExecutionResult, failure: AsyncnnError | None) -> None:
        if failure is None:
            self._resolve(result)
        else:
            self.refuse(failure)
