"""Opening things: for an ``async with`` block, or by ``await`` until ``aclose``.

A block enters the context of what it opens in its own task. What is awaited has a task
that does so for it, as the end may come from any other task. That task ends with the
event loop, which `asyncio.run` sees to, and when nothing refers to what was opened.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from asyncnn import hal
from asyncnn.hal.errors import shortage_of
from asyncnn.runtime.home import Home
from asyncnn.turn import require_loop

P = ParamSpec("P")


class NotOpenError(hal.InvalidArgumentError, AttributeError):
    """What is used has not been opened yet."""


class Opened:
    """What an `Opening` opens; `aclose` closes it, and so does a block around it."""

    __slots__ = ("_lease",)

    _lease: "_Block[Any] | _Kept | None"

    async def aclose(self) -> None:
        """Close it, as the end of an ``async with`` block does. May be called again.

        Cancelling the call leaves the closing to go on by itself. In a forked child
        nothing is done, as the parent goes on using it.

        :raises WrongLoopError: if it is open on another event loop.
        """
        lease = getattr(self, "_lease", None)
        if lease is not None:
            await lease.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _release(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None:
            lease.release()


T = TypeVar("T", bound=Opened)


class Opening(Generic[T]):
    """Opens something once: ``async with``, or ``await`` and later ``aclose()``.

    >>> async with prepared.burst() as burst:
    ...     await burst.run(x)
    >>> burst = await prepared.burst()
    >>> await burst.run(x)
    >>> await burst.aclose()
    """

    __slots__ = ("_context", "_is_for_a_block", "_is_used", "_lease", "_what")

    def __init__(
        self,
        what: str,
        context: AbstractAsyncContextManager[T],
        *,
        is_for_a_block: bool = False,
    ) -> None:
        self._what = what
        self._context = context
        self._is_for_a_block = is_for_a_block
        self._is_used = False
        self._lease: _Block[T] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        if self._is_for_a_block:
            raise hal.InvalidArgumentError(
                f"the {self._what} is open for a block", hint="write 'async with ...:'"
            )
        self._begin()
        return _Kept.opened(self._what, self._context).__await__()

    async def __aenter__(self) -> T:
        self._begin()
        with _opening(self._what):
            thing = await self._context.__aenter__()
        self._lease = _Block(self._what, self._context)
        if not self._is_for_a_block:  # otherwise it was open before, and will be
            thing._lease = self._lease
        return thing

    async def __aexit__(self, *exc: Any) -> None:
        if self._lease is not None:
            await self._lease.aclose(*exc)

    def _begin(self) -> None:
        """Check that it is not used twice, and that asyncio runs."""
        if self._is_used:
            raise hal.InvalidArgumentError(
                f"the {self._what} was opened before",
                hint="keep what await or async with gives, or make another call",
            )
        require_loop()
        self._is_used = True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise NotOpenError(
                f"the {self._what} is not open yet, so it has no {name!r}",
                hint="write 'async with ... as x:', or 'x = await ...' and at the end "
                "'await x.aclose()'",
            )

    def __repr__(self) -> str:
        return f"<{self._what} to be opened by await or async with>"


def opens(
    what: str, *, is_for_a_block: bool = False
) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, Opening[T]]]:
    """Make an `Opening` of what a generator yields, once, until it is closed.

    What ``is_for_a_block`` was open before, and is changed for the block alone.
    """

    def decorate(function: Callable[P, AsyncIterator[T]]) -> Callable[P, Opening[T]]:
        context = asynccontextmanager(function)

        @wraps(function)
        def opening(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
            inside = context(*args, **kwargs)
            return Opening(what, inside, is_for_a_block=is_for_a_block)

        return opening

    return decorate


@contextmanager
def _opening(what: str) -> Iterator[None]:
    """Report what the system has run out of, maybe as modules are imported."""
    try:
        yield
    except (ImportError, MemoryError, OSError) as error:
        if isinstance(error, hal.AsyncnnError) or shortage_of(error) is None:
            raise
        raise hal.failure_of(error, f"the {what} cannot be opened") from error


class _Block(Generic[T]):
    """Open for a block; it may be closed before the end of that."""

    __slots__ = ("_closed", "_context", "_home", "_what")

    def __init__(self, what: str, context: AbstractAsyncContextManager[T]) -> None:
        self._what = what
        self._context: AbstractAsyncContextManager[T] | None = context
        self._closed = asyncio.Event()
        self._home = Home()

    def release(self) -> None:
        """Leave it open: the block is going to close it."""

    async def aclose(self, *exc: Any) -> None:
        is_inherited = self._home.is_inherited
        if not (is_inherited or self._closed.is_set()):
            self._home.check(f"the {self._what}")
        context, self._context = self._context, None
        if context is None:
            if not is_inherited:
                await self._closed.wait()
            return
        try:
            await context.__aexit__(*(exc or (None, None, None)))
        finally:
            self._closed.set()


_KEEPING: set[asyncio.Task[None]] = set()
"""Tasks that keep something open."""


class _Kept:
    """Open by a task of its own, until it is closed or forgotten."""

    __slots__ = ("_home", "_is_closed", "_leave", "_loop", "_task", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_closed = False
        self._leave = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._home = Home()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def opened(cls, what: str, context: AbstractAsyncContextManager[T]) -> T:
        lease = cls(what)
        opened: asyncio.Future[T] = lease._loop.create_future()
        task = lease._loop.create_task(_keep(context, opened, lease._leave))
        try:
            await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            lease._is_closed = True
            lease._leave.set()
            if not opened.done():
                task.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # nobody else looks at it
            raise
        if not opened.done():
            lease._is_closed = True
            with _opening(what):
                task.result()
            raise asyncio.CancelledError  # it was cancelled by another
        lease._task = task
        # The loop refers to tasks weakly: one that is collected with a forgotten
        # thing, before it is asked to leave, would be destroyed while it waits.
        _KEEPING.add(task)
        task.add_done_callback(_KEEPING.discard)
        thing = opened.result()
        thing._lease = lease
        return thing

    def release(self) -> None:
        self._is_closed = True
        self._leave.set()

    async def aclose(self) -> None:
        if self._task is None or self._home.is_inherited:
            self._is_closed = True
            return
        # It may have ended with its loop, which calls nobody back any more.
        if not self._task.done():
            self._home.check(f"the {self._what}")
            self._is_closed = True
            self._leave.set()
            await asyncio.wait({self._task})
        self._is_closed = True
        if not self._task.cancelled():  # as by the end of the loop
            self._task.result()

    def __del__(self) -> None:
        if self._is_closed or self._home.is_inherited:
            return
        with suppress(RuntimeError):  # the loop is closed, and so is all that it kept
            self._loop.call_soon_threadsafe(self._leave.set)
        warnings.warn(
            f"a {self._what} was not closed; await its aclose(), or open it by "
            f"async with",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


async def _keep(
    context: AbstractAsyncContextManager[T],
    opened: asyncio.Future[T],
    leave: asyncio.Event,
) -> None:
    """Be in a context until asked to leave; refer to nothing that it has opened."""
    async with context as thing:
        opened.set_result(thing)
        del thing, opened
        await leave.wait()
