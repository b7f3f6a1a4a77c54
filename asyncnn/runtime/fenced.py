"""Fenced runs for applications: `FencedRun`, to be awaited or waited for by others."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from asyncnn.callbacks import (
    ExecutionResult,
    FencedOutcome,
    IFencedExecutionCallback,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    WrongTypeError,
    waited_in_vain,
)
from asyncnn.hal.interfaces import IPreparedModel, cause_of_death, error_of, refusal_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    Request,
    Timing,
)
from asyncnn.runtime.execution_options import Outputs, timing_of

_REFUSED = "the driver refused the fenced execution"


class FencedTiming(msgspec.Struct, frozen=True):
    """How long a fenced execution took, since its launch and since its last fence."""

    launched: Timing
    fenced: Timing


class FencedRun:
    """A run that was launched and may have to wait; made by `PreparedModel.run_fenced`.

    Awaiting it gives its outputs, or raises the `AsyncnnError` that it failed with; any
    number of tasks may. Cancelling such a task leaves the run alone, `cancel` ends it.

    ``outputs`` are the arrays that hold the results once it has succeeded: another run
    that waits for this one takes them as inputs. ``fence`` is what anything else may
    wait for, in this process or in others.
    """

    __slots__ = ("_callback", "_fence", "_hal", "outputs")

    def __init__(
        self,
        hal: IPreparedModel | None,
        fence: SyncFence | None,
        callback: IFencedExecutionCallback,
        outputs: Outputs,
    ) -> None:
        self.outputs = outputs
        self._hal = hal
        self._fence = fence
        self._callback = callback

    @property
    def fence(self) -> SyncFence:
        """Signalled once it has succeeded; an error if it has failed."""
        if self._fence is None:
            self._fence = SyncFence.signalled()
        return self._fence

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""
        return ErrorStatus.NONE if self._fence is None else self._fence.status

    @property
    def timing(self) -> FencedTiming | None:
        """How long it took; None unless it was measured and succeeded."""
        _, launched, fenced = self._callback.get_execution_info()
        if timing_of(launched) is timing_of(fenced) is None:
            return None
        return FencedTiming(launched, fenced)

    def cancel(self) -> None:
        """End it at the next boundary between two operations, or before it begins.

        What waits for it then fails. Does nothing if it has ended.
        """
        self._callback.cancel()

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
        try:
            yield from (self._fence or self.fence).__await__()
        except DeviceUnavailableError as error:
            raise cause_of_death(self._hal) or error from None
        _, timing, _ = self._callback.get_execution_info()
        self.outputs.timing = None if timing == NO_TIMING else timing
        if self._callback.route is not None:
            self.outputs.route = self._callback.route
        return self.outputs

    def __repr__(self) -> str:
        status = "active" if self.status is None else self.status.name
        return f"<FencedRun {status} -> {list(self.outputs)}>"


def awaited_of(
    wait_for: Iterable[SyncFence | FencedRun],
) -> tuple[list[SyncFence | FencedRun], SyncFence | FencedRun | None]:
    """Return what is still active, and the first that has failed if one has."""
    awaited: list[SyncFence | FencedRun] = []
    try:
        statuses = [(one, one.status) for one in wait_for]
    except (TypeError, AttributeError):
        raise WrongTypeError(
            f"wait_for is {wait_for!r}",
            hint="give a list of fenced runs and fences: wait_for=[run]",
        ) from None
    for one, status in statuses:
        if status is None:
            awaited.append(one)
        elif status is not ErrorStatus.NONE:
            return [], one
    return awaited, None


def launch_fenced(
    hal: IPreparedModel,
    request: Request,
    wait_for: Sequence[SyncFence | FencedRun],
    options: ExecutionOptions,
    outputs: Outputs,
) -> FencedRun:
    """Launch an execution whose results go to ``outputs``.

    If something that it waits for has failed meanwhile, the run has.

    :raises AsyncnnError: if the driver does not take it.
    """
    fences: Sequence[SyncFence] = ()
    if wait_for:
        fences = [one.fence if isinstance(one, FencedRun) else one for one in wait_for]
    launched, done, callback = hal.execute_fenced(
        request,
        fences,
        options.measure,
        options.deadline,
        options.loop_timeout,
        options.duration,
    )
    if callback is None:
        for fence in fences:
            if fence.status:
                return failed_run(fence, outputs)
        raise error_of(hal, launched, refusal_of(hal, _REFUSED))
    # Whoever made it, it is of the one class that can also be merged and exported.
    return FencedRun(hal, cast("SyncFence | None", done), callback, outputs)


def failed_run(cause: SyncFence | FencedRun, outputs: Outputs) -> FencedRun:
    """Return a run that failed because ``cause``, which it waited for, did."""
    fence = cause.fence if isinstance(cause, FencedRun) else cause
    assert fence.status is not None
    error = waited_in_vain(fence.reason or fence.status.name)
    outcome = FencedOutcome()
    outcome.complete(error.status, NO_TIMING, NO_TIMING)
    return FencedRun(None, SyncFence.failed(error.status, str(error)), outcome, outputs)


async def execute_fenced(
    hal: IPreparedModel, request: Request, options: ExecutionOptions
) -> ExecutionResult:
    """Execute ``request`` by the fenced path and wait for the end.

    Cancelling the call cancels the execution. No output shapes are reported.
    """
    status, fence, callback = hal.execute_fenced(
        request, (), options.measure, options.deadline, options.loop_timeout, None
    )
    if callback is None:
        return ExecutionResult(status, (), NO_TIMING, refusal_of(hal, _REFUSED))
    reason = ""
    if fence is not None:
        try:
            await fence
        except AsyncnnError:
            reason = fence.reason
        except asyncio.CancelledError:
            callback.cancel()
            raise
    status, launched, _ = callback.get_execution_info()
    return ExecutionResult(status, (), launched, reason, None, callback.route)
