"""How many executions of one prepared model are under way at once."""

import asyncio
from collections import deque


class InFlight:
    """Bounds what is under way; the rest waits in the order of arrival.

    Does what `asyncio.Semaphore` does, for callers that nearly always find room: they
    take it themselves, ``room -= 1`` while that is positive, and `wait` otherwise.
    Belongs to one event loop.
    """

    __slots__ = ("_waiters", "room")

    def __init__(self, maximum: int) -> None:
        self.room = maximum
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for room, and take it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was given room, but cancelled before it ran
                self.leave()
            raise

    def leave(self) -> None:
        """Give room to the one that has waited for longest, if any does."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.room += 1
