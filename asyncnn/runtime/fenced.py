"""Fenced runs for applications: `FencedRun`, to be awaited or waited for by others."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np

from asyncnn.callbacks import (
    ExecutionResult,
    FencedOutcome,
    IFencedExecutionCallback,
)
from asyncnn.execution import FencedCompletion, IFencing
from asyncnn.fences import SyncFence
from asyncnn.fences.core import Outcome
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    WrongTypeError,
    waited_in_vain,
)
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death, error_of, refusal_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    Request,
    Timing,
)
from asyncnn.runtime.execution_options import Outputs, timing_of

_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call
_REFUSED = "the driver refused the fenced execution"


class FencedTiming(msgspec.Struct, frozen=True):
    """How long a fenced execution took, since its launch and since its last fence."""

    launched: Timing
    fenced: Timing


class _HalFenced(NamedTuple):
    """A fenced execution as a HAL has launched it: a callback, and a fence or none.

    It has ended well where there is none.
    """

    callback: IFencedExecutionCallback
    given: SyncFence | None = None

    @property
    def fence(self) -> SyncFence:
        return self.given or SyncFence.signalled()

    @property
    def status(self) -> ErrorStatus | None:
        return _NONE if self.given is None else self.given.status

    @property
    def route(self) -> Route | None:
        return self.callback.route

    def get_execution_info(self) -> tuple[ErrorStatus, Timing, Timing]:
        return self.callback.get_execution_info()

    def cancel(self) -> None:
        self.callback.cancel()

    def __await__(self) -> Generator[Any, None, Outcome]:
        """Give the outcome, whatever it is."""
        fence = self.fence
        with suppress(AsyncnnError):
            yield from fence.__await__()
        return Outcome(fence.status or _NONE, fence.reason, None)


End: TypeAlias = FencedCompletion | _HalFenced


class FencedRun:
    """A run that was launched and may have to wait; made by `PreparedModel.run_fenced`.

    Awaiting it gives its outputs, or raises the `AsyncnnError` that it failed with; any
    number of tasks may. Cancelling such a task leaves the run alone, `cancel` ends it.

    ``outputs`` are the arrays that hold the results once it has succeeded: another run
    that waits for this one takes them as inputs. ``fence`` is what anything else may
    wait for, in this process or in others.
    """

    __slots__ = ("_hal", "end", "outputs")

    def __init__(self, hal: IPreparedModel | None, end: End, outputs: Outputs) -> None:
        self.outputs = outputs
        self.end = end
        self._hal = hal

    @property
    def fence(self) -> SyncFence:
        """Signalled once it has succeeded; an error if it has failed."""
        return self.end.fence

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""
        return self.end.status

    @property
    def timing(self) -> FencedTiming | None:
        """How long it took; None unless it was measured and succeeded."""
        _, launched, fenced = self.end.get_execution_info()
        if timing_of(launched) is timing_of(fenced) is None:
            return None
        return FencedTiming(launched, fenced)

    def cancel(self) -> None:
        """End it at the next boundary between two operations, or before it begins.

        What waits for it then fails. Does nothing if it has ended.
        """
        self.end.cancel()

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

    def __await__(self) -> Generator[Any, None, Outputs]:
        outcome = yield from self.end.__await__()
        if outcome.status is not _NONE:
            is_gone = outcome.status is ErrorStatus.DEVICE_UNAVAILABLE
            cause = cause_of_death(self._hal) if is_gone else None
            raise cause or outcome.error
        _, timing, _ = self.end.get_execution_info()
        self.outputs.timing = None if timing is NO_TIMING else timing_of(timing)
        if self.end.route is not None:
            self.outputs.route = self.end.route
        return self.outputs

    def __repr__(self) -> str:
        status = "active" if self.status is None else self.status.name
        return f"<FencedRun {status} -> {list(self.outputs)}>"


def ends_of(
    wait_for: Iterable[SyncFence | FencedRun], fencing: IFencing | None
) -> list[SyncFence | FencedCompletion]:
    """Return what a launch waits for: runs where ``fencing`` knows them, and fences.

    :raises WrongTypeError: if something else is among them.
    """
    ends: list[SyncFence | FencedCompletion] = []
    try:
        for one in wait_for:
            if isinstance(one, SyncFence):
                ends.append(one)
            elif fencing is None or isinstance(one.end, _HalFenced):
                ends.append(one.fence)
            else:
                ends.append(one.end)
    except (TypeError, AttributeError):
        raise WrongTypeError(
            f"wait_for is {wait_for!r}",
            hint="give a list of fenced runs and fences: wait_for=[run]",
        ) from None
    return ends


def launch_fenced(
    hal: IPreparedModel,
    request: Request,
    awaited: Sequence[SyncFence | FencedCompletion],
    options: ExecutionOptions,
    outputs: Outputs,
    fencing: IFencing | None,
) -> FencedRun:
    """Launch an execution whose results go to ``outputs``; by ``fencing``, if given.

    If one of those that `ends_of` has returned has failed, the run has.

    :raises AsyncnnError: if the driver does not take it.
    """
    try:
        end = _launched(hal, fencing, request, awaited, options)
    except AsyncnnError:
        for one in awaited:
            if one.status:
                return _failed_run(one, outputs)
        raise
    return FencedRun(hal, end, outputs)


def _launched(
    hal: IPreparedModel,
    fencing: IFencing | None,
    request: Request,
    awaited: Sequence[SyncFence | FencedCompletion],
    options: ExecutionOptions,
) -> End:
    if fencing is not None:
        return fencing.launch_fenced(request, awaited, options)
    status, fence, callback = hal.execute_fenced(
        request,
        cast("Sequence[SyncFence]", awaited),
        options.measure,
        options.deadline,
        options.loop_timeout,
        options.duration,
    )
    if callback is None:
        raise error_of(hal, status, refusal_of(hal, _REFUSED))
    # Whoever made it, it is of the one class that can also be merged and exported.
    return _HalFenced(callback, cast("SyncFence | None", fence))


def _failed_run(cause: SyncFence | FencedCompletion, outputs: Outputs) -> FencedRun:
    """Return a run that failed because ``cause``, which it waited for, did."""
    assert cause.status is not None
    error = waited_in_vain(cause.reason or cause.status.name)
    outcome = FencedOutcome()
    outcome.complete(error.status, NO_TIMING, NO_TIMING)
    failed = SyncFence.failed(error.status, str(error))
    return FencedRun(None, _HalFenced(outcome, failed), outputs)


async def execute_fenced(
    hal: IPreparedModel,
    request: Request,
    options: ExecutionOptions,
    fencing: IFencing | None = None,
) -> ExecutionResult:
    """Execute ``request`` by the fenced path and wait for the end.

    Cancelling the call cancels the execution. No output shapes are reported.
    """
    try:
        end = _launched(hal, fencing, request, (), options)
    except AsyncnnError as error:
        return ExecutionResult(error.status, (), NO_TIMING, str(error))
    try:
        outcome = await end
    except asyncio.CancelledError:
        end.cancel()
        raise
    status, launched, _ = end.get_execution_info()
    return ExecutionResult(status, (), launched, outcome.reason, None, end.route)
