"""Where something that was opened belongs: an event loop, its thread, its process.

Its state lives on that loop and is not locked. Used from another loop, or in a forked
child, it would wait for ever or wake nobody. So each public call compares two numbers,
``get_ident() != home.loop._thread_id``, and has `Home.refuse` say what is wrong if they
differ. A loop of asyncio has the number of the thread that runs it there, and None
while none does; to ask for the running loop costs a system call in Python 3.11.
"""

from _thread import get_ident
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as running_loop  # None where none runs
from typing import Protocol

from asyncnn.hal.errors import WrongLoopError
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.turn import require_loop

__all__ = ("Home", "get_ident", "running_loop")


class _Loop(Protocol):
    """Shows which thread runs a loop, None while none does."""

    @property
    def _thread_id(self) -> int | None: ...


class _Asked:
    """Stands for a loop that does not show its thread, as uvloop's."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return get_ident() if running_loop() is self._loop else None


class _Nowhere:
    """Stands for a loop that runs nowhere."""

    _thread_id = None


class Home:
    """The event loop that runs where this is made, and its thread and process.

    Where none runs, the first use decides.
    """

    __slots__ = ("__weakref__", "_thread", "is_inherited", "loop")

    def __init__(self) -> None:
        self.is_inherited = False
        """Whether this process is a fork of the one it is in."""
        disown_in_children(self)
        self._thread = 0
        self.loop: _Loop = _Nowhere()
        loop = running_loop()
        if loop is not None:
            self._settle(loop)

    def check(self, what: str) -> None:
        """Check that ``what`` can be used here; see `refuse`."""
        if get_ident() != self.loop._thread_id:
            self.refuse(what)

    def refuse(self, what: str) -> None:
        """Say why ``what`` cannot be used here.

        :raises ForkedError: if this process is a fork of the one that opened it.
        :raises WrongLoopError: if another event loop runs here than the one in which it
            was opened, or none.
        """
        if self.is_inherited:
            raise forked_error(what)
        here = require_loop()
        if not self._thread:
            self._settle(here)
            return
        if get_ident() != self._thread:
            raise WrongLoopError(
                f"{what} belongs to the event loop of another thread",
                hint="call asyncio.run_coroutine_threadsafe(..., loop) with that loop, "
                "or open a device in this thread",
            )
        raise WrongLoopError(
            f"{what} belongs to another event loop than the one that runs",
            hint="open it inside the same asyncio.run(...)",
        )

    def disown(self) -> None:
        """Be nowhere in a forked child."""
        self.is_inherited = True
        self.loop = _Nowhere()

    def _settle(self, loop: AbstractEventLoop) -> None:
        self._thread = get_ident()
        self.loop = loop if hasattr(loop, "_thread_id") else _Asked(loop)
