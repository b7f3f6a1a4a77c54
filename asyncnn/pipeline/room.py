"""Places for frames, and those who wait for one."""

import asyncio
from collections import deque
from contextlib import suppress


class Room:
    """A number of places, given to those who wait in the order in which they came."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_nowait(self) -> bool:
        """Take a place; False if none is free."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place as soon as one is free."""
        if self.take_nowait():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)
            else:
                self.give()
            raise

    def give(self) -> None:
        """Give a place to who waits longest, or free it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def open(self) -> None:
        """Let everyone in who waits: there is nothing any more to wait for."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
