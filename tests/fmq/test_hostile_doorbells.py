"""A doorbell that is none costs its owner a wake-up, and nobody else anything."""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue
from asyncnn.fmq.layout import READER_SLEEPS, WRITER_SLEEPS
from asyncnn.fmq.poller import MAX_WINDOW_NS
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import Handle
from tests.fmq.conftest import COUNT, QUANTUM, elements
from tests.fmq.words import words_of
from tests.waits import until


def datagrams() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    sides = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for side in sides:
        stack.enter_context(side)
    return sides


def unconnected(stack: ExitStack) -> socket.socket:
    return stack.enter_context(datagrams())


def full(stack: ExitStack) -> socket.socket:
    ours, _ = pair(stack)
    while True:
        try:
            ours.send(b"x", socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ours


def closed(stack: ExitStack) -> socket.socket:
    ours, theirs = pair(stack)
    theirs.close()
    return ours


def shut_down(stack: ExitStack) -> socket.socket:
    ours, _ = pair(stack)
    ours.shutdown(socket.SHUT_RDWR)
    return ours


def unheard(stack: ExitStack) -> socket.socket:
    ours, theirs = pair(stack)
    theirs.shutdown(socket.SHUT_RD)
    return ours


def connected_to_a_name(stack: ExitStack) -> socket.socket:
    listener, ours = (stack.enter_context(datagrams()) for _ in range(2))
    listener.bind("")  # the system gives it a name
    ours.connect(listener.getsockname())
    listener.connect(listener.getsockname())  # it takes datagrams of its own alone
    return ours


def without_room(stack: ExitStack) -> socket.socket:
    ours, _ = pair(stack)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return full_of_large_ones(ours)


def full_of_large_ones(ours: socket.socket) -> socket.socket:
    size = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    while size:
        try:
            ours.send(bytes(size), socket.MSG_DONTWAIT)
        except OSError:  # too large, or there is no room any more
            size //= 2
    return ours


SOCKETS = [
    unconnected,
    full,
    closed,
    shut_down,
    unheard,
    connected_to_a_name,
    without_room,
]


@pytest.fixture
def created() -> Iterator[MessageQueue]:
    with MessageQueue.create(QUANTUM, COUNT) as queue:
        yield queue


@pytest.fixture(params=SOCKETS)
def opened(
    request: pytest.FixtureRequest, created: MessageQueue
) -> Iterator[MessageQueue]:
    """The end of a victim, who rings what was given to it as a bell."""
    with ExitStack() as stack:
        bell = request.param(stack)
        file, own, _ = created.descriptor.fds
        fds = file, own, bell.fileno()
        opened = MessageQueue.open(Handle(fds, created.descriptor.ints))
        opened.is_local = False
        opened._wake_peer = opened._peer_doorbell.ring  # as in another process
        stack.enter_context(opened)
        yield opened


USES: dict[str, Callable[[MessageQueue], object]] = {
    "write": lambda queue: queue.write_nowait(elements(1)),
    "write in place": lambda queue: queue.writing(1).commit(),
}


@pytest.mark.parametrize("use", USES)
def test_what_was_written_counts_as_written(
    created: MessageQueue, opened: MessageQueue, use: str
) -> None:
    with words_of(created) as words:
        for _ in range(5):
            words[READER_SLEEPS] = 1
            assert USES[use](opened) in (True, None)
    assert created.available_to_read() == 5


async def test_what_was_read_is_handed_over(
    created: MessageQueue, opened: MessageQueue
) -> None:
    with words_of(created) as words:
        for number in range(COUNT):
            created.write_nowait(elements(1, number))
            words[WRITER_SLEEPS] = 1
            assert await opened.read() == elements(1, number)


class Counting:
    """Serves a queue by reading it."""

    def __init__(self, queue: MessageQueue) -> None:
        self.count = 0
        self._queue = queue
        self._changed = asyncio.Event()
        self.failures: list[Exception] = []
        self.served = LoopPoller.running().serve(
            queue, self._read, self.failures.append
        )

    def _read(self) -> None:
        self.count += self._queue.read_nowait() is not None
        self._changed.set()

    async def has_read(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.count < count:
                self._changed.clear()
                await self._changed.wait()


async def exchange(queue: MessageQueue, counting: Counting, times: int) -> None:
    """Have one packet after the other served, with time to cool in between."""
    for _ in range(times):
        before = counting.count
        assert queue.write_nowait(elements(1))
        await counting.has_read(before + 1)
        await asyncio.sleep(0)


@pytest.fixture
def other() -> Iterator[tuple[MessageQueue, MessageQueue]]:
    """The two ends of a queue of somebody else."""
    with (
        MessageQueue.create(QUANTUM, COUNT) as queue,
        MessageQueue.open(queue.descriptor) as opened,
    ):
        yield queue, opened


async def test_queues_are_served_on_beside_one_whose_writer_cannot_be_woken(
    created: MessageQueue,
    opened: MessageQueue,
    other: tuple[MessageQueue, MessageQueue],
) -> None:
    first, second = Counting(opened), Counting(other[1])
    with words_of(created) as words:
        for _ in range(10):
            words[WRITER_SLEEPS] = 1
            await exchange(created, first, 1)
            await exchange(other[0], second, 1)
    assert first.failures == second.failures == []


def overflowing(bell: int) -> None:
    os.eventfd_write(bell, (1 << 64) - 2)


def blocking(bell: int) -> None:
    fcntl.fcntl(bell, fcntl.F_SETFL, 0)
    os.eventfd_write(bell, 1)


@pytest.mark.parametrize("tamper", [overflowing, blocking])
async def test_queues_are_served_on_whatever_is_done_to_a_bell(
    created: MessageQueue,
    other: tuple[MessageQueue, MessageQueue],
    tamper: Callable[[int], None],
) -> None:
    with MessageQueue.open(created.descriptor) as opened:
        first, second = Counting(opened), Counting(other[1])
        for _ in range(5):
            tamper(created.descriptor.fds[1])
            await exchange(other[0], second, 1)
            opened._doorbell.silence()
            await exchange(created, first, 1)


class Unwatchable:
    """A bell that no loop can listen to."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("no bell")

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None: ...

    def silence(self) -> None: ...

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def unwatchable(created: MessageQueue) -> Iterator[MessageQueue]:
    with MessageQueue.open(created.descriptor) as opened:
        bell = Unwatchable()
        own, opened._doorbell = opened._doorbell, bell
        yield opened
        opened._doorbell = own
        bell.close()


class TestAQueueThatCannotBeWatched:
    async def test_ends_and_its_owner_is_told_while_others_are_served_on(
        self, unwatchable: MessageQueue, other: tuple[MessageQueue, MessageQueue]
    ) -> None:
        second = Counting(other[1])
        second.served.window_ns = MAX_WINDOW_NS
        first = Counting(unwatchable)
        await exchange(other[0], second, 10)
        assert first.served.is_stopped
        (failure,) = first.failures
        assert isinstance(failure, GeneralFailureError)
        assert second.failures == []

    async def test_is_no_reason_for_others_to_stay_hot(
        self, unwatchable: MessageQueue, other: tuple[MessageQueue, MessageQueue]
    ) -> None:
        Counting(unwatchable)
        second = Counting(other[1])
        with words_of(other[0]) as words:
            await until(lambda: bool(words[READER_SLEEPS]))
        await exchange(other[0], second, 3)

    async def test_may_close_others_when_it_ends(
        self, unwatchable: MessageQueue, other: tuple[MessageQueue, MessageQueue]
    ) -> None:
        strays: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: strays.append(context))
        LoopPoller.running().serve(
            unwatchable, unwatchable.read_nowait, lambda _: other[1].close()
        )
        second = Counting(other[1])
        await until(lambda: second.served.is_stopped)
        assert strays == []

    async def test_ends_even_if_its_owner_fails_then(
        self, unwatchable: MessageQueue, other: tuple[MessageQueue, MessageQueue]
    ) -> None:
        strays: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: strays.append(type(context["exception"]))
        )
        LoopPoller.running().serve(
            unwatchable, unwatchable.read_nowait, lambda _: [].pop()
        )
        second = Counting(other[1])
        await exchange(other[0], second, 3)
        assert strays == [IndexError]

    async def test_cannot_be_awaited(self, unwatchable: MessageQueue) -> None:
        for _ in range(2):
            with pytest.raises(GeneralFailureError, match="listen"):
                await unwatchable.read()
