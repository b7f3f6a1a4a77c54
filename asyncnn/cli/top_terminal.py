"""``asyncnn top`` on a terminal: one picture after the other, until it is to end.

The terminal is left as it was found, whatever ends it: a key, a signal, an error, or
the terminal itself, which may be gone.
"""

import asyncio
import errno
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import anyio
from rich.live import Live

from asyncnn.cli.options import console
from asyncnn.cli.top_changes import Changes, LiveDevice, connected, look
from asyncnn.cli.top_view import picture

_ENDS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_TERMINAL_IS_GONE = {errno.EIO, errno.EPIPE, errno.ENXIO}
_QUIT_KEYS = frozenset(b"qQ")


async def watch(path: Path, interval: float) -> None:
    """Show one picture after the other until `q` is typed, a signal, or the end.

    :raises AsyncnnError: if there is no driver at ``path``, or no longer.
    """
    changes = Changes()
    with ended_by_signals() as end, _ended_with_terminal(), _ended_by_key(end) as keys:
        async with AsyncExitStack() as stack:
            device = await connected(stack, path)
            with Live(console=console(), screen=True, auto_refresh=False) as live:
                while sys.stdout.isatty():  # nothing is written to one that is gone
                    statistics = await look(device)
                    changes.look(time.monotonic())
                    width, height = live.console.size
                    hint = "q quits" if keys else "Ctrl-C quits"
                    seen = LiveDevice.of(statistics, changes)
                    live.update(picture(seen, width, height, hint), refresh=True)
                    await anyio.sleep(interval)


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Leave the block at a signal, or when what is yielded is called."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        for number in _ENDS:
            loop.add_signal_handler(number, scope.cancel)
        try:
            yield scope.cancel
        finally:
            for number in _ENDS:
                loop.remove_signal_handler(number)


@contextmanager
def _ended_by_key(end: Callable[[], None]) -> Iterator[bool]:
    """Call ``end`` when `q` is typed; yield whether keys are read at all.

    Keys come one by one and are not shown meanwhile. Keys of a terminal that another
    job has are not read: asking for them would stop this process.
    """
    terminal = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else -1
    if terminal < 0 or not _is_ours(terminal):
        yield False
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            typed = os.read(terminal, 1024)
        except OSError:
            typed = b""
        if not typed or _QUIT_KEYS.intersection(typed):  # without any, it is gone
            loop.remove_reader(terminal)
            end()

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        loop.add_reader(terminal, read)
        yield True
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):
            # What was typed for us is not for the shell that comes next.
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


def _is_ours(terminal: int) -> bool:
    """Return whether no other job than this process's has the terminal."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True  # it controls no job of this session, so it stops none


@contextmanager
def _ended_with_terminal() -> Iterator[None]:
    """Leave the block when standard output cannot be written any more."""
    try:
        yield
    except OSError as error:
        if error.errno not in _TERMINAL_IS_GONE:
            raise
        # What is still buffered is going to be written when the process ends.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
