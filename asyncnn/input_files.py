"""Files from outside: opened without waiting, on threads that may be left behind.

A path may lead to a FIFO that nobody writes to, to a device, or to a folder of a server
that has gone, where no signal but SIGKILL ends a call. So `open_input` opens regular
files and no others, and what asks a file system does so on a thread that may be
abandoned: whoever waits for it goes on at the deadline, or when cancelled or
interrupted. What it brings after all is dropped. There are `MOST_ABANDONED` of these at
most, and nothing waits for one: not the end of a device, nor the interpreter's.
"""

import errno
import os
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

from asyncnn.deadlines import deadline_after, seconds_until
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.pacing import Steps, Stepwise, completed, long_work, make_way

if TYPE_CHECKING:  # commands import this that have no event loop
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")

AnyPath: TypeAlias = str | os.PathLike[str]

MOST_ABANDONED = 32
"""Threads that may be left behind where they hang."""

PATIENCE_S = 5.0
"""For which a folder may not answer that can be gone without."""

_LOOK_S = 0.005

_KINDS = {
    stat.S_IFDIR: "a directory, not a file",
    stat.S_IFIFO: "a FIFO, not a regular file",
    stat.S_IFSOCK: "a socket, not a regular file",
    stat.S_IFCHR: "a device, not a regular file",
    stat.S_IFBLK: "a device, not a regular file",
}


class NoRegularFileError(InvalidArgumentError, OSError):
    """What a path leads to is no regular file."""


def open_input(path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor of the regular file at ``path``, which is not waited for.

    :raises NoRegularFileError: if it is a FIFO, a directory, a device or a socket.
    :raises OSError: if it cannot be opened.
    """
    # Without a terminal: opening one could make it the one that this process obeys.
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, mode)
    except BlockingIOError as error:
        reason = "another process holds a lease on it"
        raise OSError(error.errno, reason, os.fspath(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            check_regular(path, os.stat(path))
        raise
    try:
        check_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_regular(path: AnyPath, status: os.stat_result) -> None:
    """Check that what is at ``path`` has the status of a file, or of a link.

    :raises NoRegularFileError: if it is not.
    """
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        error = NoRegularFileError(f"{os.fspath(path)}: {kind}")
        error.strerror = kind
        raise error


def read_input(path: AnyPath) -> bytes:
    """Return the contents of a file; an interrupt ends the waiting for them.

    :raises NoRegularFileError: if it is no regular file.
    :raises OSError: if it cannot be read.
    """
    return call_abandonable(f"reading {os.fspath(path)}", in_one(_read, path))


def _read(path: AnyPath) -> bytes:
    with open(open_input(path), "rb") as file:
        return file.read()


def in_one(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
    """Call a function in one step."""
    yield from ()
    return function(*args, **kwargs)


async def offload_abandonable(
    what: str, steps: Steps[T], *, deadline: int | None = None
) -> T:
    """Take steps on a thread that is left behind if this is cancelled.

    ``what`` they do is named in errors, "opening F" say. Those that were left take no
    further step. Where no thread can be started, they are taken here.

    :raises MissedDeadlineTransientError: if the deadline passes before their end.
    :raises ResourceExhaustedTransientError: if too many threads hang already.
    """
    import asyncio

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    errand = _Errand(what, steps, partial(_wake, ended))
    if not _errands.begin(errand):
        return completed(steps)
    try:
        with _errands.waited_for(errand):
            async with asyncio.timeout(seconds_until(deadline)):
                await ended
    except TimeoutError:
        raise _missed(what) from None
    return errand.outcome()


def call_abandonable(what: str, steps: Steps[T], *, deadline: int | None = None) -> T:
    """Do the same, and block: an interrupt ends the waiting.

    :raises MissedDeadlineTransientError: if the deadline passes before their end.
    :raises ResourceExhaustedTransientError: if too many threads hang already.
    """
    mine = _errands.mine
    if mine is not None and (deadline is None or mine == what):
        return completed(steps)  # who waits for this thread may leave it already
    ended = threading.Event()
    errand = _Errand(what, steps, ended.set)
    task = _current_task()
    was_cancelled = 0 if task is None else task.cancelling()
    if not _errands.begin(errand):
        return completed(steps)
    with _errands.waited_for(errand):
        while not ended.wait(_LOOK_S):
            _check_deadline(what, deadline)
            # `asyncio.run` turns an interrupt into this, which nothing raises here.
            if task is not None and task.cancelling() > was_cancelled:
                from asyncio import CancelledError

                raise CancelledError
    return errand.outcome()


def _current_task() -> "asyncio.Task[Any] | None":
    """Return the task that runs here; None without one, or asyncio."""
    if "asyncio" not in sys.modules:
        return None
    from asyncio import current_task

    try:
        return current_task()
    except RuntimeError:
        return None


def abandonable_steps(
    what: str, steps: Steps[T], *, deadline: int | None = None
) -> Steps[T]:
    """Do the same in steps, between which they may be left.

    :raises MissedDeadlineTransientError: if the deadline passes before their end.
    :raises ResourceExhaustedTransientError: if too many threads hang already.
    """
    ended = threading.Event()
    errand = _Errand(what, steps, ended.set)
    if not _errands.begin(errand):
        return (yield from steps)
    with _errands.waited_for(errand):
        while not ended.wait(_LOOK_S):
            _check_deadline(what, deadline)
            yield
    return errand.outcome()


def send_away(what: str, steps: Steps[object]) -> None:
    """Do the same, and wait for nothing; not at all if too many threads hang."""
    errand = _Errand(what, steps, lambda: None)
    errand.is_left = True
    errand.hangs_ns = time.monotonic_ns() + int(PATIENCE_S * 1e9)
    with suppress(ResourceExhaustedTransientError):
        if not _errands.begin(errand):
            completed(steps)


def patience(what: str) -> int | None:
    """Return the deadline of what can be gone without.

    :raises TimeoutError: if an earlier call that does the same hangs still.
    """
    if _errands.hangs(what):
        raise TimeoutError(errno.ETIMEDOUT, f"{what}: no answer since an earlier call")
    return deadline_after(PATIENCE_S)


class _Errand(Generic[T]):
    """Steps on a thread, and what became of them; ``notify`` says that they have ended.

    Once it ``is_left``, they are to stop, and nobody is notified. It hangs from then
    on; one that nobody has waited for, from ``hangs_ns`` on.
    """

    hangs_ns = 0

    def __init__(self, what: str, steps: Steps[T], notify: Callable[[], None]) -> None:
        self.what = what
        self.notify = notify
        self.is_left = self.has_ended = False
        self._stepwise: Stepwise[T] | None = Stepwise(steps)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Take the steps, on the thread."""
        assert self._stepwise is not None
        try:
            with long_work(self._is_to_stop):
                if not self._stepwise.advance(self._must_stop):
                    self._stepwise.close()
        except BaseException as error:
            self._error = error

    def _is_to_stop(self) -> bool:
        return self.is_left

    def _must_stop(self) -> bool:
        make_way()
        return self.is_left

    def refuse(self) -> None:
        """Take no step, and report why."""
        self._error = _too_many(self.what)
        self.notify()

    def drop(self) -> None:
        """Close the result, if it can be, and let go of what the steps have raised."""
        stepwise, self._stepwise, self._error = self._stepwise, None, None
        if stepwise is not None and stepwise.has_ended:
            close = getattr(stepwise.result, "close", None)
            if close is not None:
                with suppress(OSError):
                    close()

    def outcome(self) -> T:
        """Return the result, or raise what the steps have raised."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        assert self._stepwise is not None
        return self._stepwise.result


class _Errands:
    """The threads of errands; where all are busy, the next errand waits for one."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked child, which has none of the threads."""
        self._lock = threading.Lock()
        self._waiting: deque[_Errand[Any]] = deque()
        self._left: set[_Errand[Any]] = set()
        self._count = 0
        self._thread = threading.local()

    @property
    def mine(self) -> str | None:
        """What the errand does whose thread this is; None on other threads."""
        return getattr(self._thread, "what", None)

    def begin(self, errand: _Errand[Any]) -> bool:
        """Have an errand done; False if no thread can be started.

        :raises ResourceExhaustedTransientError: if all threads are left behind.
        """
        from asyncnn.offload import start_thread

        # What an errand waits for must not wait for the end of errands.
        is_inner = self.mine is not None
        with self._lock:
            if len(self._left) >= MOST_ABANDONED:
                raise _too_many(errand.what)
            (self._waiting.appendleft if is_inner else self._waiting.append)(errand)
            if not is_inner and self._count >= MOST_ABANDONED:
                return True
            self._count += 1
        # Without the lock: the thread takes the errand while this one hears of it.
        try:
            start_thread(
                threading.Thread(target=self._serve, name="asyncnn-files", daemon=True)
            )
        except ResourceExhaustedTransientError:
            with self._lock:
                self._count -= 1
                if errand in self._waiting:
                    self._waiting.remove(errand)
                    return False
        return True

    @contextmanager
    def waited_for(self, errand: _Errand[Any]) -> Iterator[None]:
        """Leave an errand if the block that waits for it is left by an exception."""
        try:
            yield
        except BaseException:
            self.leave(errand)
            raise

    def leave(self, errand: _Errand[Any]) -> None:
        """Wait for an errand no more; what it has brought, or brings, is dropped."""
        refused: list[_Errand[Any]] = []
        with self._lock:
            has_ended = errand.has_ended
            if not has_ended:
                errand.is_left = True
                if errand in self._waiting:
                    self._waiting.remove(errand)
                    return
                self._left.add(errand)
                if len(self._left) >= MOST_ABANDONED:
                    refused += self._waiting
                    self._waiting.clear()
                    for each in refused:
                        each.has_ended = True
        if has_ended:  # on a thread: to close what it has opened may hang
            send_away(errand.what, in_one(errand.drop))
        for each in refused:
            each.refuse()

    def hangs(self, what: str) -> bool:
        """Return whether a thread that was left behind still does this."""
        now_ns = time.monotonic_ns()
        with self._lock:
            left = [each for each in self._left if each.what == what]
        return any(now_ns >= each.hangs_ns for each in left)

    def _serve(self) -> None:
        while (errand := self._next()) is not None:
            self._thread.what = errand.what
            errand.run()
            with self._lock:
                errand.has_ended = True
                self._left.discard(errand)
            if errand.is_left:
                errand.drop()  # here: to close what it has opened may hang, too
            else:
                errand.notify()

    def _next(self) -> _Errand[Any] | None:
        with self._lock:
            if not self._waiting:
                self._count -= 1
                return None
            errand = self._waiting.popleft()
            if errand.is_left:
                self._left.add(errand)
            return errand


def _wake(ended: "asyncio.Future[None]") -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        ended.get_loop().call_soon_threadsafe(_settle, ended)


def _settle(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _too_many(what: str) -> ResourceExhaustedTransientError:
    return ResourceExhaustedTransientError(
        f"{what} was not begun: {MOST_ABANDONED} threads hang in other files",
        hint="a folder of the network may have gone; they end when it is back",
    )


def _check_deadline(what: str, deadline: int | None) -> None:
    if deadline is not None and time.monotonic_ns() >= deadline:
        raise _missed(what)


def _missed(what: str) -> MissedDeadlineTransientError:
    return MissedDeadlineTransientError(f"{what} was not done in time")


_errands = _Errands()
os.register_at_fork(after_in_child=_errands.renew)


@contextmanager
def decoding(kind: str) -> Iterator[None]:
    """Turn what decoders raise on damaged bytes into one error of the family.

    :raises InvalidArgumentError: if the block raises such an error.
    """
    damaged = f"damaged {kind} file"
    try:
        yield
    except AsyncnnError:  # some are a ValueError as well
        raise
    except RecursionError as error:
        raise InvalidArgumentError(f"{damaged}: graphs nested too deeply") from error
    except struct.error as error:
        raise InvalidArgumentError(
            f"{damaged}: it refers to what is beyond its end",
            hint="the file may be cut short",
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {str(error)[:300]}"
        raise InvalidArgumentError(f"{damaged} ({what})") from error
