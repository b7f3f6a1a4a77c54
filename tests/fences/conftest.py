"""Fences of every make, and a watch over what tests leave behind."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

from asyncnn.fences import FenceSource, SyncFence
from asyncnn.hal.types import ErrorStatus
from tests.fences import kernel
from tests.memory.foreign import leaks, traces


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before, threads = traces(), threading.active_count()
    yield
    for _ in range(100):  # an example that was given up leaves work to later turns
        if not leaks(before):
            break
        await asyncio.sleep(0.001)
    assert not leaks(before)
    assert threading.active_count() == threads
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Made:
    """A fence, and what makes it end; ``fail`` is None where makers cannot tell."""

    def __init__(
        self,
        fence: SyncFence,
        signal: Callable[[], object],
        fail: Callable[[], object] | None,
    ) -> None:
        self.fence = fence
        self.signal = signal
        self.fail = fail


def failing(source: FenceSource) -> Callable[[], object]:
    return lambda: source.fail(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "too late")


def made_local(_stack: ExitStack) -> Made:
    fence, source = SyncFence.pair()
    return Made(fence, source.signal, failing(source))


def made_with_descriptor(_stack: ExitStack) -> Made:
    fence, source = SyncFence.pair()
    fence.fileno()
    return Made(fence, source.signal, failing(source))


def made_imported(_stack: ExitStack) -> Made:
    fence, source = SyncFence.pair()
    return Made(SyncFence.from_handle(fence.handle()), source.signal, failing(source))


class Given:
    """A producer that keeps the write ends it was handed."""

    is_remote = True

    def __init__(self) -> None:
        self.write_ends: list[int] = []

    def hand_over(self, write_end: int) -> None:
        self.write_ends.append(write_end)


def made_handed_over(stack: ExitStack) -> Made:
    """Another process owns the fence: here, whoever was given the write end."""
    given = Given()
    fence, source = SyncFence.pair(given)
    stack.callback(source.signal)
    imported = SyncFence.from_fd(fence.fileno())
    (write_end,) = given.write_ends
    owner = FenceSource.adopt(write_end)
    os.close(write_end)
    return Made(imported, owner.signal, failing(owner))


def made_of_eventfd(stack: ExitStack) -> Made:
    fd = os.eventfd(0)
    stack.callback(os.close, fd)
    return Made(SyncFence.from_fd(fd), lambda: os.eventfd_write(fd, 1), None)


def made_of_socket(stack: ExitStack) -> Made:
    mine, yours = socket.socketpair()
    stack.callback(mine.close)
    fence = SyncFence.from_fd(yours.fileno())
    yours.close()
    return Made(fence, lambda: mine.send(b"x"), mine.close)


def made_by_kernel(stack: ExitStack) -> Made:
    timeline = stack.enter_context(kernel.timeline())
    fd = timeline.fence()
    stack.callback(os.close, fd)
    return Made(SyncFence.from_fd(fd), timeline.advance, None)


MAKERS = {
    "local": made_local,
    "with_descriptor": made_with_descriptor,
    "imported": made_imported,
    "handed_over": made_handed_over,
    "eventfd": made_of_eventfd,
    "socket": made_of_socket,
    kernel.KIND: made_by_kernel,
}


@pytest.fixture(params=MAKERS)
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    """An active fence of each make."""
    with ExitStack() as stack:
        made = MAKERS[request.param](stack)
        yield made
        vars(made).clear()  # pytest keeps it until after the watch


@pytest.fixture(
    params=[name for name in MAKERS if name not in ("eventfd", kernel.KIND)]
)
def fallible(request: pytest.FixtureRequest) -> Iterator[Made]:
    """An active fence of each make that can tell of an error."""
    with ExitStack() as stack:
        made = MAKERS[request.param](stack)
        yield made
        vars(made).clear()  # pytest keeps it until after the watch
