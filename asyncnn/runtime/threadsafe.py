"""Executions that any thread launches, and is told the end of by a callback.

A device of this process takes them as they come: the launching thread hands them to a
lane, and the lane's thread calls back. Everything else goes by its event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.hal.interfaces import AlreadyNotifiedError, IExecutionCallback, OneShot
from asyncnn.hal.types import ErrorStatus, OutputShape, Timing

Done: TypeAlias = Callable[[AsyncnnError | None], None]
"""Called once, with None or the error of the execution."""

Run: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


class IOneAtATime(Protocol):
    """What has one execution at a time on the same arrays."""

    def release(self) -> None:
        """Note that no execution uses the arrays."""
        ...

    def take(self, result: ExecutionResult) -> AsyncnnError | None:
        """Take what a result says of the outputs; return the error if it failed."""
        ...


class ThreadsafeRun(IExecutionCallback):
    """An execution launched by `ReusableExecution.launch_threadsafe`."""

    __slots__ = ("_is_marking", "_is_notified", "_owner", "_tell")

    def __init__(self, owner: IOneAtATime, done: Done) -> None:
        super().__init__()
        self._owner = owner
        self._tell = OneShot(done)
        self._is_notified = False
        self._is_marking = False

    @property
    def is_done(self) -> bool:
        """Whether the callback is being called, or was."""
        return self._tell.is_done

    def cancel(self) -> None:
        """Stop it at its next boundary, from any thread; one that has ended is ignored.

        It ends with `ResourceExhaustedTransientError`, unless it was about to end.
        """
        self.die()

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Take the outcome, and call back.

        :raises AlreadyNotifiedError: if it was notified before.
        """
        if self._is_notified:
            raise AlreadyNotifiedError("the execution was completed before")
        self._is_notified = True
        owner = self._owner
        error = owner.take(ExecutionResult(status, output_shapes, timing, self.reason))
        # First: the callback may launch the next execution on the same arrays.
        owner.release()
        self._tell(error)

    def go_by(self, loop: asyncio.AbstractEventLoop | None, run: Run) -> None:
        """Have ``run`` awaited on the event loop, which calls back.

        :raises DeviceClosedError: if the loop is closed.
        """
        tasks: list[asyncio.Task[None]] = []

        async def awaited() -> None:
            self._is_marking = True
            self._owner.release()  # `run` marks it as used itself, before it waits
            await run()

        def start() -> None:
            if self._is_dead:
                self._end(_cancelled())
                return
            task = asyncio.get_running_loop().create_task(awaited())
            tasks.append(task)  # here, as the loop keeps no strong reference
            task.add_done_callback(self._ended)

        def stop() -> None:
            for task in tasks:
                task.cancel()

        try:
            if loop is None:
                raise RuntimeError
            loop.call_soon_threadsafe(start)
        except RuntimeError:
            self._owner.release()
            raise DeviceClosedError("the event loop of the model is closed") from None
        call = loop.call_soon_threadsafe

        def ask_to_stop() -> None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                call(stop)

        self.link_to_death(ask_to_stop)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._end(_cancelled())
            return
        error = task.exception()
        self._end(None if error is None else failure_of(error))

    def _end(self, error: AsyncnnError | None) -> None:
        self.unlink_to_death()
        if not self._is_marking:  # or it takes the mark of one launched meanwhile
            self._owner.release()
        self._tell(error)


def _cancelled() -> AsyncnnError:
    return ResourceExhaustedTransientError("the execution was cancelled")
