"""Files that the user's programs keep for themselves, in the state directory.

Whoever finds one trusts it, so none is read that somebody else may have written.
"""

import asyncio
import ctypes
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncnn.engine import Program, take_apart
from asyncnn.interpreter import own
from asyncnn.offload import call_on_thread


def state_folder() -> Path:
    """Return the folder in ``$XDG_STATE_HOME``, by default in ``~/.local/state``.

    :raises RuntimeError: if there is no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local/state"
    return folder / "asyncnn"


def read_private(path: Path, most: int) -> bytes:
    """Return the contents of a file, and of longer ones the first ``most`` bytes.

    :raises OSError: if it cannot be read, is not a regular file of this user, or others
        may use it.
    """
    # A pipe in its place must not be waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(f"{path} is not a file of this user")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OSError(f"others than its owner may use {path}")
        return file.read(most)


@contextmanager
def private_draft(path: Path, content: bytes) -> Iterator[Path]:
    """Write a complete file next to ``path``, which the block puts in its place.

    :raises OSError: if that is not possible.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _find_trim() -> Callable[[int], int] | None:
    """Return the C library's ``malloc_trim``, which not every one has."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_size_t,)
    function.restype = ctypes.c_int
    return lambda pad: int(function(pad))


_malloc_trim = _find_trim()


def return_free_memory() -> None:
    """Return what the allocator holds free: large blocks of the heap, not only its top.

    Takes some milliseconds per GiB of heap.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


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
