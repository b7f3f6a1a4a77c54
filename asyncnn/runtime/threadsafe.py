"""Executions that any thread launches, whose end a callback is notified of.

A device of this process takes them as they come: the launching thread hands them to a
lane, and the lane's thread calls back. Everything else goes by its event loop.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.interfaces import AlreadyNotifiedError, OneShot
from asyncnn.hal.types import OutputShapes

Done: TypeAlias = Callable[[hal.AsyncnnError | None], None]
"""Called once, with None or the error of the execution."""

Run: TypeAlias = Callable[[], Coroutine[Any, Any, object]]

_Task: TypeAlias = asyncio.Task[hal.AsyncnnError | None]


class IOneAtATime(Protocol):
    """What has one execution at a time on the same arrays."""

    def release(self) -> None:
        """Note that no execution uses the arrays."""
        ...

    def take(self, result: ExecutionResult) -> hal.AsyncnnError | None:
        """Take what a result says of the outputs; return the error if it failed."""
        ...


class ThreadsafeRun(hal.IExecutionCallback):
    """An execution launched by `ReusableExecution.launch_threadsafe`."""

    __slots__ = ("_is_marking", "_is_notified", "_notify", "_owner")

    def __init__(self, owner: IOneAtATime, done: Done) -> None:
        super().__init__()
        self._owner = owner
        self._notify = OneShot(done)
        self._is_notified = False
        self._is_marking = False

    @property
    def is_done(self) -> bool:
        """Whether the callback is being called, or was."""
        return self._notify.is_done

    def cancel(self) -> None:
        """Stop it at its next boundary, from any thread; one that has ended is ignored.

        It ends with `ResourceExhaustedTransientError`, unless it was about to end.
        """
        self.die()

    def notify_1_3(
        self, status: hal.ErrorStatus, output_shapes: OutputShapes, timing: hal.Timing
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
        self._notify(error)

    def go_by(self, loop: asyncio.AbstractEventLoop | None, run: Run) -> None:
        """Have ``run`` awaited on the event loop, which calls back.

        :raises DeviceClosedError: if the loop is closed.
        """
        tasks: list[weakref.ref[_Task]] = []

        async def awaited() -> hal.AsyncnnError | None:
            self._is_marking = True
            self._owner.release()  # `run` marks it as used itself, before it waits
            try:
                await run()
            except Exception as error:  # returned, as a closed loop retrieves nothing
                return hal.failure_of(error)
            return None

        pending = _Pending(self, awaited())

        def start() -> None:
            if self._is_dead:
                self.end(_cancelled())
                return
            task = asyncio.get_running_loop().create_task(pending.awaited)
            # As asyncio does where another object sees to it: here, `_Pending`.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.add_done_callback(pending.ended)
            # Weakly, or what is held by the application would hold the task.
            tasks.append(weakref.ref(task))

        def stop() -> None:
            for reference in tasks:
                task = reference()
                if task is not None:
                    task.cancel()

        try:
            if loop is None:
                raise RuntimeError
            loop.call_soon_threadsafe(start)
        except RuntimeError:
            self._owner.release()
            pending.forget()
            raise _closed() from None
        call = loop.call_soon_threadsafe

        def ask_to_stop() -> None:
            try:
                call(stop)
            except RuntimeError:  # what it has begun there, it never ends
                self.end_unless_done(_closed())

        self.link_to_death(ask_to_stop)

    def ended(self, task: _Task) -> None:
        """Take the outcome of what was awaited, and call back."""
        if task.cancelled():
            self.end(_cancelled())
            return
        error = task.exception()  # of those that stop the application
        self.end(task.result() if error is None else hal.failure_of(error))

    def end(self, error: hal.AsyncnnError | None) -> None:
        """Call back, where the event loop has done the execution."""
        self.unlink_to_death()
        if not self._is_marking:  # or it takes the mark of one launched meanwhile
            self._owner.release()
        self._notify(error)

    def end_unless_done(self, error: hal.AsyncnnError) -> None:
        """Call back for an event loop that is closed, once, whatever thread asks."""
        with suppress(AlreadyNotifiedError):
            if not self.is_done:
                self.end(error)


class _Pending:
    """What an event loop awaits for ``run``, which is notified if the loop drops it.

    A loop that closes forgets what waits for its turn there.
    """

    __slots__ = ("_pid", "_run", "awaited")

    def __init__(
        self, run: ThreadsafeRun, awaited: Coroutine[Any, Any, hal.AsyncnnError | None]
    ) -> None:
        self._run: ThreadsafeRun | None = run
        self._pid = os.getpid()
        self.awaited = awaited

    def ended(self, task: _Task) -> None:
        if self._run is not None:
            self._run.ended(task)

    def forget(self) -> None:
        self._run = None

    def __del__(self) -> None:
        self.awaited.close()
        # A forked child drops a copy: the execution is its parent's.
        if self._run is not None and self._pid == os.getpid():
            self._run.end_unless_done(_closed())


def _closed() -> hal.AsyncnnError:
    return hal.DeviceClosedError("the event loop of the model is closed")


def _cancelled() -> hal.AsyncnnError:
    return hal.ResourceExhaustedTransientError("the execution was cancelled")
