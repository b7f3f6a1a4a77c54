"""Waits for something that happens within the process, as contenders of a benchmark."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from asyncnn.fences import SyncFence

Wait = Callable[[], Awaitable[object]]


def signalled_fence() -> Wait:
    """Return the wait for a fence that was signalled long ago."""
    fence = SyncFence.signalled()
    return lambda: fence


def turn_of_the_loop() -> Wait:
    """Return the wait for nothing."""
    return lambda: asyncio.sleep(0)


async def pending_fence() -> None:
    """Make a fence and wait for it while the loop signals it."""
    fence, source = SyncFence.pair()
    asyncio.get_running_loop().call_soon(source.signal)
    await fence


async def pending_event() -> None:
    """Do so with an event of asyncio."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await event.wait()


async def pending_eventfd() -> None:
    """Do so with a descriptor, as any fence must that another process can signal."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        loop.add_reader(fd, readable.set_result, None)
        loop.call_soon(os.eventfd_write, fd, 1)
        await readable
        loop.remove_reader(fd)
    finally:
        os.close(fd)


async def pending_fence_of_another() -> None:
    """Wait for a fence by its descriptor, as another process would."""
    fence, source = SyncFence.pair()
    imported = SyncFence.from_fd(fence.fileno())
    asyncio.get_running_loop().call_soon(source.signal)
    await imported
