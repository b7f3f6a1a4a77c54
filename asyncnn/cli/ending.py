"""How commands end: interrupted, after the reader of a pipe has gone, on a full disk.

`output_ending` is around every command. `Interruption` is around one that keeps what it
has done until a signal comes.
"""

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import typer

from asyncnn.logs import DISK_FULL

T = TypeVar("T")

_OF_SIGNALS = 128
INTERRUPTED = {_OF_SIGNALS + int(each) for each in (signal.SIGINT, signal.SIGTERM)}
"""Exit statuses of commands that such a signal has ended."""


class Interruption:
    """Has the first SIGINT or SIGTERM cancel a task, and the second end the process.

    ``signal`` is the number of the signal that came, None before. Outside `cancelling`
    the first one raises `KeyboardInterrupt`, which leaves the block as `typer.Exit`. A
    signal that is ignored, as SIGINT in the background of a shell, stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if isinstance(error, KeyboardInterrupt):
            self.exit()

    def exit(self) -> None:
        """End the command with the status of the signal, if one has come.

        :raises typer.Exit: then.
        """
        if self.signal is not None:
            raise typer.Exit(_OF_SIGNALS + self.signal)

    async def cancelling(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what ``work`` gives, None if a signal has cancelled it."""
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancel = task.cancel
        self._cancel = lambda: loop.call_soon_threadsafe(cancel)
        try:
            return await work()
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            return None
        finally:
            self._cancel = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # What waits for another process, or is in a library, is not waited for twice.
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()


@contextmanager
def handling_interrupts(handler: Any) -> Iterator[None]:
    """Have SIGINT handled in a way inside the block, unless it is ignored.

    A thread other than the main one changes nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if before is signal.SIG_IGN or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def output_ending() -> Iterator[None]:
    """End with status 0 if the reader of standard output has gone.

    :raises OSError: that names standard output, if that takes no more.
    """
    try:
        yield
        if sys.stdout is not None:  # as after `>&-`
            sys.stdout.flush()
    except (OSError, SystemExit) as error:
        # Typer and Rich make an exit of it.
        if BrokenPipeError in (type(error), type(error.__context__)):
            _discard_output()
            sys.exit(0)
        if not isinstance(error, OSError):
            raise
        # Errors of other files have their names.
        if error.errno in DISK_FULL and error.filename is None:
            _discard_output()
            raise OSError(error.errno, error.strerror, "standard output") from None
        raise


def _discard_output() -> None:
    """Have the interpreter write nowhere, which flushes when it exits."""
    original = sys.__stdout__
    if original is not None and sys.stdout is original:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, original.fileno())
        os.close(nowhere)
