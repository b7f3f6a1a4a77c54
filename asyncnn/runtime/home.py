"""Where something that was opened belongs: an event loop, its thread, its process.

Its state lives on that loop and is not locked. Used from another loop, or in a forked
child, it would wait for ever or wake nobody; so each public call makes one comparison,
``running_loop() is home.loop``, and has `Home.refuse` say what is wrong otherwise. A
child that was forked has no running loop, or another one: that comparison sees it, too.
"""

import os
import threading

# What `get_running_loop` calls; None, without an exception, where no loop runs.
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as running_loop

from asyncnn.hal.errors import WrongLoopError
from asyncnn.interpreter_hooks import forked_error

__all__ = ("Home", "require_loop", "running_loop")


def require_loop() -> AbstractEventLoop:
    """Return the event loop that runs.

    :raises WrongLoopError: if it is none of asyncio's, as with trio, or there is none.
    """
    loop = running_loop()
    if loop is None:
        raise WrongLoopError(
            "asyncnn needs the event loop of asyncio, which does not run here",
            hint="start it with asyncio.run(main()), or "
            "anyio.run(main, backend='asyncio')",
        )
    return loop


class Home:
    """The event loop that runs where this is made, and its thread and process.

    ``loop`` is None where none runs: the first use decides then.
    """

    __slots__ = ("_pid", "_thread", "loop")

    def __init__(self) -> None:
        self.loop = running_loop()
        self._pid = os.getpid()
        self._thread = threading.get_ident()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one it is in."""
        return self._pid != os.getpid()

    def check(self, what: str) -> None:
        """Check that ``what`` can be used here; see `refuse`."""
        if running_loop() is not self.loop:
            self.refuse(what)

    def refuse(self, what: str) -> None:
        """Say why ``what`` cannot be used here, if it cannot.

        :raises ForkedError: if this process is a fork of the one that opened it.
        :raises WrongLoopError: if another event loop runs here than the one in which it
            was opened, or none.
        """
        here = running_loop()
        if here is self.loop:
            return
        if self.is_inherited:
            raise forked_error(what)
        if self.loop is None:
            self.loop, self._thread = here, threading.get_ident()
            return
        if threading.get_ident() != self._thread:
            raise WrongLoopError(
                f"{what} belongs to the event loop of another thread",
                hint="call asyncio.run_coroutine_threadsafe(..., loop) with that loop, "
                "or open a device in this thread",
            )
        require_loop()
        raise WrongLoopError(
            f"{what} belongs to another event loop than the one that runs",
            hint="open it inside the same asyncio.run(...)",
        )
