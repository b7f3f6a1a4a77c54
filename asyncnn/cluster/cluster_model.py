"""Models that are prepared on several replicas, and their runs."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from asyncnn.callbacks import Completion, ExecutionFuture, ExecutionResult, result_of
from asyncnn.cluster.cluster_runs import ClusterRun, ClusterRuns
from asyncnn.cluster.exchange import RunOrder, Sent
from asyncnn.cluster.replicas import ClusterWork
from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError
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
from asyncnn.hal.validate import RequestRules, plain_request, signature_of
from asyncnn.memory.mapping import Mapper
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.waiting_run import StartingModel

_NONE = ErrorStatus.NONE


class ClusterModel(StartingModel):
    """An `IPreparedModel` of model ``key`` of a cluster's device.

    Requests are checked here, and again where they are computed. Buffers of a request
    are memory of this process, and their bytes go with the run.
    """

    def __init__(self, device: ClusterRuns, key: int, asked: PrepareArguments) -> None:
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
        try:
            run = self.started(request, options, _told_itself)
        except AsyncnnError as error:
            refused = ExecutionFuture()
            refuse_execution(refused, error)
            return refused
        assert isinstance(run, ClusterRun)
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
        told: Callable[[ExecutionResult], None],
    ) -> ClusterRun:
        """Launch a checked request; see `StartingModel.start`."""
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

    def _order(self, options: ExecutionOptions) -> RunOrder:
        measure = options.measure is MeasureTiming.YES
        number = next(self._device.numbers)
        return RunOrder(self.key, number, measure, None, options.loop_timeout)

    def _launched(
        self,
        order: RunOrder,
        options: ExecutionOptions,
        inputs: Sent,
        targets: Sequence[memoryview],
        told: Callable[[ExecutionResult], None] | None = None,
    ) -> ClusterRun:
        work = ClusterWork(
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

    def checked(self, request: Request, *, is_fenced: bool) -> BuffersInUse | None:
        """Check a request; see `StartingModel.checked`."""
        self._device.check_open()
        self._rules.check(request, allow_unspecified_output=not is_fenced)
        return self.in_use(request)


def _told_itself(result: ExecutionResult) -> None:
    """Do nothing: whoever launched it awaits the run."""


def _ended(
    told: Callable[[ExecutionResult], None],
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
    told(result)
