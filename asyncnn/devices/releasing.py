"""Taking large prepared models apart without keeping an event loop waiting.

To free a structure of a million objects takes the interpreter some hundred
milliseconds, in one go if the last reference to all of it is dropped. So a thread takes
it apart, a few objects at a time, between which others get the interpreter.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable

from asyncnn.engine import Program, take_apart
from asyncnn.forking import own
from asyncnn.offload import call_on_thread

_POLL_S = 0.001


class Releases:
    """The programs of a device that are taken apart. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads: set[threading.Thread] = set()
        self._is_inherited = False
        own(self)

    def disown(self) -> None:
        """Let things go as they come in a forked child, which shares the loop."""
        self._is_inherited = True

    def watch(self, prepared: object, program: Program) -> None:
        """Take ``program`` apart once ``prepared`` is gone.

        If somebody else refers to it then, nothing is lost: the rest goes with that.
        """
        if program.is_large:
            gone = weakref.finalize(prepared, self._gone, [program])
            gone.atexit = False

    def _gone(self, last: list[Program]) -> None:
        """Release the program in the list, which has the last reference to it.

        Called wherever the collector runs, so that no lock may be taken here.
        """
        if self._is_inherited:  # the loop's waking up would reach the parent's
            last.clear()
            return
        try:
            self._loop.call_soon_threadsafe(self._release, last)
        except RuntimeError:  # the loop is closed
            last.clear()

    def _release(self, last: list[Program]) -> None:
        self.give_back(lambda: take_apart(last.pop().pieces()))

    def give_back(self, free: Callable[[], None]) -> None:
        """Call ``free``, which frees much, on a thread; here if none can be started."""
        self._threads = {each for each in self._threads if each.is_alive()}
        thread = call_on_thread(free)
        if thread is not None:
            self._threads.add(thread)

    async def wait_ended(self) -> None:
        """Wait until nothing is being taken apart."""
        while any(thread.is_alive() for thread in self._threads):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
