"""Fenced runs: each is its own end, for tasks, other runs, and other processes.

Source: HAL 1.3/IPreparedModel.hal (executeFenced) and 1.3/IFencedExecutionCallback.hal.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast

import msgspec
import numpy as np

from asyncnn.callbacks import (
    Completion,
    ExecutionResult,
    SynchronousByCallback,
    result_of,
)
from asyncnn.execution import Outputs, RunTiming, timing_of
from asyncnn.fences import SyncFence
from asyncnn.fences.core import Core, FenceOutcome
from asyncnn.fences.local import LocalCore, pipe_lock
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    error_for,
    too_many,
    waited_in_vain,
)
from asyncnn.hal.interfaces import (
    IBurstCallback,
    IBurstContext,
    IFencedExecutionCallback,
    IPreparedModel,
    ISyncFence,
    cause_of_death,
    error_of,
    refusal_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    Handle,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.hal.validate import execution_options
from asyncnn.turn import Waiter

logger = logging.getLogger(__name__)

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_UNKNOWN = RunTiming(None, None)
_REFUSED = "the driver refused the fenced execution"


class FencedTiming(msgspec.Struct, frozen=True):
    """How long a fenced execution took, since its launch and since its last fence."""

    launched: RunTiming
    fenced: RunTiming


class FencedRun(Completion, IFencedExecutionCallback):
    """A run that was launched and may have to wait; made by `PreparedModel.run_fenced`.

    Awaiting it gives its outputs, or raises the `AsyncnnError` that it failed with; any
    number of tasks may. Cancelling such a task leaves the run alone, `cancel` ends it.

    ``outputs`` are the arrays that hold the results once it has succeeded: another run
    that waits for this one takes them as inputs. ``fence`` is what anything else may
    wait for, in this process or in others.

    Whatever executes it makes it, and completes it on ``loop``. What ``is_remote`` is
    known first to another process, which writes to the pipe of its fence; see
    `asyncnn.fences.core.Producer`.
    """

    is_remote: ClassVar[bool] = False

    loop: asyncio.AbstractEventLoop
    outputs: Outputs
    prepared: IPreparedModel | None = None
    ended_ns: int
    _core: Core | None = None
    _dependants: "list[Callable[[FencedRun], object]] | None" = None
    _fenced: Timing

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""
        result = self.result
        return None if result is None else result.status

    @property
    def reason(self) -> str:
        """Why it failed; empty otherwise."""
        result = self.result
        return "" if result is None else result.reason

    @property
    def fence(self) -> SyncFence:
        """Signalled once it has succeeded; an error if it has failed.

        Another object each time, to be had on any thread.
        """
        if self._core is None:
            with pipe_lock:  # of several threads that ask, one makes it
                if self._core is None:
                    self._core = LocalCore(self)
        # Behind the core, which `complete` looks for after it has set the result.
        if self._result is not None:
            self._core.resolve(self._outcome(self._result))
        return SyncFence(self._core)

    @property
    def timing(self) -> FencedTiming | None:
        """How long it took; None unless it was measured and succeeded."""
        _, *timings = self.get_execution_info()
        launched, fenced = map(timing_of, timings)
        if launched is fenced is None:
            return None
        return FencedTiming(launched or _UNKNOWN, fenced or _UNKNOWN)

    def get_execution_info(self) -> tuple[ErrorStatus, Timing, Timing]:
        """Return status and timings since launch and since the last fence."""
        result = self.result
        if result is None:
            return ErrorStatus.GENERAL_FAILURE, NO_TIMING, NO_TIMING
        return result.status, result.timing, self._fenced

    @abstractmethod
    def cancel(self) -> None:
        """End it at the next boundary between two operations, or before it begins.

        What waits for it then fails. Does nothing if it has ended.
        """

    def hand_over(self, write_end: int) -> None:
        """Have the descriptor written to elsewhere, if it ``is_remote``."""
        raise NotImplementedError

    def complete(
        self,
        result: ExecutionResult,
        fenced: Timing = NO_TIMING,
        at_ns: int | None = None,
    ) -> None:
        """End it, on its loop and once, just now or at ``at_ns``."""
        self.ended_ns = at_ns or time.monotonic_ns()
        self._fenced = fenced
        if result.is_left:
            self.may_still_write = True
        self._resolve(result)
        if self._core is not None:
            self._core.resolve(self._outcome(result))
        dependants = self._dependants
        if dependants is not None:
            self._dependants = None
            for notify in dependants:
                notify(self)

    def tell(self, callback: "Callable[[FencedRun], object]") -> bool:
        """Have ``callback`` called inside the call that ends it, which is to come.

        False if that is not on the running loop; then its fence calls it.
        """
        if running_loop() is not self.loop:
            return False
        if self._dependants is None:
            self._dependants = []
        self._dependants.append(callback)
        return True

    def add_done_callback(self, callback: "Callable[[Any], object]") -> None:
        """Have ``callback`` called at its end, as `tell` does, or else soon."""
        if self.status is not None:
            asyncio.get_running_loop().call_soon(callback, self)
        elif not self.tell(callback):
            self.fence.add_done_callback(callback)

    async def ended(self) -> ExecutionResult:
        """Wait for its end, whatever that is; cancelling that cancels the run.

        For those that read the results where they lie.
        """
        self.outputs = Outputs()
        try:
            with suppress(AsyncnnError):
                await self
        except asyncio.CancelledError:
            self.cancel()
            raise
        assert self.result is not None
        return self.result

    def abandon(self) -> None:
        """See `cancel`."""
        self.cancel()

    def check_not_written(self, array: Array) -> None:
        """Check that ``array``, which is about to be copied, is not one of the outputs.

        :raises InvalidArgumentError: if it is.
        """
        for name, output in self.outputs.items():
            if np.may_share_memory(output, array):
                raise InvalidArgumentError(
                    f"output {name} of a run that has not ended cannot be sent to "
                    f"another process yet",
                    hint="give that run out=shared_array(...)",
                )

    @property
    def route(self) -> Route | None:
        """How it went, if that is not the usual way."""
        result = self.result
        return None if result is None else result.route

    @property
    def producer(self) -> "FencedRun":
        """Itself; it is a fence for who waits, but for its descriptor."""
        return self

    def duplicate(self) -> SyncFence:
        """Return its fence."""
        return self.fence

    def _outcome(self, result: ExecutionResult) -> FenceOutcome:
        return FenceOutcome(result.status, result.reason, self.ended_ns)

    def _leave(self, waiter: Waiter) -> None:
        """Forget a task that was cancelled: others may wait."""
        if self._waiting is not None:
            self._waiting.pop(waiter, None)

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, Outputs]: ...  # type: ignore[override]

    def _wait_elsewhere(self) -> Generator[Any, None, Any]:
        """Wait on another loop, by the fence."""
        with suppress(AsyncnnError):
            yield from self.fence.__await__()
        return (yield from Completion.__await__(self))

    def _value(self, result: ExecutionResult) -> Outputs:
        if result.status is not _NONE:
            is_gone = result.status is ErrorStatus.DEVICE_UNAVAILABLE
            cause = cause_of_death(self.prepared) if is_gone else None
            raise cause or error_for(result.status, result.reason)
        outputs = self.outputs
        timing = result.timing
        outputs.timing = None if timing is NO_TIMING else timing_of(timing)
        if result.route is not None:
            outputs.route = result.route
        return outputs

    def __repr__(self) -> str:
        status = "active" if self.status is None else self.status.name
        return f"<FencedRun {status}>"


Source: TypeAlias = ISyncFence | FencedRun
"""What a run may wait for."""

Launch: TypeAlias = Callable[[Request, Sequence[Source], ExecutionOptions], FencedRun]
"""Launches a run that begins once others have ended.

:raises AsyncnnError: if it is not taken.
"""


class EndedRun(FencedRun):
    """A run that has ended before anything was launched."""

    def __init__(self, error: AsyncnnError) -> None:
        super().__init__()
        self.complete(result_of(error))

    def cancel(self) -> None:
        """Do nothing: it has ended."""


class _HalRun(FencedRun):
    """A run that the HAL's call has launched: a callback, and a fence or none.

    It has ended well where there is none.
    """

    def __init__(
        self, callback: IFencedExecutionCallback, given: SyncFence | None
    ) -> None:
        super().__init__()
        self._callback = callback
        self._given = given

    @property
    def result(self) -> ExecutionResult | None:
        given, callback = self._given, self._callback
        if self._result is None and (given is None or given.status is not None):
            status, launched, fenced = callback.get_execution_info()
            reason, at_ns = "", None
            if given is not None:
                status, reason = given.status or _NONE, given.reason
                at_ns = given.signalled_at_ns
            more = None, callback.route, callback.may_still_write
            shown = ExecutionResult(status, (), launched, reason, *more)
            self.complete(shown, fenced, at_ns)
        return self._result

    @property
    def fence(self) -> SyncFence:
        """The one that was given; it has its own way to other processes."""
        given = self._given
        return SyncFence.signalled() if given is None else given.duplicate()

    def tell(self, callback: Callable[[FencedRun], object]) -> bool:
        """Leave that to the fence."""
        return False

    def cancel(self) -> None:
        self._callback.cancel()

    def __await__(self) -> Generator[Any, None, Outputs]:  # type: ignore[override]
        if self.result is None and self._given is not None:
            with suppress(AsyncnnError):
                yield from self._given.__await__()
            assert self.result is not None
        return (yield from super().__await__())


class IFencing(Protocol):
    """A prepared model whose fenced executions are their own fences. Not in the HAL."""

    launch_fenced: Launch


def launcher_of(prepared: IPreparedModel) -> Launch:
    """Return what launches fenced runs: the model's own, or by the HAL's call.

    What wraps another model, and has all else of that, is to see the executions.
    """
    if hasattr(type(prepared), "launch_fenced"):
        return cast("IFencing", prepared).launch_fenced
    return partial(_launch_by_hal, prepared)


def launched_for(
    prepared: IPreparedModel,
    launch: Launch,
    request: Request,
    wait_for: Sequence[Source],
    options: ExecutionOptions,
    outputs: Outputs,
) -> FencedRun:
    """Return a run that is launched, whose results go to ``outputs``.

    If one of those that it waits for has failed, it has failed as well.

    :raises AsyncnnError: if ``prepared`` does not take it.
    """
    try:
        run = launch(request, wait_for, options)
    except AsyncnnError:
        failed = next((one for one in wait_for if one.status), None)
        if failed is None or failed.status is None:
            raise
        run = EndedRun(waited_in_vain(failed.reason or failed.status.name))
    run.outputs, run.prepared = outputs, prepared
    return run


async def execute_fenced(
    launch: Launch, request: Request, options: ExecutionOptions
) -> ExecutionResult:
    """Execute by the fenced path and wait; cancelling that cancels the execution."""
    try:
        run = launch(request, (), options)
    except AsyncnnError as error:
        return result_of(error)
    return await run.ended()


def _launch_by_hal(
    prepared: IPreparedModel,
    request: Request,
    wait_for: Sequence[Source],
    options: ExecutionOptions,
) -> FencedRun:
    status, fence, callback = prepared.execute_fenced(
        request,
        [each.fence if isinstance(each, FencedRun) else each for each in wait_for],
        options.measure,
        options.deadline,
        options.loop_timeout,
        options.duration,
    )
    if callback is None:
        raise error_of(prepared, status, refusal_of(prepared, _REFUSED))
    # Whoever made it, it is of the one class that can also be merged and exported.
    return _HalRun(callback, cast("SyncFence | None", fence))


def too_many_fenced(most: int) -> AsyncnnError:
    """Return the error where ``most`` of a device's fenced executions are pending."""
    limit, hint = "DeviceSettings.max_waiting", "await some of them first"
    return too_many("pending fenced executions", limit, most, hint=hint)


class BasePreparedModel(SynchronousByCallback):
    """The part of an `IPreparedModel` that follows from few calls of its own.

    ``refusal`` says why it has refused a fenced execution last; see `IExplaining`.
    """

    refusal = ""

    @abstractmethod
    def launch_fenced(
        self, request: Request, wait_for: Sequence[Source], options: ExecutionOptions
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        :raises AsyncnnError: if it is not taken.
        """

    @abstractmethod
    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst; see `IPreparedModel.configure_execution_burst`."""

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst; see `IPreparedModel.configure_execution_burst`."""
        asked = BurstArguments(callback, request_channel, result_channel)
        return await self._configure(asked)

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
        limits = deadline, loop_timeout_duration, duration
        try:
            options = execution_options(measure, *limits)
            run = self.launch_fenced(request, wait_for, options)
        except AsyncnnError as error:
            logger.info("fenced execution refused: %s: %s", error.status.name, error)
            self.refusal = str(error)
            return error.status, None, None
        # What waits for nothing and is over already needs no fence.
        is_over = not wait_for and run.status is _NONE
        return _NONE, None if is_over else run.fence, run
