"""Frees dropped models, and what idle devices hold, without holding the event loop.

To free a structure of a million objects takes the interpreter some hundred
milliseconds, in one go if the last reference to all of it is dropped. So a thread takes
large prepared models apart, a few objects at a time, between which other threads get
the interpreter.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from asyncnn.engine import Program
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.offload import call_on_thread, start_thread
from asyncnn.pacing import Steps, take_apart

_POLL_S = 0.001


class ModelReleaser:
    """Frees the programs and buffers of one device. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads: set[threading.Thread] = set()
        self._is_inherited = self._is_ending = False
        disown_in_children(self)

    def disown(self) -> None:
        """Free everything where it is dropped in a forked child."""
        self._is_inherited = True

    def watch(self, prepared: object, program: Program) -> None:
        """Take ``program`` apart on a thread once ``prepared`` is gone.

        If others refer to the program then, its last reference frees it.
        """
        if program.is_large:
            gone = weakref.finalize(prepared, self._gone, [program])
            gone.atexit = False

    def _gone(self, last: list[Program]) -> None:
        """Release the program in the list, which has the last reference to it."""
        # Runs wherever the collector does, even in code that holds a lock: takes none.
        if self._is_inherited:  # the loop's selector would wake up the parent's loop
            last.clear()
            return
        try:
            self._loop.call_soon_threadsafe(self._release, last)
        except RuntimeError:  # the loop is closed
            last.clear()

    def _release(self, last: list[Program]) -> None:
        self.free_on_thread(lambda: take_apart(last.pop().pieces()))

    def free_on_thread(self, free: Callable[[], None]) -> None:
        """Call ``free``, which frees much, on a thread; here if none can be started."""
        self._threads = {each for each in self._threads if each.is_alive()}
        thread = call_on_thread(free)
        if thread is not None:
            self._threads.add(thread)

    def advance_on_thread(self, steps: Steps[None]) -> None:
        """Take ``steps`` on a thread, or none if it cannot be started.

        What is left when the device is closed is dropped.
        """

        def advance() -> None:
            for _ in steps:
                if self._is_ending:
                    steps.close()

        thread = threading.Thread(
            target=advance, name="asyncnn-background", daemon=True
        )
        with suppress(ResourceExhaustedTransientError):
            start_thread(thread)
            self._threads.add(thread)

    async def wait_ended(self) -> None:
        """Wait until all of its threads have ended."""
        self._is_ending = True
        while any(thread.is_alive() for thread in self._threads):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
