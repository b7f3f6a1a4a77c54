"""Fences and their sources: `SyncFence` is waited for, `FenceSource` signals it.

Both are thin handles of one `Core`: of a `LocalCore` for fences that are signalled in
this process, of a `ForeignCore` for those that came as a descriptor.
"""

import asyncio
import os
import time
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from asyncnn.fences.core import (
    Core,
    FenceOutcome,
    FenceState,
    IWaitable,
    Producer,
    outcome_now,
)
from asyncnn.fences.foreign import ForeignCore
from asyncnn.fences.local import OWNER_IS_GONE, LocalCore, WriteEnd
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ErrorStatus, Handle
from asyncnn.turn import TURN_NS

FenceT = TypeVar("FenceT", bound=IWaitable)


class FenceSource:
    """The only thing that can signal a fence; `SyncFence.pair` makes both.

    It may be used from any thread. The first call decides, later ones change nothing. A
    source that is collected unused fails its fence with DEVICE_UNAVAILABLE.
    """

    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: Core) -> None:
        self._core = core

    @classmethod
    def adopt(cls, fd: int) -> "FenceSource":
        """Return the source of a fence of another process, which handed over ``fd``.

        The descriptor, the write end of the fence's pipe, is duplicated.

        :raises InvalidArgumentError: if ``fd`` is no pipe that can be written.
        """
        return cls(LocalCore(write_end=WriteEnd.received(fd)))

    @property
    def is_done(self) -> bool:
        """Whether the fence was signalled or failed."""
        return self._core.outcome is not None

    def signal(self, *, at_ns: int | None = None) -> bool:
        """Signal the fence; False if it was done before.

        ``at_ns`` is when that happened on the steady clock, if it was not just now.
        """
        if at_ns is None:
            at_ns = time.monotonic_ns()
        return self._core.resolve(FenceOutcome(ErrorStatus.NONE, "", at_ns))

    def fail(
        self, status: ErrorStatus, reason: str = "", *, at_ns: int | None = None
    ) -> bool:
        """Put the fence into the error state, likewise.

        :raises ValueError: if ``status`` is NONE.
        """
        if status is ErrorStatus.NONE:
            raise ValueError("a fence does not fail with NONE; signal it")
        if at_ns is None:
            at_ns = time.monotonic_ns()
        return self._core.resolve(FenceOutcome(status, reason, at_ns))

    def __del__(self) -> None:
        if self._core.outcome is None:
            self.fail(ErrorStatus.DEVICE_UNAVAILABLE, OWNER_IS_GONE)

    def __repr__(self) -> str:
        return f"<FenceSource {'done' if self.is_done else 'pending'}>"


class SyncFence:
    """A one-time event that any number of tasks, threads and processes wait for.

    Awaiting it returns None once it was signalled, and raises the `AsyncnnError` of its
    status if it failed. Cancelling one waiter leaves the others alone. A fence that is
    done does not suspend its waiters, but for a turn of the loop every `TURN_NS`.

    It is closed with the last reference to it. Objects made by `duplicate` stand for
    the same fence, and are closed one by one. Handing one to a process that
    `multiprocessing` starts passes its descriptor on; a plain fork takes none along.
    """

    __slots__ = ("__weakref__", "_core")

    _last_turn_ns: ClassVar[int] = 0

    def __init__(self, core: Core) -> None:
        self._core: Core | None = core

    @classmethod
    def pair(cls, producer: Producer | None = None) -> tuple[Self, FenceSource]:
        """Return an active fence, and the only thing that can signal it.

        Where another process learns the outcome first, ``producer`` passes on to it the
        write end of the fence's pipe. The source then resolves the fence for this
        process alone.
        """
        core = LocalCore(producer)
        return cls(core), FenceSource(core)

    @classmethod
    def signalled(cls) -> Self:
        """Return a fence that was signalled just now."""
        return cls._done(outcome_now())

    @classmethod
    def failed(cls, status: ErrorStatus, reason: str = "") -> Self:
        """Return a fence in the error state.

        :raises ValueError: if ``status`` is NONE.
        """
        if status is ErrorStatus.NONE:
            raise ValueError("a fence does not fail with NONE; make a signalled one")
        return cls._done(outcome_now(status, reason))

    @classmethod
    def _done(cls, outcome: FenceOutcome) -> Self:
        core = LocalCore()
        core.outcome = outcome  # there is no source that could resolve it
        return cls(core)

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Take in the fence behind a descriptor, which is duplicated.

        Pipes of this package carry how their fence ended, the kernel's ``sync_file``
        fences as well. Any other descriptor is signalled once it is readable; a socket
        that ends without a byte has failed.

        :raises InvalidArgumentError: if ``fd`` is not open.
        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """
        return cls(ForeignCore(fd))

    @classmethod
    def from_handle(cls, handle: Handle) -> Self:
        """Take in the fence behind a handle of the HAL.

        :raises InvalidArgumentError: if it has not exactly one open descriptor.
        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """
        if len(handle.fds) != 1:
            count = len(handle.fds)
            raise InvalidArgumentError(f"a fence has one descriptor, not {count}")
        return cls.from_fd(handle.fds[0])

    @property
    def state(self) -> FenceState:
        """What can be seen of the fence now; UNKNOWN if this object is closed."""
        if self._core is None:
            return FenceState.UNKNOWN
        outcome = self._core.look()
        return FenceState.ACTIVE if outcome is None else outcome.state

    @property
    def status(self) -> ErrorStatus | None:
        """NONE once signalled, the error of a failed fence, None while it is active."""
        outcome = self._outcome()
        return None if outcome is None else outcome.status

    @property
    def reason(self) -> str:
        """What the source said of an error; empty for fences of other makers."""
        outcome = self._outcome()
        return "" if outcome is None else outcome.reason

    @property
    def signalled_at_ns(self) -> int | None:
        """When it was done, on the steady clock; None if active or not known."""
        outcome = self._outcome()
        return None if outcome is None else outcome.at_ns

    @property
    def producer(self) -> Producer | None:
        """What is going to end the fence, if it was made with one and is active."""
        return self._open_core().producer

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback`` with this fence on the running loop, soon after it is done.

        :raises InvalidArgumentError: if this object is closed.
        """
        core, loop = self._open_core(), asyncio.get_running_loop()
        if core.look() is not None:
            loop.call_soon(callback, self)
        else:
            future = core.add_waiter(loop, callback)
            future.add_done_callback(partial(self._call, core, callback))

    def _call(
        self,
        core: Core,
        callback: Callable[[Self], object],
        future: "asyncio.Future[None]",
    ) -> None:
        if not future.cancelled():
            core.remove_waiter(future)
            callback(self)

    def remove_done_callback(self, callback: Callable[[Self], object]) -> int:
        """Forget every equal callback of this loop; return how many there were.

        Callbacks of a fence that is done are on their way already.
        """
        core, loop = self._open_core(), asyncio.get_running_loop()
        active = [f for f in core.waiters_of(loop, callback) if f.cancel()]
        for future in active:
            core.remove_waiter(future)
        return len(active)

    def __await__(self) -> Generator[Any, None, None]:
        core = self._core or self._open_core()
        outcome = core.look()
        if outcome is None:
            future = core.add_waiter(asyncio.get_running_loop())
            try:
                yield from future
            finally:
                core.remove_waiter(future)
            outcome = core.outcome
            assert outcome is not None
        else:
            now = time.monotonic_ns()
            if now - self._last_turn_ns > TURN_NS:
                SyncFence._last_turn_ns = now
                yield
        if outcome.status is not ErrorStatus.NONE:
            raise outcome.error

    async def wait(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio.wait_for
        """Await this fence for at most ``timeout`` seconds.

        :raises TimeoutError: if it is still active then.
        :raises AsyncnnError: if the fence failed.
        """
        async with asyncio.timeout(timeout):
            await self

    def wait_blocking(self, timeout: float | None = None) -> None:
        """Block a thread that runs no loop, for at most ``timeout`` seconds.

        :raises TimeoutError: if the fence is still active then.
        :raises AsyncnnError: if the fence failed.
        :raises RuntimeError: if that would block an event loop.
        """
        core = self._open_core()
        ends = None if timeout is None else time.monotonic() + timeout
        while (outcome := core.look()) is None:
            if running_loop() is not None:
                raise RuntimeError("this would block the event loop; await the fence")
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"the fence is active after {timeout} s")
            core.block(left)
        if outcome.status is not ErrorStatus.NONE:
            raise outcome.error

    def fileno(self) -> int:
        """Return a descriptor of the fence that polls as readable once it is done.

        It stays open while any object of this fence does; duplicate it to keep it for
        longer.

        :raises InvalidArgumentError: if this object is closed.
        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """
        return self._open_core().fileno()

    def handle(self) -> Handle:
        """Return the HAL's handle of the fence, with the descriptor of `fileno`.

        :raises InvalidArgumentError: if this object is closed.
        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """
        return Handle((self.fileno(),))

    def duplicate(self) -> Self:
        """Return another object for the same fence, to be closed on its own.

        :raises InvalidArgumentError: if this object is closed.
        """
        return type(self)(self._open_core())

    def close(self) -> None:
        """Let go of the fence; tasks that wait already go on waiting."""
        self._core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _received, (type(self), DupFd(self.fileno()))

    def __repr__(self) -> str:
        status = self.status if self._core is not None else None
        error = f" {status.name}" if status else ""
        return f"<{type(self).__name__} {self.state.value}{error}>"

    def _open_core(self) -> Core:
        if self._core is None:
            raise InvalidArgumentError("the fence is closed")
        return self._core

    def _outcome(self) -> FenceOutcome | None:
        core = self._core
        if core is None:
            raise InvalidArgumentError("the fence is closed")
        return core.outcome or core.look()


def _received(cls: type[SyncFence], duplicate: Any) -> SyncFence:
    fd = duplicate.detach()
    try:
        return cls.from_fd(fd)
    finally:
        os.close(fd)


def merge(*fences: SyncFence) -> SyncFence:
    """Return a fence that is signalled once all of ``fences`` are.

    It fails as soon as the first of them does, with the same status and reason. The
    running loop watches those that are active. Merging no fences at all returns a
    signalled one. The fences may be closed afterwards.

    :raises InvalidArgumentError: if one of them is closed.
    :raises RuntimeError: if one is active and no loop runs.
    """
    active = set()
    for fence in fences:
        status = fence.status
        if status is None:
            active.add(fence.duplicate())
        elif status is not ErrorStatus.NONE:
            return fence.duplicate()
    if not active:
        return fences[0].duplicate() if len(fences) == 1 else SyncFence.signalled()
    merged, source = SyncFence.pair()
    _Merger(source, active)
    return merged


def pass_on(fence: IWaitable, source: FenceSource, at_ns: int | None = None) -> None:
    """End the fence of ``source`` as ``fence`` has ended, just now or at ``at_ns``."""
    if fence.status:
        source.fail(fence.status, fence.reason, at_ns=at_ns)
    else:
        source.signal(at_ns=at_ns)


class _Merger:
    """Signals ``source`` once all ``active`` fences are done, which keep it alive."""

    __slots__ = ("_active", "_source")

    def __init__(self, source: FenceSource, active: set[SyncFence]) -> None:
        self._source = source
        self._active = active
        for fence in list(active):
            fence.add_done_callback(self._done)

    def _done(self, fence: SyncFence) -> None:
        # It may be gone: the loop may have the calls of several that failed together.
        self._active.discard(fence)
        if fence.status or not self._active:
            pass_on(fence, self._source)
            for other in self._active:
                other.remove_done_callback(self._done)
            self._active.clear()


def active_fences(fences: Sequence[FenceT]) -> list[FenceT]:
    """Return the fences, or executions, that are still to be waited for.

    :raises InvalidArgumentError: if one has failed, or is no fence.
    """
    active: list[FenceT] = []
    for position, fence in enumerate(fences):
        if fence is None:
            raise InvalidArgumentError(f"fence {position} is empty")
        status = fence.status
        if status is None:
            active.append(fence)
        elif status is not ErrorStatus.NONE:
            raise InvalidArgumentError(
                f"fence {position} has failed: {status.name}: {fence.reason}"
            )
    return active
