"""Executions: what is bound to arrays once, for one prepared model, and then launched.

Source: aidl/android/hardware/neuralnetworks/IExecution.aidl, and
HAL 1.3/IFencedExecutionCallback.hal.
"""

import logging
import time
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from asyncnn.callbacks import TURN_NS, ExecutionResult
from asyncnn.fences import SyncFence
from asyncnn.fences.core import Core, Outcome
from asyncnn.fences.local import LocalCore, pipe_lock
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import (
    IExecutionCallback,
    IFencedExecutionCallback,
    ISyncFence,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.hal.validate import execution_options

if TYPE_CHECKING:  # who talks to a driver has no engine
    from asyncnn.engine.plan import Plan

logger = logging.getLogger(__name__)


class Execution(Request, frozen=True, eq=False):
    """A request that was checked for ``executable``, a prepared model's, and bound.

    ``arrays`` are those of all ports of ``plan``, inputs first. They have the dtypes
    and shapes of the ports, are C-contiguous and aligned, and those of outputs are
    writable: nothing is left to look up. There are none if the model leaves a shape
    open, say, or until a run has claimed the device-managed ``buffers`` of the request.
    Arguments and pools are left out if it is bound to an application's arrays.
    """

    executable: object
    plan: "Plan | None" = None
    arrays: Sequence[Array] | None = None
    buffers: Any = None


@runtime_checkable
class IBinding(Protocol):
    """A prepared model that executes what is bound to arrays. Not in the HAL.

    What it binds is the application's: checked before, for this model alone, and each
    launched once at a time.
    """

    def bind(self, tensors: Sequence[object]) -> object | None:
        """Return an execution on arrays for all inputs and outputs, in this order.

        The caller has seen to it that they are C-contiguous and of the model's dtypes
        and shapes, and those of outputs writable. None if the model or one of
        ``tensors``, which may be no arrays, needs more than that.
        """

    def launch(
        self, execution: Any, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch what was bound, or any request, and return its end, to be awaited."""


@runtime_checkable
class IReusing(Protocol):
    """A prepared model that has less to do for a request that is repeated.

    Source: AIDL's IPreparedModel.createReusableExecution.
    """

    def create_reusable_execution(self, request: Request) -> Request:
        """Return a request that is checked, and bound to its memory if it can be.

        What a peer may change, the bytes in its pools, is read in each run.

        :raises InvalidArgumentError: if it breaks a rule.
        """


@runtime_checkable
class IInProcess(IBinding, IReusing, Protocol):
    """A prepared model of a device in this process. Not in the HAL.

    What it binds is a request, which goes all ways that requests do, any number of
    times at once.
    """

    def bind(self, tensors: Sequence[object]) -> Request | None:
        """Return a request on arrays; see `IBinding.bind`."""

    def execute_threadsafe(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback,
    ) -> ErrorStatus:
        """Launch an execution as `IPreparedModel.execute_1_3` does, on any thread.

        ``callback`` is told on the thread that ends it: no event loop has a part in
        that. It may be told to die on any thread. A request that names device-managed
        buffers is INVALID_ARGUMENT: these belong to the loop.
        """


_NONE = ErrorStatus.NONE  # looking up a member of an enum takes as long as a call


class FencedCompletion(IFencedExecutionCallback):
    """The end of a fenced execution: callback of the HAL, and fence, in one.

    Awaiting it gives its `Outcome`, whatever that is; any number of tasks may, and
    cancelling one of them leaves it alone. Those of ``loop``, where it is completed,
    are woken directly. Only what anybody else waits for is a `fence`.

    What ``is_remote`` is known first to another process, which writes to the pipe of
    its fence; see `asyncnn.fences.core.Producer`.
    """

    __slots__ = ()
    slots: ClassVar = ("_core", "_timings", "_waiters", "loop", "outcome")
    is_remote: ClassVar[bool] = False
    _last_turn_ns: ClassVar[int] = 0

    loop: AbstractEventLoop
    outcome: Outcome | None
    _timings: tuple[Timing, Timing]
    _waiters: dict[Future[None], None] | None
    _core: Core | None

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""
        return None if self.outcome is None else self.outcome.status

    @property
    def reason(self) -> str:
        """Why it failed; empty otherwise."""
        return "" if self.outcome is None else self.outcome.reason

    @property
    def fence(self) -> SyncFence:
        """Another object for its fence, which is done when this is; on any thread."""
        if self._core is None:
            with pipe_lock:  # of several threads that ask, one makes it
                if self._core is None:
                    self._core = LocalCore(self)  # type: ignore[misc]  # a slot
        # Behind the core, which `complete` looks for after it has set the outcome.
        if self.outcome is not None:
            self._core.resolve(self.outcome)
        return SyncFence(self._core)

    def get_execution_info(self) -> tuple[ErrorStatus, Timing, Timing]:
        """Return status and timings since launch and since the last fence."""
        outcome = self.outcome
        if outcome is None:
            return ErrorStatus.GENERAL_FAILURE, NO_TIMING, NO_TIMING
        return outcome.status, *self._timings

    def hand_over(self, write_end: int) -> None:
        """Have the descriptor written to elsewhere, if it ``is_remote``."""
        raise NotImplementedError

    def complete(
        self,
        status: ErrorStatus,
        reason: str = "",
        launched: Timing = NO_TIMING,
        fenced: Timing = NO_TIMING,
        at_ns: int | None = None,
    ) -> None:
        """End it, on its loop and once, just now or at ``at_ns``."""
        at_ns = time.monotonic_ns() if at_ns is None else at_ns
        self._timings = launched, fenced  # type: ignore[misc]  # slots of who has it
        self.outcome = outcome = Outcome(status, reason, at_ns)  # type: ignore[misc]
        if self._core is not None:
            self._core.resolve(outcome)
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, Outcome]:
        if self.outcome is not None:
            now = time.monotonic_ns()
            if now - self._last_turn_ns > TURN_NS:
                FencedCompletion._last_turn_ns = now
                yield
        elif running_loop() is not self.loop:
            with suppress(AsyncnnError):
                yield from self.fence.__await__()
        else:
            waiter = self.loop.create_future()
            if self._waiters is None:
                self._waiters = {}  # type: ignore[misc]  # a slot of who has it
            self._waiters[waiter] = None
            try:
                yield from waiter
            finally:
                del self._waiters[waiter]
        assert self.outcome is not None
        return self.outcome


@runtime_checkable
class IFencing(Protocol):
    """A prepared model whose fenced executions are their own fences. Not in the HAL."""

    def launch_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence | FencedCompletion],
        options: ExecutionOptions,
    ) -> FencedCompletion:
        """Launch an execution that begins once ``wait_for`` have signalled.

        :raises AsyncnnError: if it is not taken.
        """


def fencing_of(prepared: object) -> IFencing | None:
    """Return what launches fenced executions without fences, as `binding_of` does."""
    is_own = hasattr(type(prepared), "launch_fenced")
    return prepared if is_own and isinstance(prepared, IFencing) else None


class FencedByLaunch(ABC):
    """The part of an `IPreparedModel` that follows from its `IFencing.launch_fenced`.

    ``refusal`` says why it has refused a fenced execution last; see `IExplaining`.
    """

    refusal = ""

    @abstractmethod
    def launch_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence | FencedCompletion],
        options: ExecutionOptions,
    ) -> FencedCompletion:
        """Launch a fenced execution that is its own fence; see `IFencing`."""

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


def binding_of(prepared: object) -> IBinding | None:
    """Return what binds the executions of a prepared model; None if it does not.

    What wraps another one, and has all else of that, is to see the executions.
    """
    is_own = hasattr(type(prepared), "bind")
    return prepared if is_own and isinstance(prepared, IBinding) else None


def reusable(prepared: object, request: Request) -> Request:
    """Return what to execute in place of a request that is repeated.

    :raises InvalidArgumentError: if ``prepared`` looks at it now, and it breaks a rule.
    """
    if isinstance(prepared, IReusing):
        return prepared.create_reusable_execution(request)
    return request
