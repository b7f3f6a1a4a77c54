"""The awaitable face of fenced executions."""

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
from asyncnn.devices.fenced import because
from asyncnn.errors import AsyncnnError, InvalidArgumentError, error_for
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import IPreparedModel, ISyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.runtime.outputs import Outputs

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

    __slots__ = ("_callback", "_fence", "outputs")

    def __init__(
        self,
        fence: SyncFence | None,
        callback: IFencedExecutionCallback,
        outputs: Outputs,
    ) -> None:
        self.outputs = outputs
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
    def timing(self) -> FencedTiming:
        """How long it took; all unavailable unless it was measured and succeeded."""
        _, launched, fenced = self._callback.get_execution_info()
        return FencedTiming(launched, fenced)

    def cancel(self) -> None:
        """End it at the next boundary between two operations, or before it begins.

        What waits for it then fails. Does nothing if it has ended.
        """
        self._callback.cancel()

    def __await__(self) -> Generator[Any, None, Outputs]:
        yield from self.fence.__await__()
        self.outputs.timing = self.timing.launched
        return self.outputs

    def __repr__(self) -> str:
        status = "active" if self.status is None else self.status.name
        return f"<FencedRun {status} -> {list(self.outputs)}>"


class FencedCall:
    """A run whose arrays are settled, to be launched as often as wanted.

    Made by `PreparedModel.fenced_call`. One launch is to have ended before the next
    begins, as they use the same arrays: the next may wait for it. The driver reads
    inputs when the run begins; those in ``copied`` it gets as they are at the launch.
    """

    __slots__ = ("_copied", "_hal", "_outputs", "_request")

    def __init__(
        self,
        hal: IPreparedModel,
        request: Request,
        outputs: Outputs,
        copied: Sequence[Array] = (),
    ) -> None:
        self._hal = hal
        self._request = request
        self._outputs = outputs
        self._copied = copied

    def launch(
        self,
        wait_for: Iterable[SyncFence | FencedRun] = (),
        *,
        measure: bool = False,
        deadline_ns: int | None = None,
        loop_timeout_ns: int | None = None,
        duration_ns: int | None = None,
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled, and return it.

        If one of them has failed already, the run does.

        :param deadline_ns: on the steady clock; waiting counts.
        :param duration_ns: what it may take once all fences have signalled.
        :raises InvalidArgumentError: if it takes an output of a run that has not ended
            in an array that would be copied now.
        :raises AsyncnnError: if the driver does not take it.
        """
        fences: list[ISyncFence] = []
        for one in wait_for:
            status = one.status
            if status is ErrorStatus.NONE:
                continue
            fence = one.fence if isinstance(one, FencedRun) else one
            if status is not None:
                return _failed(because(fence.reason or status.name), self._outputs)
            if self._copied and isinstance(one, FencedRun):
                self._check_settled(one)
            fences.append(fence)
        launched, done, callback = self._hal.execute_fenced(
            self._request,
            fences,
            MeasureTiming.YES if measure else MeasureTiming.NO,
            deadline_ns,
            loop_timeout_ns,
            duration_ns,
        )
        if callback is None:
            for sent in fences:
                if sent.status:  # it has failed meanwhile
                    return _failed(because(sent.reason), self._outputs)
            raise error_for(launched, _REFUSED)
        # Whoever made it, it is of the one class that can also be merged and exported.
        return FencedRun(cast("SyncFence | None", done), callback, self._outputs)

    def _check_settled(self, run: FencedRun) -> None:
        for name, output in run.outputs.items():
            if any(np.may_share_memory(output, array) for array in self._copied):
                raise InvalidArgumentError(
                    f"output {name} of a run that has not ended cannot be sent to "
                    f"another process yet",
                    hint="give that run out=shared_array(...)",
                )


def _failed(error: AsyncnnError, outputs: Outputs) -> FencedRun:
    outcome = FencedOutcome()
    outcome.complete(error.status, NO_TIMING, NO_TIMING)
    return FencedRun(SyncFence.failed(error.status, str(error)), outcome, outputs)


async def execute_fenced(
    hal: IPreparedModel,
    request: Request,
    measure: MeasureTiming,
    deadline: int | None,
    loop_timeout: int | None,
) -> ExecutionResult:
    """Execute ``request`` by the fenced path and wait for the end.

    Cancelling the call cancels the execution. No output shapes are reported.
    """
    status, fence, callback = hal.execute_fenced(
        request, (), measure, deadline, loop_timeout, None
    )
    if callback is None:
        return ExecutionResult(status, (), NO_TIMING, f"{_REFUSED}: {status.name}")
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
    return ExecutionResult(status, (), launched, reason)
