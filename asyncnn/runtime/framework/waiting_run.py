"""Fenced runs of models that know no fences: they wait here, and are launched then."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult, result_of
from asyncnn.deadlines import check_deadline, earlier
from asyncnn.fenced_run import FencedRun, Source
from asyncnn.fences.core import Gate
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedTransientError,
    closed_error,
    failure_of,
)
from asyncnn.hal.types import NO_TIMING, ErrorStatus, ExecutionOptions, Request, Timing
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.steps import IClosable

_FAILED = ErrorStatus.GENERAL_FAILURE
_NOTHING = Request((), (), ())


class IStarted(Protocol):
    """An execution under way."""

    def die(self) -> None:
        """Have it stop, as nobody wants its result any more."""


class IStarting(Protocol):
    """A prepared model of which fenced runs are launched once they need not wait."""

    @property
    def waiting_runs(self) -> set[IClosable]:
        """Those that the device closes with itself."""

    def start(
        self,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        told: Callable[[ExecutionResult], None],
    ) -> IStarted:
        """Launch a checked request; ``told`` gets the result, once.

        :raises AsyncnnError: if it is not taken; ``use`` is the caller's to end then.
        """


class WaitingRun(FencedRun):
    """A fenced run that waits here; to what computes it is an ordinary execution."""

    def __init__(
        self,
        model: IStarting,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
    ) -> None:
        super().__init__()
        self._model = model
        self._request = request
        self._options = options
        self._use = use
        self._gate: Gate | None = None
        self._execution: IStarted | None = None
        self._launched_ns = self._ready_ns = time.monotonic_ns()

    def launch(self, awaited: Sequence[Source]) -> None:
        """Wait for what is ``awaited``, if anything is, and begin."""
        self._model.waiting_runs.add(self)
        if awaited:
            self._gate = Gate(awaited, self._options.deadline, self._opened)
        else:
            self._begin()

    def cancel(self) -> None:
        """End it; see `FencedRun.cancel`."""
        if self._execution is not None:
            self._execution.die()
        else:
            self._fail(ResourceExhaustedTransientError("the execution was cancelled"))

    def close(self) -> None:
        """End it, unless it has begun, as the device is closed."""
        if self._execution is None:
            self._fail(closed_error())

    def _opened(self, failure: AsyncnnError | None) -> None:
        if failure is not None:
            self.loop.call_soon(self._fail, failure)
        else:
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._result is not None:
            return  # it was cancelled meanwhile
        self._leave_gate()
        options, now = self._options, time.monotonic_ns()
        self._ready_ns = now
        if options.duration is not None:
            deadline = earlier(options.deadline, now, options.duration)
            options = replace(options, deadline=deadline, duration=None)
        try:
            check_deadline(options.deadline)
            started = self._model.start(self._request, options, self._use, self._ended)
        except Exception as error:
            self._fail(failure_of(error))
            return
        if self._result is None:
            self._execution = started

    def _ended(self, result: ExecutionResult) -> None:
        """Take the result of the driver's execution; fences know nothing of shapes."""
        status, timing = result.status, result.timing
        if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            status = _FAILED
        launched = timing
        if timing is not NO_TIMING:
            waited_us = (self._ready_ns - self._launched_ns) // 1000
            launched = Timing(timing.time_on_device, timing.time_in_driver + waited_us)
        self._finish(
            replace(result, status=status, output_shapes=(), timing=launched), timing
        )

    def _fail(self, error: AsyncnnError) -> None:
        if self._result is None:
            if self._use is not None:
                self._use.end(error.status, ())
            self._finish(result_of(error))

    def _finish(self, result: ExecutionResult, fenced: Timing = NO_TIMING) -> None:
        self._leave_gate()
        self._model.waiting_runs.discard(self)
        self._execution = self._use = None
        self._request = _NOTHING
        self.complete(result, fenced)

    def _leave_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()
