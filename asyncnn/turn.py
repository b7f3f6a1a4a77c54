"""Ends that tasks await, and go on in the very turn of the loop that brings them.

A loop calls what waits for a future in its next turn, which is long in coming where it
is busy. `_turn.c` does the same as the classes here; ``ASYNCNN_PURE_JOB=1`` asks for
these, as everything works without a compiler.
"""

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from asyncnn.hal.errors import WrongLoopError
from asyncnn.hal.interfaces import AlreadyNotifiedError
from asyncnn.lazy import compiled_module

TURN_NS = 200_000
"""How long a task may go on with results that are there at once, without waiting."""


def require_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs.

    :raises WrongLoopError: if it is none of asyncio's, as with trio, or there is none.
    """
    loop = asyncio._get_running_loop()  # None where none runs
    if loop is None:
        raise WrongLoopError(
            "asyncnn needs the event loop of asyncio, which does not run here",
            hint="start it with asyncio.run(main()), or "
            "anyio.run(main, backend='asyncio')",
        )
    return loop


class _Turn(threading.local):
    """What is to go on at the end of what the loop of this thread does, if anything."""

    woken: "list[PythonWaiter] | None" = None


_turn = _Turn()


class PythonWaiter(asyncio.Future[Any]):
    """A future whose callbacks are called in the turn that ends it."""

    __slots__ = ("callbacks",)

    callbacks: list[tuple[Callable[[Any], object], Context | None]]

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        """Have ``fn`` called at the end, in ``context``."""
        self.callbacks.append((fn, context))

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it, if it has not ended; whoever waits goes on in the next turn."""
        has_cancelled = super().cancel(msg)
        if has_cancelled:
            self.call_soon()
        return has_cancelled

    def call_soon(self) -> None:
        """Have the loop call what is left to call, now that it has ended."""
        while self.callbacks:
            function, context = self.callbacks.pop(0)
            super().add_done_callback(function, context=context)


def _in_this_turn(handle: Callable[[], object], /) -> object:
    """Call ``handle`` on the loop, then go on with the tasks that it has woken.

    They find all done that it does. Where a task calls this they go on in the next
    turn, as none can inside another one.
    """
    if _turn.woken is not None or asyncio.current_task() is not None:
        return handle()
    woken: list[PythonWaiter] = []
    _turn.woken = woken
    try:
        return handle()
    finally:
        _turn.woken = None
        try:
            for waiter in woken:
                while waiter.callbacks:
                    function, context = waiter.callbacks.pop(0)
                    if context is None:
                        function(waiter)
                    else:
                        context.run(function, waiter)
        finally:
            for waiter in woken:
                if waiter.callbacks:  # the application is being stopped
                    waiter.call_soon()


def refuse() -> NoReturn:
    """Raise what a second end is met with."""
    raise AlreadyNotifiedError("the execution was completed before")


class PythonEnd:
    """What comes once, and is awaited.

    ``_result`` is None until then, and ``_waiting`` has what tasks wait for, if any
    do. A series of ends that are there at once still gives the loop a turn every
    `TURN_NS`.

    ``_value``, if it is not None, makes of the result what awaiting gives. An end of
    one ``loop`` has ``_wait_elsewhere``, which waits for it on others.
    """

    __slots__ = ()

    _value: ClassVar[Callable[[Any, Any], Any] | None] = None
    _wait_elsewhere: ClassVar[Callable[[Any], Generator[Any, None, Any]] | None] = None

    loop: Any
    _result: Any = None
    _waiting: "dict[Waiter, None] | None" = None
    _turned_ns: ClassVar[int] = 0

    @abstractmethod
    def _leave(self, waiter: "Waiter") -> None:
        """Note that the task which has waited by ``waiter`` was cancelled."""

    def _resolve(self, result: Any) -> None:
        """Keep the result, and wake the tasks that await it.

        :raises AlreadyNotifiedError: if there is one.
        """
        if self._result is not None:
            refuse()
        self._result = result
        self._wake(result)

    def _wake(self, result: Any) -> None:
        """Have the tasks that wait go on with ``result``."""
        waiting, self._waiting = self._waiting, None  # type: ignore[misc]
        for waiter in waiting or ():
            if not waiter.done():
                waiter.set_result(result)
                if _turn.woken is None:
                    waiter.call_soon()
                else:
                    _turn.woken.append(waiter)

    def __await__(self) -> Generator[Any, None, Any]:
        result = self._result
        if result is not None:
            now = time.monotonic_ns()
            if now - PythonEnd._turned_ns > TURN_NS:
                PythonEnd._turned_ns = now
                yield
        elif self._wait_elsewhere and self.loop is not asyncio.get_running_loop():
            return (yield from self._wait_elsewhere())
        else:
            result = yield from self._waited()
        return result if self._value is None else self._value(result)

    def _waited(self) -> Generator[Any, None, Any]:
        waiter = PythonWaiter(loop=asyncio.get_running_loop())
        waiter.callbacks = []
        if self._waiting is None:
            self._waiting = {}  # type: ignore[misc]
        self._waiting[waiter] = None
        try:
            result = yield from waiter.__await__()
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        return result


_built: Any = compiled_module("asyncnn._turn", "ASYNCNN_PURE_JOB")

if TYPE_CHECKING:
    Waiter = PythonWaiter
    End = PythonEnd
    in_this_turn = _in_this_turn
elif _built is None:
    Waiter, End, in_this_turn = PythonWaiter, PythonEnd, _in_this_turn
else:
    Waiter, End, in_this_turn = _built.Waiter, _built.End, _built.in_this_turn
