"""Bursts for applications: arrays in shared memory, run again and again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np

from asyncnn.burst import BurstController, BurstStatistics
from asyncnn.burst.controller import CLOSED, IN_FLIGHT
from asyncnn.burst.link import failed
from asyncnn.callbacks import Completion, ExecutionResult
from asyncnn.deadlines import deadline_after, lateness, seconds_until
from asyncnn.execution import IBinding, IInProcess, Outputs
from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    DeviceClosedError,
    ForkedError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    WrongLoopError,
)
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Memory,
    Request,
)
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.buffers import SHORT_BYTES, Places, no_place_for_buffers
from asyncnn.runtime.execution_options import copies_now, copies_of
from asyncnn.runtime.home import get_ident
from asyncnn.runtime.model import bytes_of, has_fixed_shape, position_of
from asyncnn.runtime.opening import Opened, opens
from asyncnn.runtime.requests import Inputs, Results, Tensor
from asyncnn.runtime.reusable import Carry, ReusableExecution, Target


@runtime_checkable
class IRecovering(IPreparedModel, Protocol):
    """A prepared model that can make up for executions of a burst that failed."""

    @property
    def queued(self) -> IPreparedModel | None:
        """The model of a driver that bursts are with; None if none has all of it."""
        ...

    @property
    def is_well(self) -> bool:
        """Whether there is nothing against a burst; `launch` knows better then."""
        ...

    def launch(
        self, execution: Request, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch any request; see `IBinding.launch`."""
        ...

    def recovers_from(self, status: ErrorStatus) -> bool:
        """Return whether `recover` may do better than to end so."""
        ...

    def recover(
        self, request: Request, options: ExecutionOptions, failure: ExecutionResult
    ) -> Awaitable[ExecutionResult]:
        """Go on where an execution has failed in a burst."""
        ...


@runtime_checkable
class IRoutedElsewhere(IPreparedModel, Protocol):
    """A model of another process, which knows how executions go as a rule."""

    @property
    def usual_route(self) -> Route | None:
        """How they go; None if the device is not made of several."""
        ...


_LOOK_S = 0.05
"""Between two looks of a blocked thread whether the event loop is closed."""


class Burst(Opened):
    """A series of runs, one at a time; made by `PreparedModel.burst`.

    Inputs and outputs lie in memory that is shared with the driver. `run` copies arrays
    in and out. Without copies: write to the arrays of `input`, await `run_in_place`,
    read `output`'s; `reusable` makes further sets of arrays.

    A driver that dies fails the run under way. The next one opens the burst anew, if
    the connection is supervised.
    """

    def __init__(
        self, target: Target, controller: "BurstController | LocalBurst", carry: Carry
    ) -> None:
        self._target = target
        self._controller = controller
        self._carry = carry
        make = target.make_shared
        first = [
            make(info.dimensions, info.dtype) if has_fixed_shape(info) else None
            for info in target.check.infos
        ]
        self._inputs = Places(first, make)
        self._own = ReusableExecution(target, tuple(first), None, carry)
        infos = (*target.check.infos, *target.space.infos)
        # As far as shapes are fixed: what is usual then is no longer than that.
        is_fixed = all(map(has_fixed_shape, infos))
        self._is_short = is_fixed and sum(map(bytes_of, infos)) <= SHORT_BYTES

    def input(self, which: str | int = 0) -> Array:
        """Return the array that an input is read from, by name or position.

        It stays the same for as long as the model fixes its shape.

        :raises InvalidArgumentError: if there is no such input, or its shape is open
            and none was given yet.
        """
        infos = self._target.check.infos
        position = position_of("input", infos, which)
        array = self._inputs.arrays[position]
        if array is None:
            raise InvalidArgumentError(
                f"input {infos[position].name} has no fixed shape",
                hint="give it to run first",
            )
        return array

    def output(self, which: str | int = 0) -> Array:
        """Return the array that an output was last written to, by name or position.

        It is the same in every run if the model fixes the shapes of all its outputs.

        :raises InvalidArgumentError: if there is no such output, or the model leaves
            shapes open and nothing was run yet.
        """
        return self._own.output(which)

    async def run(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as on every path
        measure: bool = False,
    ) -> Outputs:
        """Copy inputs in, execute, and return copies of the outputs.

        Cancelling the call stops the execution at its next boundary.

        :param timeout: seconds from now until the deadline, at which it is stopped.
        :param measure: fill in ``outputs.timing``.
        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        :raises BusyError: if another run has not returned.
        :raises AsyncnnError: for any other status of the driver.
        """
        deadline = None if timeout is None else deadline_after(timeout)
        own = self._own
        if own.is_running:
            own.check_free()
        own.is_running = True
        try:
            check, places = self._target.check, self._inputs
            usual = check.usual(inputs)
            if usual is not None and self._is_short:
                last = places.put_now(usual)
            else:
                last = await places.put(usual or await check.converted(inputs))
            if last:
                self._move(last)
            if deadline is not None:
                timeout = seconds_until(deadline)
            own.is_lent = True
            views = await own.run(timeout=timeout, measure=measure)
            return (
                copies_now(views, views)
                if self._is_short
                else await copies_of(views, views)
            )
        finally:
            own.is_running = own.is_lent = False

    def _move(self, last: Iterable[Array | None]) -> None:
        """Use other arrays from now on; the driver need not remember the last ones."""
        for array in last:
            found = None if array is None else place_of(array)
            if found is not None:
                self._controller.free_memory(found[0])
        self._own.rebind(tuple(self._inputs.arrays))

    def run_in_place(
        self, *, timeout: float | None = None, measure: bool = False
    ) -> Coroutine[Any, Any, Outputs]:
        """Execute on what lies in the inputs; the outputs lie in the same arrays.

        :raises AsyncnnError: as `run`.
        """
        return self._own.run(timeout=timeout, measure=measure)

    def run_in_place_blocking(self, *, measure: bool = False) -> Outputs:
        """Do what `run_in_place` does, blocking this thread: one without an event loop.

        That is the shortest way from a thread to a driver process and back. The event
        loop of the burst has to run, in another thread. There is no deadline, and a
        burst that the driver has ended is opened anew by an awaited run alone.

        :raises WrongLoopError: on the thread of that loop, which would stand still.
        :raises AsyncnnError: as `run_in_place`.
        """
        if get_ident() == self._target.home.loop._thread_id:
            raise WrongLoopError(
                "the event loop of the burst runs on this thread, which must not block",
                hint="await run_in_place instead",
            )
        return self._own.run_blocking(self._controller.execute_blocking, measure)

    def reusable(
        self, inputs: Inputs | None = None, *, out: Results | None = None
    ) -> ReusableExecution:
        """Build a request on other arrays, to be executed by this burst.

        One set of arrays can be filled while the driver works on another. Runs of one
        burst still follow one another.

        :param inputs: arrays of `shared_array`; new ones are made by default.
        :param out: likewise.
        :raises InvalidArgumentError: if an array is missing, unknown, of the wrong
            dtype or shape, or not shared, or a shape is open and none is given.
        """
        settled = self._target.settled_inputs(inputs)
        given = self._target.settled_outputs(out)
        for tensor in (*settled, *(given or ())):
            _check_shared(tensor)
        return ReusableExecution(self._target, settled, given, self._carry)

    def statistics(self) -> BurstStatistics:
        """Return how many runs went through the queues, and how many did not."""
        return self._controller.statistics()

    def __repr__(self) -> str:
        inputs = ", ".join(info.name for info in self._target.check.infos)
        return f"<Burst {inputs} -> {[i.name for i in self._target.space.infos]}>"


@opens("burst")
async def open_burst(target: Target, *, spins: bool) -> AsyncIterator[Burst]:
    """Open a burst.

    :raises AsyncnnError: if the driver refuses it.
    """
    target.home.check("the model")
    hal = target.hal
    if isinstance(hal, IRoutedElsewhere) and not isinstance(hal, IRecovering):
        # Packets have no room for a route: which one was taken is not known here.
        target = target._replace(route=None)
    async with open_carry(target, spins=spins) as (controller, carry):
        yield Burst(target, controller, carry)


@asynccontextmanager
async def open_carry(
    target: Target, *, spins: bool, names_buffers: bool = False
) -> AsyncIterator[tuple["BurstController | LocalBurst", Carry]]:
    """Open what executes requests by burst, for an ``async with`` block.

    :param names_buffers: requests name device-managed buffers. A framework's may
        be its own, so it executes, and not one of its devices by a burst.
    :raises AsyncnnError: if the driver refuses it.
    """
    hal: IPreparedModel = target.hal
    queued: IPreparedModel | None = hal
    if isinstance(hal, IRecovering):
        queued = None if names_buffers else hal.queued
    elif isinstance(hal, IInProcess):
        queued = None
    burst: BurstController | LocalBurst | None = None
    if queued is not None:
        grace = target.deadline_grace
        try:
            burst = await BurstController.open(
                queued, spins=spins, deadline_grace=grace
            )
        except AsyncnnError:
            if queued is hal:
                raise
    if burst is None:
        death = cause_of_death(hal)
        if isinstance(death, DeviceClosedError):
            raise death
        burst = LocalBurst(hal)  # type: ignore[arg-type]  # as both have `launch`
    with burst:
        carry: Carry = burst.execute
        if isinstance(hal, IRecovering) and isinstance(burst, BurstController):
            carry = partial(_recovered, hal, burst)
        yield burst, carry


class LocalBurst:
    """A burst of a model of this process: nothing travels, so it has no queues.

    For one execution at a time, as a `BurstController`: after one that was cancelled,
    the next waits until that uses its arrays no more.
    """

    def __init__(self, model: IBinding) -> None:
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._is_busy = self._is_closed = False
        self._owed: Completion | None = None
        self._sent = 0

    async def execute(
        self, request: Request, options: ExecutionOptions = DEFAULT_OPTIONS
    ) -> ExecutionResult:
        """Execute and return the result; see `BurstController.execute`."""
        if self._is_busy:
            return failed(BusyError(IN_FLIGHT))
        self._is_busy = True
        try:
            if self._owed is not None:
                await self._settled(self._owed, options.deadline)
            if self._is_closed:
                return failed(DeviceClosedError(CLOSED))
            self._sent += 1
            launch = self._model.launch
            self._owed = end = cast("Completion", launch(request, options))
            result = await end
            self._owed = None
        except MissedDeadlineTransientError as error:
            return failed(error)
        finally:
            self._is_busy = False
        return failed(DeviceClosedError(CLOSED)) if self._is_closed else result

    async def _settled(self, owed: Completion, deadline: int | None) -> None:
        asked_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await owed
        except TimeoutError:
            raise MissedDeadlineTransientError(
                f"{lateness(deadline or 0, asked_ns)}; the execution before it, which "
                "was cancelled, has not ended"
            ) from None
        self._owed = None

    def execute_blocking(
        self, request: Request, measure: MeasureTiming = MeasureTiming.NO
    ) -> ExecutionResult:
        """Execute on the event loop, and block this thread until then."""
        executed = self.execute(request, ExecutionOptions(measure))
        try:
            call = asyncio.run_coroutine_threadsafe(executed, self._loop)
            while not self._loop.is_closed():
                with suppress(TimeoutError):
                    return call.result(_LOOK_S)
        except (RuntimeError, CancelledError):  # it is closed, or about to be
            executed.close()
        return failed(DeviceClosedError("the event loop of the burst is closed"))

    def free_memory(self, memory: Memory) -> None:
        """Do nothing: nothing of a pool is kept."""

    def statistics(self) -> BurstStatistics:
        """Return what was done so far."""
        return BurstStatistics(self._sent, 0, "", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what runs; no more is taken."""
        self._is_closed = True
        if self._owed is not None:
            self._owed.abandon()


async def _recovered(
    hal: IRecovering,
    controller: BurstController,
    request: Request,
    options: ExecutionOptions = DEFAULT_OPTIONS,
) -> ExecutionResult:
    """Execute by a burst and, if that fails as no CPU would, go on as ``hal`` does."""
    if not hal.is_well:
        return await hal.launch(request, options)
    result = await controller.execute(request, options)
    if (
        result.status is ErrorStatus.NONE
        or result.kind in _OWN_MISTAKES
        or not hal.recovers_from(result.status)
    ):
        return result
    return await hal.recover(request, options, result)


_OWN_MISTAKES = (BusyError, DeviceClosedError, ForkedError)
"""Failures of a burst that are the application's."""


def _check_shared(tensor: Tensor | None) -> None:
    """Check that a burst can name an argument."""
    if tensor is None:
        return
    if not isinstance(tensor, np.ndarray):
        raise no_place_for_buffers()
    if place_of(tensor) is None:
        raise InvalidArgumentError(
            "an array of a burst is memory of this process alone",
            hint="asyncnn.shared_array makes memory that the driver shares",
        )
