"""Models that are prepared on several replicas, and their runs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncnn.callbacks import (
    Completion,
    ExecutionFuture,
    ExecutionResult,
    IExecutionCallback,
    result_of,
)
from asyncnn.cluster.exchange import Answer, Order, Sent, size_bytes
from asyncnn.cluster.replicas import Work
from asyncnn.deadlines import DEADLINE_GRACE_S, check_deadline, unanswered
from asyncnn.fenced_run import BasePreparedModel, FencedRun, Source
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments, PrepareArguments, refuse_execution
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Model,
    Request,
    RequestArgument,
)
from asyncnn.hal.validate import (
    RequestRules,
    execution_options,
    plain_request,
    signature_of,
)
from asyncnn.memory.mapping import Mapper
from asyncnn.runtime.framework.managed_memory import BuffersInUse, BufferUser
from asyncnn.runtime.framework.outcomes import CallbackReport
from asyncnn.runtime.framework.waiting_run import WaitingRun

if TYPE_CHECKING:
    from asyncnn.cluster.cluster_device import ClusterDevice

_NONE = ErrorStatus.NONE


class ClusterRun(Completion):
    """A run, from when it is asked for until its end; see `ClusterDevice.launch`.

    ``targets`` get the bytes of its outputs. ``told`` gets the result as well.
    """

    told: Callable[[ExecutionResult], None] | None = None
    ref: object = None
    model: "ClusterModel"
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        device: "ClusterDevice",
        work: Work,
        order: Order,
        inputs: Sent,
        targets: Sequence[memoryview],
    ) -> None:
        self.work = work
        self.order = order
        self.inputs = inputs
        self.size_bytes = size_bytes(inputs)
        self._targets = targets
        self._device = device
        if work.deadline_ns is not None:
            loop = asyncio.get_running_loop()
            left_s = (work.deadline_ns - time.monotonic_ns()) / 1e9
            self._timer = loop.call_later(left_s + DEADLINE_GRACE_S, self._give_up)

    def taken(self, answer: Answer) -> ExecutionResult:
        """Copy the outputs of an answer; return what it amounts to."""
        if answer.status == _NONE:
            if len(answer.outputs) != len(self._targets):
                return result_of(GeneralFailureError("a replica has other outputs"))
            for target, array in zip(self._targets, answer.outputs, strict=True):
                data = array.reshape(-1).view(np.uint8).data
                if len(data) > len(target):
                    return result_of(GeneralFailureError("an output is too long"))
                target[: len(data)] = data
        return answer.result

    def settle(self, result: ExecutionResult) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
        self.inputs, self.ref, self._targets = (), None, ()
        self._resolve(result)
        if self.told is not None:
            self.told(result)

    def abandon(self) -> None:
        """Stop it where it is: nobody waits for its end."""
        cancelled = ResourceExhaustedTransientError("the execution was cancelled")
        self._device.abandon(self, result_of(cancelled))

    die = abandon
    close = abandon

    def _give_up(self) -> None:
        self._device.abandon(self, result_of(unanswered(DEADLINE_GRACE_S)))


class ClusterModel(BufferUser, BasePreparedModel):
    """An `IPreparedModel` of model ``key`` of a cluster's device.

    Requests are checked here, and again where they are computed. Buffers of a request
    are memory of this process, and their bytes go with the run.
    """

    def __init__(
        self, device: "ClusterDevice", key: int, asked: PrepareArguments
    ) -> None:
        self.key = key
        self._device = device
        self._priority = int(asked.priority)
        self._rules = RequestRules(asked.model)
        self.signature: Model = signature_of(asked.model)
        self.buffers = device.buffers.of(self.signature)
        plain = plain_request(asked.model)
        arguments = () if plain is None else (*plain.inputs, *plain.outputs)
        self._sizes = tuple([each.location.length for each in arguments])
        self._inputs = 0 if plain is None else len(plain.inputs)
        self.waiting_runs = device.waiting_runs

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why the device takes no work any more; see `IMortal`."""
        return self._device.cause_of_death()

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
        use: BuffersInUse | None = None
        try:
            options = execution_options(measure, deadline, loop_timeout_duration)
            checked = self._checked(request, is_fenced=False)
            check_deadline(deadline)
            use = checked  # what is refused before touches no buffer
            report = CallbackReport(callback)
            run = self.start(request, options, use, report)
        except AsyncnnError as error:
            if use is not None:
                use.end(error.status, ())
            return refuse_execution(callback, error)
        report.is_called = False
        if run.result is None:
            callback.link_to_death(run.die)
        return _NONE

    def launch_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Completion | None:
        """Launch an execution on arrays of the client; see `IBinding.launch_on`."""
        sizes, split = self._sizes, self._inputs
        if len(tensors) != len(sizes) or self._device.cause_of_death() is not None:
            return None
        deadline = options.deadline
        if deadline is not None and deadline <= time.monotonic_ns():
            return None  # the other way says so
        arrays: list[Array] = []
        for tensor, size in zip(tensors, sizes, strict=True):
            if not isinstance(tensor, np.ndarray) or tensor.nbytes != size:
                return None
            arrays.append(tensor)
        order = self._order(options)
        targets = [array.data.cast("B") for array in arrays[split:]]
        return self._launched(order, options, tuple(arrays[:split]), targets)

    def launch(self, request: Request, options: ExecutionOptions) -> Completion:
        """Launch any request, and return its end; see `IBinding.launch`."""
        use: BuffersInUse | None = None
        try:
            checked = self._checked(request, is_fenced=False)
            check_deadline(options.deadline)
            use = checked
            return self.start(request, options, use)
        except AsyncnnError as error:
            if use is not None:
                use.end(error.status, ())
            refused = ExecutionFuture()
            refuse_execution(refused, error)
            return refused

    def launch_fenced(
        self, request: Request, wait_for: Sequence[Source], options: ExecutionOptions
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        It waits here.

        :raises AsyncnnError: if it is not taken.
        """
        use = self._checked(request, is_fenced=True)
        awaited = active_fences(wait_for)
        check_deadline(options.deadline)
        run = WaitingRun(self, request, options, use)
        run.launch(awaited)
        return run

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        return self._device.bursts.configure(self, *asked)

    def start(
        self,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        told: Callable[[ExecutionResult], None] | None = None,
    ) -> ClusterRun:
        """Launch a checked request; ``told`` gets the result, once.

        :raises AsyncnnError: if it is not taken; ``use`` is the caller's to end then.
        """
        self._device.check_open()
        if use is not None:
            request = use.begin(request)
        mapper = Mapper()
        pools = [mapper.map(pool) for pool in request.pools]  # type: ignore[arg-type]

        def part(argument: RequestArgument) -> Array:
            at = argument.location
            data = np.frombuffer(pools[at.pool_index].buffer or b"", np.uint8)
            return data[at.offset : at.offset + at.length]

        inputs = tuple(
            None if each.has_no_value else part(each) for each in request.inputs
        )
        outputs = [each for each in request.outputs if not each.has_no_value]
        order = self._order(options)._replace(
            dimensions=tuple(each.dimensions for each in request.inputs),
            space=tuple(
                None if e.has_no_value else (e.location.length, e.dimensions)
                for e in request.outputs
            ),
        )
        targets = [part(each).data for each in outputs]
        flushed = [pools[each.location.pool_index] for each in outputs]
        ended = partial(_ended, told, use, mapper, flushed)
        return self._launched(order, options, inputs, targets, ended)

    def _order(self, options: ExecutionOptions) -> Order:
        measure = options.measure is MeasureTiming.YES
        number = next(self._device.numbers)
        return Order(self.key, number, measure, None, options.loop_timeout)

    def _launched(
        self,
        order: Order,
        options: ExecutionOptions,
        inputs: Sent,
        targets: Sequence[memoryview],
        told: Callable[[ExecutionResult], None] | None = None,
    ) -> ClusterRun:
        work = Work(
            order.number,
            self.key,
            self._priority,
            options.deadline,
            self._device.settings.idempotent,
        )
        run = ClusterRun(self._device, work, order, inputs, targets)
        run.told, run.model = told, self
        self._device.launch(run)
        return run

    def _checked(self, request: Request, *, is_fenced: bool) -> BuffersInUse | None:
        self._device.check_open()
        self._rules.check(request, allow_unspecified_output=not is_fenced)
        return self.in_use(request)


def _ended(
    told: Callable[[ExecutionResult], None] | None,
    use: BuffersInUse | None,
    mapper: Mapper,
    written: Sequence[Any],
    result: ExecutionResult,
) -> None:
    """Hand over what a request's pools have got, then tell the result."""
    if result.status is _NONE:
        try:
            for pool in written:
                mapper.flush(pool)
        except AsyncnnError as error:
            result = result_of(error)
    mapper.close()
    if use is not None:
        use.end(result.status, result.output_shapes)
    if told is not None:
        told(result)
