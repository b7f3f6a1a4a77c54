"""One end of a queue: the ring, and ways to wait for the other end.

A queue is synchronised in the HAL's sense: one reader, one writer, nothing overwritten,
a packet written and read whole or not at all. `MessageQueue.create` makes one, and its
descriptor leads to the other end, in this process or another: `MessageQueue.open`.

Source: FMQ MessageQueue.h (fmq_sync), HAL 1.2/IPreparedModel.hal.
"""

import asyncio
import fcntl
import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Self

from asyncnn import interpreter_hooks
from asyncnn.fmq.doorbell import Doorbell, EventDoorbell, SocketDoorbell, wait_for
from asyncnn.fmq.layout import (
    READ,
    READER_SLEEPS,
    WRITER_SLEEPS,
    WRITTEN,
    Geometry,
    Pages,
    QueueBusyError,
    create_pages,
    map_pages,
)
from asyncnn.fmq.poller import RECHECK_S, LoopPoller, Served
from asyncnn.fmq.ring import Bytes, OpenRing, check_platform
from asyncnn.fmq.spin import AdaptiveSpinner, clock, spin
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import Handle
from asyncnn.memory.pages import os_errors


class MessageQueue(OpenRing):
    """The writing or the reading end of a queue, for one task or thread at a time.

    ``quantum`` is the bytes of an element, ``count`` the elements that fit in. The
    ``descriptor`` of an end that was created opens the other end and is valid until
    `close`; an opened end's is empty. ``is_local`` says whether both
    ends are in this process. Close both ends.
    """

    def __init__(
        self,
        geometry: Geometry,
        pages: Pages,
        own: Doorbell,
        peer: Doorbell,
        owned: ExitStack,
    ) -> None:
        super().__init__(geometry, pages, peer.ring)
        self.descriptor = Handle()
        self.is_local = False
        self.served: Served | None = None
        self._doorbell = own
        self._peer_doorbell = peer
        self._owned = owned
        self._spinner = AdaptiveSpinner()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poller = LoopPoller()
        self._wake: Callable[[], None] | None = None
        self._is_blocking = False
        self._awaited = (WRITTEN, 0)
        interpreter_hooks.disown_in_children(self)

    @classmethod
    def create(cls, quantum: int, count: int) -> Self:
        """Return one end of a new queue.

        :raises InvalidArgumentError: if it would be empty or too large.
        :raises MemoryOrderError: if this platform cannot have queues.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        check_platform()
        geometry = Geometry(quantum, count)
        geometry.check()
        with os_errors("a new queue"), ExitStack() as owned:
            fd = create_pages(geometry)
            owned.callback(os.close, fd)
            pages = map_pages(fd, geometry)
            theirs = EventDoorbell.create()
            owned.callback(theirs.close)
            ours, to_ring = SocketDoorbell.pair()
            owned.callback(ours.close)
            owned.callback(to_ring.close)
            queue = cls(geometry, pages, ours, theirs, owned.pop_all())
        fds = (fd, theirs.fileno(), to_ring.fileno())
        queue.descriptor = Handle(fds, (quantum, count))
        _CREATED[_identity(fd)] = queue
        return queue

    @classmethod
    def open(cls, descriptor: Handle) -> Self:
        """Return the other end of a queue, whose creator may be malicious.

        The caller keeps its descriptors. Whatever the peer does from now on, only the
        calls that are meant to wait can be kept waiting.

        :raises InvalidArgumentError: if that is not the handle of a queue.
        :raises MemoryOrderError: if this platform cannot have queues.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        check_platform()
        if (len(descriptor.fds), len(descriptor.ints)) != (3, 2):
            raise InvalidArgumentError("that is not the handle of a queue")
        geometry = Geometry(*descriptor.ints)
        # Before anything is mapped: both numbers are what the peer says.
        geometry.check()
        for fd in descriptor.fds:
            _check_descriptor(fd)
        file, own, peer = descriptor.fds
        with os_errors("a queue"), ExitStack() as owned:
            pages = map_pages(file, geometry)
            ours = EventDoorbell.received(own)
            owned.callback(ours.close)
            theirs = SocketDoorbell.received(peer)
            owned.callback(theirs.close)
            queue = cls(geometry, pages, ours, theirs, owned.pop_all())
        creator = _CREATED.get(_identity(file))
        if creator is not None:
            _introduce(creator, queue)
            _introduce(queue, creator)
        return queue

    async def write(
        self,
        data: Bytes,
        timeout: float | None = None,  # noqa: ASYNC109 - as the HAL's writeBlocking
        *,
        spins: bool = True,
    ) -> None:
        """Write whole elements as one packet, once there is room for it.

        ``timeout`` is in seconds. Cancelling leaves the queue as it was. Without
        ``spins`` it sleeps at once, which suits a slow reader.

        :raises InvalidArgumentError: if these are no whole elements or more than fit.
        :raises QueueBrokenError: if the reader's counter is impossible.
        :raises QueueClosedError: if this end is closed, even while this waits.
        :raises QueueBusyError: if another task waits at this end.
        :raises TimeoutError: if there is no room in time.
        """
        if timeout is not None:
            async with asyncio.timeout(timeout):
                return await self.write(data, spins=spins)
        poller = self._poller
        if clock() > poller.turn_ends_ns and poller.must_yield():
            if self._loop is not asyncio.get_running_loop():
                self._join_loop()
            await asyncio.sleep(0)
        while True:
            seen = self._word(READ)
            if self.write_nowait(data):
                return None
            if not self._spin(READ, seen, spins):
                await self._sleep(READ, WRITER_SLEEPS, seen)

    async def read(
        self,
        count: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as the HAL's readBlocking
        *,
        spins: bool = True,
    ) -> bytes:
        """Read ``count`` elements, or all there are once there is one.

        ``timeout`` is in seconds. Cancelling leaves the queue as it was. Without
        ``spins`` it sleeps at once, which suits a slow writer.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed, even while this waits.
        :raises QueueBusyError: if another task waits at this end.
        :raises TimeoutError: if there are not enough in time.
        """
        if timeout is not None:
            async with asyncio.timeout(timeout):
                return await self.read(count, spins=spins)
        poller, spinner = self._poller, self._spinner
        if clock() > poller.turn_ends_ns and poller.must_yield():
            if self._loop is not asyncio.get_running_loop():
                self._join_loop()
            await asyncio.sleep(0)
            poller = self._poller
        is_spinning = spins and not self.is_local
        looks, seen = spinner.looks if is_spinning else 1, self._read
        others = poller.served or self.served or self._wake or spinner.yielding.skips
        if is_spinning and count is None and not others:
            data = self._read_spinning(spinner, looks)
            if data is not None:
                return data
            await self._sleep(WRITTEN, READER_SLEEPS, seen)
        while True:
            seen = self._read if count is None else self._word(WRITTEN)
            data = self.read_nowait(count, looks)
            if data is not None:
                return data
            if not self._spin(WRITTEN, seen, spins):
                await self._sleep(WRITTEN, READER_SLEEPS, seen)

    def write_blocking(
        self, data: Bytes, timeout: float | None = None, *, spins: bool = False
    ) -> None:
        """Like `write`, blocking this thread.

        With ``spins`` it spins before it sleeps, which is for threads that have their
        process to themselves. It does not notice that the queue is closed meanwhile.
        """
        deadline = _deadline_ns(timeout)
        while True:
            seen = self._word(READ)
            if self.write_nowait(data):
                return
            self._block(READ, WRITER_SLEEPS, seen, deadline, spins)

    def read_blocking(
        self,
        count: int | None = None,
        timeout: float | None = None,
        *,
        spins: bool = False,
    ) -> bytes:
        """Like `read`, blocking this thread; see `write_blocking`."""
        deadline = _deadline_ns(timeout)
        while True:
            seen = self._word(WRITTEN)
            data = self.read_nowait(count)
            if data is not None:
                return data
            self._block(WRITTEN, READER_SLEEPS, seen, deadline, spins)

    def arm_wakeup(self, wake: Callable[[], None]) -> bool:
        """Have the loop call ``wake`` once the writer rings, perhaps for nothing.

        Returns False, and does not, if a packet waits. For the `LoopPoller`.

        :raises QueueClosedError: if this end is closed.
        """
        return self._arm(WRITTEN, READER_SLEEPS, self._read, wake)

    def disarm_wakeup(self) -> None:
        """Have ``wake`` called no more."""
        self._wake = None

    def _join_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop and not self.is_closed:
            self._leave_loop()
            with os_errors("listening for the doorbell of a queue"):
                loop.add_reader(self._doorbell.fileno(), self._on_doorbell)
            self._loop, self._poller = loop, LoopPoller.running()

    def _spin(self, counter: int, seen: int, spins: bool) -> bool:
        """Spin for a counter; return whether it differs from ``seen``."""
        if self._wake is not None or self.served is not None:
            raise QueueBusyError("another task waits at this end of the queue")
        poller = self._poller
        serve = poller.serve_ready if poller.served else None
        if spins and not self.is_local:
            return spin(self._has_moved, counter, seen, self._spinner, serve)
        if serve is not None:
            serve()  # the peer's packets may be among those that this loop serves
        return False

    async def _sleep(self, counter: int, flag: int, seen: int) -> None:
        """Wait for the doorbell, unless the counter differs from ``seen``."""
        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        if self._arm(counter, flag, seen, wake):
            try:
                await future
            finally:
                self._wake = None
                if not self.is_closed:  # or cancelling would raise that
                    self._withdraw(flag)

    def _arm(
        self, counter: int, flag: int, seen: int, wake: Callable[[], None]
    ) -> bool:
        """Announce sleep and have ``wake`` called; False if the counter has moved."""
        # The loop listens before the announcement, so that no ring goes unheard.
        self._join_loop()
        if not self._announce(flag, counter, seen):
            return False
        self._wake, self._awaited = wake, (counter, seen)
        self._poller.recheck_later(self._recheck)
        return True

    def _on_doorbell(self) -> None:
        if not self._is_blocking:  # else this would steal the ring of a blocked thread
            self._doorbell.silence()
            self._wake_waiter()

    def _wake_waiter(self) -> None:
        if self._wake is not None:
            self._wake()

    def _recheck(self) -> None:
        counter, seen = self._awaited
        if self._wake is not None and self._has_moved(counter, seen):
            self._wake()

    def _block(
        self, counter: int, flag: int, seen: int, deadline: int | None, spins: bool
    ) -> None:
        """Sleep until rung, but look once more after a few milliseconds."""
        if spins and spin(self._has_moved, counter, seen, self._spinner):
            return
        for limit_ms in (RECHECK_S * 1000, None):
            left_ms = _left_ms(deadline, limit_ms)
            # First: a loop that listens as well must not take the ring it announces.
            self._is_blocking = True
            try:
                if not self._announce(flag, counter, seen):
                    return
                try:
                    wait_for(self._doorbell, left_ms)
                finally:
                    self._withdraw(flag)
            finally:
                self._is_blocking = False
            if self._has_moved(counter, seen):
                return

    def _give_up(self, error: AsyncnnError) -> None:
        if self.is_closed:
            return
        super()._give_up(error)
        if self.served is not None:  # first: the poller must not look at a closed end
            self.served.stop()
        # While the doorbell is open: closed, its number may be another file's.
        self._leave_loop()
        self._owned.close()
        self.descriptor = Handle()
        # Last: the task that is woken finds the queue closed, and raises.
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def close(self) -> None:
        """Release everything; the memory goes with the last `Spans` in it.

        In a forked child, that is its own copies of what its parent still uses.
        """
        super().close()
        self._owned.close()

    def disown(self) -> None:
        """Refuse all use from now on, in a forked child, which shares ring and loop."""
        if not self.is_closed:
            self._bytes = memoryview(b"")
            self._end(partial(interpreter_hooks.forked_error, "a queue"))
        self.descriptor = Handle()
        self._loop = self._wake = self.served = None

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._doorbell.fileno())

    def __del__(self) -> None:
        if not getattr(self, "is_closed", True):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2)
            self.close()
        elif hasattr(self, "_owned"):
            self._owned.close()  # what a forked child has never closed

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<MessageQueue of {self.count} x {self.quantum} bytes, {state}>"


_CREATED: weakref.WeakValueDictionary[tuple[int, int, int], MessageQueue] = (
    weakref.WeakValueDictionary()
)
"""Ends created in this process, by the identity of the file."""


def _introduce(end: MessageQueue, peer: MessageQueue) -> None:
    """Note that the peer is in this process, and needs no doorbell."""
    end.is_local = True
    end._wake_peer = partial(_wake_local, weakref.ref(peer), end._peer_doorbell.ring)


def _wake_local(
    peer: "weakref.ref[MessageQueue]", ring_doorbell: Callable[[], None]
) -> None:
    """Wake an end that sleeps on the running loop directly; else ring its doorbell."""
    sleeper = peer()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if (
        loop is None
        or sleeper is None
        or sleeper._loop is not loop
        or sleeper._is_blocking
    ):
        ring_doorbell()
    else:
        loop.call_soon(sleeper._wake_waiter)


def _identity(fd: int) -> tuple[int, int, int]:
    """Return what distinguishes a file from all others, here and in a forked child."""
    status = os.fstat(fd)
    return os.getpid(), status.st_dev, status.st_ino


def _check_descriptor(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except (OSError, OverflowError, ValueError) as error:
        raise InvalidArgumentError(f"{fd} is not an open descriptor") from error


def _deadline_ns(timeout: float | None) -> int | None:
    return None if timeout is None else clock() + int(timeout * 1e9)


def _left_ms(deadline_ns: int | None, limit_ms: float | None) -> float | None:
    """Return how long to sleep at most."""
    if deadline_ns is None:
        return limit_ms
    left = (deadline_ns - clock()) / 1e6
    if left <= 0:
        raise TimeoutError
    return left if limit_ms is None else min(left, limit_ms)
