"""Requests that are built once and executed again and again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult
from asyncnn.execution import IInProcess, Outputs, reusable, timing_of
from asyncnn.fenced_run import FencedRun, Launch, Source, launched_for
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    InvalidArgumentError,
    WrongTypeError,
)
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
)
from asyncnn.interpreter_hooks import forked_error
from asyncnn.memory.slabs import Part, isolated_array, place_of
from asyncnn.offload import offload
from asyncnn.runtime.buffers import DeviceBuffer, MakeArray
from asyncnn.runtime.execution_options import options_for
from asyncnn.runtime.home import Home, get_ident
from asyncnn.runtime.model import has_fixed_shape, position_of
from asyncnn.runtime.requests import MAX_SPACE_ATTEMPTS, InputCheck, OutputSpace, Tensor
from asyncnn.runtime.threadsafe import Done, ThreadsafeRun
from asyncnn.tracing import Layer, Phase, active, begin

Carry: TypeAlias = Callable[[Request, ExecutionOptions], Awaitable[ExecutionResult]]
"""Executes a request by one of the HAL's calls."""

BuildRequest: TypeAlias = Callable[[Sequence[Tensor | None], Sequence[Tensor]], Request]
"""Makes a request from its inputs and outputs, as a `RequestBuilder` does."""


_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_MEASURED, _NOT_MEASURED = MeasureTiming.YES, MeasureTiming.NO


class Target(NamedTuple):
    """A prepared model, and what requests to it are made by.

    It is ``elsewhere`` if arrays reach it by being copied unless they are shared.
    ``make_shared`` makes arrays that are. A burst that was cancelled at its deadline is
    waited for ``deadline_grace`` seconds. It is used at its ``home`` alone, that is on
    ``loop``, if one ran, and keeps its ``owner``, the device. ``route`` is how
    executions usually go. ``launch`` launches fenced ones.
    """

    hal: IPreparedModel
    check: InputCheck
    space: OutputSpace
    build_request: BuildRequest
    elsewhere: bool
    make_shared: MakeArray
    deadline_grace: float
    home: Home
    launch: Launch
    owner: object = None
    route: Route | None = None
    loop: asyncio.AbstractEventLoop | None = None
    local: IInProcess | None = None

    def copies(self, array: Array) -> bool:
        """Return whether an array that reaches it is copied."""
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

        :raises AsyncnnError: by the status; what has ended for good says why.
        """
        if result.status is ErrorStatus.DEVICE_UNAVAILABLE and result.kind is None:
            cause = cause_of_death(self.hal)
            if cause is not None:
                raise cause
        name = getattr(self.owner, "name", "a device")
        where = name if self.route is None else "+".join(self.route.devices)
        result.raise_for_status(f"execution on {where}")

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

    def spaces(
        self, given: Sequence[Tensor | None] | None, make: MakeArray = np.empty
    ) -> Sequence[Tensor]:
        """Return where outputs go: ``given``, and new arrays for those that are not."""
        if given is None:
            return tuple(self.space.allocate(make).values())
        return self.space.completed(given, partial(self.space.allocate, make))

    async def with_more_space(
        self,
        inputs: Sequence[Tensor | None],
        given: Sequence[Tensor | None] | None,
        spaces: Sequence[Tensor],
        make: MakeArray,
        carry: Carry,
        options: ExecutionOptions,
        result: ExecutionResult,
    ) -> tuple[Request, Sequence[Tensor], ExecutionResult]:
        """Execute again until outputs of unknown size have found enough space.

        In ``spaces`` they have not. Returns the last request, the arrays that its
        outputs lie in, and its result.
        """
        for _ in range(MAX_SPACE_ATTEMPTS - 1):
            self.space.learn(result.output_shapes, spaces)
            spaces = self.spaces(given, make)
            request = self.build_request(inputs, spaces)
            result = await carry(request, options)
            if result.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                break
        return request, spaces, result

    def sources(
        self, wait_for: Iterable[Source], inputs: Sequence[Tensor | None]
    ) -> Sequence[Source]:
        """Return what a run with these inputs waits for.

        :raises WrongTypeError: if something that cannot be waited for is among it.
        :raises InvalidArgumentError: if an input that is copied now is still being
            written by one of the runs.
        """
        sources = tuple(wait_for) if isinstance(wait_for, Iterable) else (None,)
        if not all(isinstance(each, SyncFence | FencedRun) for each in sources):
            raise WrongTypeError(
                f"wait_for is {wait_for!r}",
                hint="give a list of fenced runs and fences: wait_for=[run]",
            )
        if self.elsewhere:
            runs = [each for each in sources if isinstance(each, FencedRun)]
            runs = [run for run in runs if run.status is None]
            plain = [array for array in inputs if isinstance(array, np.ndarray)]
            for array in filter(self.copies, plain):
                for run in runs:
                    run.check_not_written(array)
        return sources


class ReusableExecution:
    """A request that is built once, to be executed as often as wanted.

    Made by `PreparedModel.reusable` and `Burst.reusable`. Write to the arrays of
    `input`, await `run`, read `output`'s. All executions use the same arrays, so
    there is one at a time: it ``is_running`` then. Who claims that itself has
    ``is_lent`` set for the one run inside. Their memory goes with the last reference to
    them. Outputs for which ``out`` has None get shared arrays.
    ``threadsafe`` is the prepared model if its executions may be launched on any
    thread.
    """

    def __init__(
        self,
        target: Target,
        inputs: Sequence[Tensor | None],
        out: Sequence[Tensor | None] | None,
        carry: Carry,
        options: ExecutionOptions = DEFAULT_OPTIONS,
        *,
        threadsafe: IInProcess | None = None,
    ) -> None:
        self._target = target
        self._inputs = inputs
        self._out = out
        self._carry = carry
        self._options = options
        self.is_running = self.is_lent = False
        self._launched: list[FencedRun] = []
        self._result: ExecutionResult | None = None
        self._spaces = target.spaces(out, target.make_shared)
        request = target.build_request(inputs, self._spaces)
        self._request = reusable(target.hal, request)
        is_fixed = target.space.is_fixed
        self._outputs = target.space.named(self._spaces) if is_fixed else Outputs()
        has_buffers = any(
            isinstance(tensor, DeviceBuffer) for tensor in (*inputs, *self._spaces)
        )
        self._threadsafe = threadsafe if is_fixed and not has_buffers else None

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
        request = self._target.build_request(inputs, self._spaces)
        self._request = reusable(self._target.hal, request)

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
        home = self._target.home
        if get_ident() != home.loop._thread_id:
            home.refuse("the model")
        is_lent, self.is_lent = self.is_lent, False
        if (self.is_running and not is_lent) or self._launched:
            self.check_free()
        options = self._options
        if measure or timeout is not None:
            options = self._options_for(timeout, None, measure)
        trace = None if active.recorder is None else begin()
        self.is_running = True
        try:
            result = await self._carry(self._request, options)
            if result.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                target = self._target
                self._request, self._spaces, result = await target.with_more_space(
                    self._inputs,
                    self._out,
                    self._spaces,
                    target.make_shared,
                    self._carry,
                    options,
                    result,
                )
                self._result = None  # of other arrays
        finally:
            self.is_running = is_lent
            if trace is not None:
                trace.end("run", Layer.RUNTIME, Phase.EXECUTION)
        if result is not self._result:
            self._take(result, measure)
        return self._outputs

    def launch_threadsafe(
        self, done: Done, *, timeout: float | None = None
    ) -> ThreadsafeRun:
        """Launch an execution from any thread, and return without waiting for it.

        ``done`` is called exactly once, with None or the error of the family. A device
        of this process calls it on the thread that has computed: no event loop has a
        part in the execution, and that thread computes nothing else until ``done``
        returns. It may launch the next execution. Any other device, a burst, and a
        model with state or open shapes are used on their event loop, which calls
        ``done`` as well; it has to run. What ``done`` raises is logged.

        :param timeout: seconds from now until the deadline.
        :raises BusyError: if another run has not ended.
        :raises DeviceClosedError: if the event loop that is needed is closed.
        :raises ForkedError: if this process is a fork of the one that prepared it.
        """
        if self._target.home.is_inherited:
            raise forked_error("the model")
        options = self._options
        if timeout is not None:
            options = self._options_for(timeout, None, False)
        run = ThreadsafeRun(self, done)
        # Nothing is called in between, where another thread could launch it as well.
        while self.is_running or self._launched:
            self.check_free()
        self.is_running = True
        if self._threadsafe is None:
            awaited = partial(self.run, timeout=timeout)
            run.go_by(self._target.loop, awaited)
        else:
            self._threadsafe.execute_threadsafe(
                self._request,
                options.measure,
                options.deadline,
                options.loop_timeout,
                run,
            )
        return run

    def run_blocking(
        self,
        execute: Callable[[Request, MeasureTiming], ExecutionResult],
        measure: bool,
    ) -> Outputs:
        """Do what `run` does by a call that blocks; see `Burst.run_in_place_blocking`.

        :raises AsyncnnError: as `run`.
        """
        # Nothing is called in between, where another thread could begin as well.
        while self.is_running or self._launched:
            self.check_free()
        self.is_running = True
        try:
            result = execute(self._request, _MEASURED if measure else _NOT_MEASURED)
        finally:
            self.is_running = False
        if result is not self._result:
            self._take(result, measure)
        return self._outputs

    def release(self) -> None:
        """See `IOneAtATime`: for what `launch_threadsafe` has launched."""
        self.is_running = False

    def take(self, result: ExecutionResult) -> AsyncnnError | None:
        """See `IOneAtATime`: for what `launch_threadsafe` has launched."""
        try:
            self._take(result)
        except AsyncnnError as error:
            return error
        return None

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
        if get_ident() != target.home.loop._thread_id:
            target.home.refuse("the model")
        target.space.check_fixed()
        sources = target.sources(wait_for, self._inputs)
        if any(source.status is None for source in sources):
            self._forget_ended()
        else:
            self.check_free()
        self._result = None
        options = self._options_for(timeout, duration, measure)
        self._outputs.route = target.route
        run = launched_for(
            target.hal, target.launch, self._request, sources, options, self._outputs
        )
        self._launched.append(run)
        return run

    def _options_for(
        self, timeout: float | None, duration: float | None, measure: bool
    ) -> ExecutionOptions:
        options = options_for(timeout=timeout, duration=duration, measure=measure)
        loop_timeout = self._options.loop_timeout
        return (
            options
            if loop_timeout is None
            else replace(options, loop_timeout=loop_timeout)
        )

    def check_free(self) -> None:
        """Check that nothing uses the arrays.

        :raises BusyError: if a run has not ended.
        """
        self._forget_ended()
        if self.is_running or self._launched:
            raise BusyError(
                "another run on the same arrays has not returned",
                hint="await it first, or make another burst or reusable execution",
            )

    def _forget_ended(self) -> None:
        # One that was launched later may have ended first.
        self._launched = [run for run in self._launched if run.status is None]

    def _take(self, result: ExecutionResult, is_measured: bool = False) -> None:
        """Return what a result says of the outputs."""
        if result.status is not _NONE:
            self._target.check_result(result)
        space = self._target.space
        if not space.is_fixed:
            self._outputs = space.shaped(self._spaces, result.output_shapes)
        self._outputs.timing = timing_of(result.timing) if is_measured else None
        self._outputs.route = result.route or self._target.route
        self._result = result

    def __repr__(self) -> str:
        names = [info.name for info in self._target.check.infos]
        outputs = [info.name for info in self._target.space.infos]
        return f"<ReusableExecution {', '.join(names)} -> {outputs}>"
