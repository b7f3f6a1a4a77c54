"""Requests that are built once and executed again and again."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from asyncnn.callbacks import ExecutionResult
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import BusyError, InvalidArgumentError
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.memory.slabs import Part, isolated_array, place_of
from asyncnn.offload import offload
from asyncnn.runtime.buffers import DeviceBuffer, MakeArray
from asyncnn.runtime.execution_options import Outputs, deadline_after, nanoseconds
from asyncnn.runtime.fenced import FencedRun, failed_run, launch_fenced
from asyncnn.runtime.model import position_of
from asyncnn.runtime.requests import (
    MAX_SPACE_ATTEMPTS,
    InputCheck,
    OutputSpace,
    RequestBuilder,
    Tensor,
    has_fixed_shape,
)
from asyncnn.tracing import Layer, Phase, begin

Carry: TypeAlias = Callable[
    [Request, MeasureTiming, int | None], Awaitable[ExecutionResult]
]
"""Executes a request, measured or not, until a deadline in nanoseconds."""


class Target(NamedTuple):
    """A prepared model, and what requests to it are made by.

    It is ``elsewhere`` if arrays reach it by being copied unless they are shared.
    ``make_shared`` makes arrays that are. A burst that was cancelled at its deadline is
    waited for ``deadline_grace`` seconds.
    """

    hal: IPreparedModel
    check: InputCheck
    space: OutputSpace
    build_request: RequestBuilder
    elsewhere: bool
    make_shared: MakeArray
    deadline_grace: float

    def copies(self, array: Array) -> bool:
        """Tell whether an array that reaches it is copied."""
        place = place_of(array)
        if place is None:
            return self.elsewhere
        return self.make_shared is isolated_array and isinstance(place[0], Part)

    async def converted(self, inputs: Any) -> Sequence[Tensor | None]:
        """Return what a caller gives for inputs; large ones are converted on a thread.

        :raises InvalidArgumentError: if it is not what the model takes.
        """
        if self.check.is_long(inputs):
            return await offload(self.check.with_buffers, inputs)
        return self.check.with_buffers(inputs)

    def check_result(self, result: ExecutionResult) -> None:
        """Do nothing if an execution succeeded.

        :raises AsyncnnError: that of the status; what has ended for good says why.
        """
        if result.status is ErrorStatus.DEVICE_UNAVAILABLE and result.kind is None:
            cause = cause_of_death(self.hal)
            if cause is not None:
                raise cause
        result.raise_for_status()

    def settled_inputs(self, inputs: Any) -> Sequence[Tensor | None]:
        """Return what a caller gives for inputs, or new shared arrays for None.

        :raises InvalidArgumentError: if it is not what the model takes, or the model
            leaves the shape of a new one open.
        """
        if inputs is not None:
            return self.check.with_buffers(inputs)
        for info in self.check.infos:
            if not has_fixed_shape(info):
                raise InvalidArgumentError(
                    f"input {info.name} has no fixed shape", hint="give it an array"
                )
        return [self.make_shared(i.dimensions, i.dtype) for i in self.check.infos]

    def settled_outputs(self, out: Any) -> Sequence[Tensor | None] | None:
        """Return what a caller gives for outputs; None for all those to be made.

        :raises InvalidArgumentError: if one cannot hold what the model computes.
        """
        return None if out is None else self.space.given(out)


class ReusableExecution:
    """A request that is built once, to be executed as often as wanted.

    Made by `PreparedModel.reusable` and `Burst.reusable`. Write to the arrays of
    `input`, await `run`, read those of `output`. All executions use the same arrays, so
    there is one at a time. Their memory goes with the last reference to them.

    ``make`` makes the arrays of outputs for which ``out`` has None, shared by default.
    """

    __slots__ = (
        "_carry",
        "_inputs",
        "_is_running",
        "_launched",
        "_loop_timeout_ns",
        "_make",
        "_out",
        "_outputs",
        "_request",
        "_result",
        "_spaces",
        "_target",
    )

    def __init__(
        self,
        target: Target,
        inputs: Sequence[Tensor | None],
        out: Sequence[Tensor | None] | None,
        carry: Carry,
        *,
        make: MakeArray | None = None,
        loop_timeout_ns: int | None = None,
    ) -> None:
        self._target = target
        self._inputs = inputs
        self._out = out
        self._carry = carry
        self._make = make or target.make_shared
        self._loop_timeout_ns = loop_timeout_ns
        self._is_running = False
        self._launched: list[FencedRun] = []
        self._result: ExecutionResult | None = None
        self._make_space()

    def input(self, which: str | int = 0) -> Array:
        """Return the array that an input is read from, by name or position.

        :raises InvalidArgumentError: if there is no such input, or it is omitted or in
            a device-managed buffer.
        """
        infos = self._target.check.infos
        position = position_of("input", infos, which)
        tensor = self._inputs[position]
        if isinstance(tensor, np.ndarray):
            return tensor
        state = "is omitted" if tensor is None else "is in a device-managed buffer"
        raise InvalidArgumentError(f"input {infos[position].name} {state}")

    def output(self, which: str | int = 0) -> Array:
        """Return the array that an output is written to, by name or position.

        It is always the same if the model fixes the shapes of all its outputs.
        Otherwise it is the one that the last run has filled.

        :raises InvalidArgumentError: if there is no such output, it is in a
            device-managed buffer, or the model leaves shapes open and nothing was run.
        """
        infos = self._target.space.infos
        position = position_of("output", infos, which)
        name = infos[position].name
        found = self._outputs.get(name)
        if found is not None:
            return found
        if isinstance(self._spaces[position], DeviceBuffer):
            raise InvalidArgumentError(f"output {name} is in a device-managed buffer")
        raise InvalidArgumentError(
            "the model leaves shapes of outputs open", hint="run first"
        )

    def rebind(self, inputs: Sequence[Tensor | None]) -> None:
        """Read other inputs from now on, which the model is known to take.

        Nothing else may use the arrays at the moment.
        """
        self._inputs = inputs
        self._request = self._target.build_request(inputs, self._spaces)

    async def run(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
        measure: bool = False,
    ) -> Outputs:
        """Execute on what lies in the inputs; the outputs lie in the same arrays.

        The mapping that is returned is the same each time, too, if the model fixes the
        shapes of all outputs. Cancelling the call stops the execution at its next
        boundary; until then it goes on using its arrays.

        :param timeout: seconds from now until the deadline.
        :param measure: fill in ``outputs.timing``.
        :raises BusyError: if another run has not ended.
        :raises AsyncnnError: for any other status of the driver.
        """
        if self._is_running or self._launched:
            self.check_free()
        timing = MeasureTiming.YES if measure else MeasureTiming.NO
        deadline = None if timeout is None else deadline_after(timeout)
        trace = begin()
        self._is_running = True
        try:
            result = await self._carry(self._request, timing, deadline)
            if result.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                result = await self._with_more_space(result, timing, deadline)
        finally:
            self._is_running = False
            if trace is not None:
                trace.end("run", Layer.RUNTIME, Phase.EXECUTION)
        if result is not self._result:
            self._take(result)
        return self._outputs

    def run_fenced(
        self,
        wait_for: Iterable[SyncFence | FencedRun] = (),
        *,
        timeout: float | None = None,
        duration: float | None = None,
        measure: bool = False,
    ) -> FencedRun:
        """Launch an execution that begins once ``wait_for`` have signalled.

        Whatever the path, this is the HAL's fenced one. One that has something to wait
        for may be launched before another has ended: its fences are to keep them apart.

        :param timeout: seconds from now until the deadline; waiting counts.
        :param duration: seconds that it may take once all fences have signalled.
        :param measure: fill in the run's ``timing``.
        :raises InvalidArgumentError: if the model leaves the shape of an output open,
            or an input that is copied now is an output of a run that has not ended.
        :raises BusyError: if it waits for nothing, but another has not ended.
        :raises AsyncnnError: if the driver does not take it.
        """
        target = self._target
        target.space.check_fixed()
        awaited: list[SyncFence | FencedRun] = []
        for one in wait_for:
            status = one.status
            if status is None:
                awaited.append(one)
            elif status is not ErrorStatus.NONE:
                return failed_run(one, self._outputs)
        if awaited:
            self._forget_ended()
            if target.elsewhere:
                self._check_settled(awaited)
        else:
            self.check_free()
        self._result = None
        run = launch_fenced(
            target.hal,
            self._request,
            awaited,
            MeasureTiming.YES if measure else MeasureTiming.NO,
            deadline_after(timeout),
            self._loop_timeout_ns,
            nanoseconds(duration),
            self._outputs,
        )
        self._launched.append(run)
        return run

    def check_free(self) -> None:
        """Check that nothing uses the arrays.

        :raises BusyError: if a run has not ended.
        """
        self._forget_ended()
        if self._is_running or self._launched:
            raise BusyError(
                "another run on the same arrays has not returned",
                hint="await it first, or make another burst or reusable execution",
            )

    def _forget_ended(self) -> None:
        # One that was launched later may have ended first.
        self._launched = [run for run in self._launched if run.status is None]

    def _make_space(self) -> None:
        """Make the outputs that are not given, and the request."""
        space = self._target.space
        self._spaces: Sequence[Tensor]
        if self._out is None:
            self._spaces = space.allocate(self._make)
        else:
            allocate = partial(space.allocate, self._make)
            self._spaces = space.completed(self._out, allocate)
        self._request = self._target.build_request(self._inputs, self._spaces)
        self._outputs = space.named(self._spaces) if space.is_fixed else Outputs()

    async def _with_more_space(
        self, result: ExecutionResult, timing: MeasureTiming, deadline: int | None
    ) -> ExecutionResult:
        """Execute until outputs of unknown size have found enough space."""
        for _ in range(MAX_SPACE_ATTEMPTS - 1):
            self._target.space.learn(result.output_shapes)
            self._make_space()
            result = await self._carry(self._request, timing, deadline)
            if result.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                break
        return result

    def _take(self, result: ExecutionResult) -> None:
        """Return what a result says of the outputs.

        :raises AsyncnnError: if it is that of a failure.
        """
        self._target.check_result(result)
        space = self._target.space
        if not space.is_fixed:
            self._outputs = space.shaped(self._spaces, result.output_shapes)
        self._outputs.timing = result.timing
        self._result = result

    def _check_settled(self, awaited: Iterable[SyncFence | FencedRun]) -> None:
        """Check that what others are still writing is not copied now.

        :raises InvalidArgumentError: if it would be.
        """
        runs = [run for run in awaited if isinstance(run, FencedRun)]
        copied: list[Array] = []
        if runs:
            plain = [i for i in self._inputs if isinstance(i, np.ndarray)]
            copied = [array for array in plain if self._target.copies(array)]
        for array in copied:
            for run in runs:
                run.check_not_written(array)

    def __repr__(self) -> str:
        names = [info.name for info in self._target.check.infos]
        outputs = [info.name for info in self._target.space.infos]
        return f"<ReusableExecution {', '.join(names)} -> {outputs}>"
