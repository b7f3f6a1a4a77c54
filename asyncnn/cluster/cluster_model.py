"""Models that are prepared on several replicas, and their runs."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np

from asyncnn import hal
from asyncnn.callbacks import Completion, ExecutionFuture, ExecutionResult
from asyncnn.cluster.cluster_runs import ClusterRun, ClusterRuns
from asyncnn.cluster.exchange import RunOrder
from asyncnn.cluster.replicas import ClusterWork
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments, PrepareArguments, refuse_execution
from asyncnn.hal.types import ExecutionOptions
from asyncnn.hal.validate import RequestRules, plain_request, signature_of
from asyncnn.memory.mapping import Mapper
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.waiting_run import StartingModel


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
        self.signature: hal.Model = signature_of(asked.model)
        self.buffers = device.buffers.of(self.signature)
        plain = plain_request(asked.model)
        arguments = () if plain is None else (*plain.inputs, *plain.outputs)
        self._sizes = tuple([each.location.length for each in arguments])
        self._inputs = 0 if plain is None else len(plain.inputs)
        self.waiting_runs = device.waiting_runs

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
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
        run = self._run(self._order(options), options)
        targets = [array.data.cast("B") for array in arrays[split:]]
        run.given(tuple(arrays[:split]), targets)
        self._device.launch(run)
        return run

    def launch(self, request: hal.Request, options: ExecutionOptions) -> Completion:
        """Launch any request, and return its end; see `IBinding.launch`."""
        try:
            run = self.started(request, options, lambda _: None)
        except hal.AsyncnnError as error:
            refused = ExecutionFuture()
            refuse_execution(refused, error)
            return refused
        assert isinstance(run, ClusterRun)
        return run

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        return self._device.bursts.configure(self, *asked)

    def start(
        self,
        request: hal.Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        notify: Callable[[ExecutionResult], None],
    ) -> ClusterRun:
        """Launch a checked request; see `StartingModel.start`."""
        self._device.check_open()
        if use is not None:
            request = use.begin(request)
        order = self._order(options)._replace(
            dimensions=tuple(each.dimensions for each in request.inputs),
            space=tuple(
                None if e.has_no_value else (e.location.length, e.dimensions)
                for e in request.outputs
            ),
        )
        pools, run = _PoolsOfRun(request), self._run(order, options)
        run.notify = partial(_ended, notify, use, pools)
        if pools.are_mapped:
            pools.give(run)
            self._device.launch(run)
        else:
            run.write = pools.write
            self._device.launch(run, partial(pools.copy_and_give, run))
        return run

    def _order(self, options: ExecutionOptions) -> RunOrder:
        measure = options.measure is hal.MeasureTiming.YES
        number = next(self._device.numbers)
        return RunOrder(self.key, number, measure, None, options.loop_timeout)

    def _run(self, order: RunOrder, options: ExecutionOptions) -> ClusterRun:
        work = ClusterWork(
            order.number,
            self.key,
            self._priority,
            options.deadline,
            self._device.settings.idempotent,
        )
        run = ClusterRun(self._device, work, order)
        run.model = self
        return run

    def checked(self, request: hal.Request, *, is_fenced: bool) -> BuffersInUse | None:
        """Check a request; see `StartingModel.checked`."""
        self._device.check_open()
        self._rules.check(request, allow_unspecified_output=not is_fenced)
        return self.in_use(request)


class _PoolsOfRun:
    """The pools of a request: those that cannot be mapped are copied, which may block.

    :raises AsyncnnError: if one is malformed.
    """

    def __init__(self, request: hal.Request) -> None:
        self._request = request
        self._mapper = Mapper()
        self._given = cast("Sequence[hal.Memory]", request.pools)  # no tokens any more
        self._found = [self._mapper.map_nowait(pool) for pool in self._given]

    @property
    def are_mapped(self) -> bool:
        """Whether none is to be copied."""
        return None not in self._found

    def copy_and_give(self, run: ClusterRun) -> None:
        """Copy them, then `give`."""
        self._found = [self._mapper.map(pool) for pool in self._given]
        self.give(run)

    def give(self, run: ClusterRun) -> None:
        """Give a run its arrays, which lie in them."""
        inputs = tuple(
            None if each.has_no_value else self._part(each)
            for each in self._request.inputs
        )
        run.given(inputs, [self._part(each).data for each in self._outputs])

    def write(self) -> None:
        """Write to their files what copies have got."""
        for each in self._outputs:
            pool, at = self._found[each.location.pool_index], each.location
            assert pool is not None
            self._mapper.flush(pool, at.offset, at.length)

    def close(self) -> None:
        """Give them back."""
        self._mapper.close()

    @property
    def _outputs(self) -> list[hal.RequestArgument]:
        return [each for each in self._request.outputs if not each.has_no_value]

    def _part(self, argument: hal.RequestArgument) -> Array:
        at = argument.location
        pool = self._found[at.pool_index]
        assert pool is not None
        data = np.frombuffer(pool.buffer or b"", np.uint8)
        return data[at.offset : at.offset + at.length]


def _ended(
    notify: Callable[[ExecutionResult], None],
    use: BuffersInUse | None,
    pools: _PoolsOfRun,
    result: ExecutionResult,
) -> None:
    """Give back what a request has used, then report the result."""
    pools.close()
    if use is not None:
        use.end(result.status, result.output_shapes)
    notify(result)
