"""What a fenced execution executes, and how it reports."""

import msgspec

from asyncnn.devices.buffers import BufferUse
from asyncnn.devices.work import Executable, ExecuteWork, ReportExecuted
from asyncnn.errors import (
    AsyncnnError,
    GeneralFailureError,
    OutputInsufficientSizeError,
)
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.qos import Client

_CAUSE = "what it waited for failed: "


class FencedJob(msgspec.Struct, frozen=True, eq=False):
    """A validated request and all that its execution needs, but for the fences."""

    executable: Executable
    client: Client
    request: Request
    measure: MeasureTiming
    deadline_ns: int | None
    loop_timeout_ns: int | None
    duration_ns: int | None
    use: BufferUse | None = None

    @property
    def may_be_run_at_once(self) -> bool:
        """Whether it is short enough for the loop, and bound to no time."""
        return (
            self.executable.inliner.is_due
            and self.deadline_ns is None
            and self.duration_ns is None
        )

    def settle(self, status: ErrorStatus, shapes: tuple[OutputShape, ...]) -> None:
        """Give up the buffers: it has ended."""
        if self.use is not None:
            self.use.settle(status, shapes)

    def claimed_work(
        self, deadline_ns: int | None, report: ReportExecuted
    ) -> ExecuteWork:
        """Return the work of executing it, with its buffers claimed.

        :raises AsyncnnError: if they cannot be claimed.
        """
        work = ExecuteWork(
            self.executable,
            self.request,
            self.measure,
            deadline_ns,
            self.loop_timeout_ns,
            report,
            self.client,
            reports_early=True,
        )
        if self.use is not None:
            work.claim(self.use)
        return work


def timing_of(measure: MeasureTiming, on_device_us: int, in_driver_us: int) -> Timing:
    """Return what is reported of a success: nothing unless it was asked for."""
    if measure != MeasureTiming.YES:
        return NO_TIMING
    return Timing(on_device_us, max(on_device_us, in_driver_us))


def as_fenced(error: AsyncnnError) -> tuple[ErrorStatus, str]:
    """Return status and reason for a fence, which knows of no insufficient sizes."""
    if isinstance(error, OutputInsufficientSizeError):
        return ErrorStatus.GENERAL_FAILURE, str(error)
    return error.status, str(error)


def because(reason: str) -> GeneralFailureError:
    """Return the error of an execution that waited for what failed for ``reason``.

    The root of a chain's failure is named once, however long the chain.
    """
    cause = reason if reason.startswith(_CAUSE) else _CAUSE + reason
    return GeneralFailureError(cause)
