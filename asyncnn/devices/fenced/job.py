"""What a fenced execution executes, and how it reports."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from asyncnn.devices.buffers import BufferUse
from asyncnn.devices.inline import Inliner
from asyncnn.devices.work import ExecuteWork, ReportExecuted
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


MakeWork: TypeAlias = Callable[
    [Client, Request, MeasureTiming, int | None, int | None, ReportExecuted],
    ExecuteWork,
]
"""Makes the work of a prepared model, given deadline and loop timeout after measure."""


class FencedJob(msgspec.Struct, frozen=True, eq=False):
    """A validated request and all that its execution needs, but for the fences."""

    make_work: MakeWork
    inliner: Inliner
    client: Client
    request: Request
    measure: MeasureTiming
    deadline_ns: int | None
    loop_timeout_ns: int | None
    duration_ns: int | None
    use: BufferUse | None = None

    @property
    def may_be_inline(self) -> bool:
        """Whether it is short enough for the loop, and bound to no time."""
        return (
            self.inliner.is_due
            and self.deadline_ns is None
            and self.duration_ns is None
        )

    def claimed(self) -> "FencedJob":
        """Return the job with what is behind its device-managed buffers, claimed.

        :raises AsyncnnError: if they cannot be.
        """
        return self if self.use is None else replace(self, request=self.use.claim())

    def settle(self, status: ErrorStatus, shapes: tuple[OutputShape, ...]) -> None:
        """Give up the buffers: it has ended."""
        if self.use is not None:
            self.use.settle(status, shapes)

    def work(self, deadline_ns: int | None, report: ReportExecuted) -> ExecuteWork:
        """Return the work that runs it on a lane."""
        return self.make_work(
            self.client,
            self.request,
            self.measure,
            deadline_ns,
            self.loop_timeout_ns,
            report,
        )


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
