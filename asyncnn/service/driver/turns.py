"""Turns that the connections of one process take, so that others keep theirs.

A process that opens many connections gets no more of the driver's loop and threads than
one with a single connection.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from functools import partial

MAX_DECODING = 2
"""Large messages that are decoded at a time, of different processes: bounds memory."""

_MAX_PACKETS = 8
_SLICE_S = 0.0005
"""What a process may have read in a turn of the loop, whichever is reached first.

A turn itself costs a thread switch if a lane computes.
"""

_REST_S = 0.002
"""How long a process that has more to be read pauses at least, if there are others.

A loop that is never idle keeps lanes from the interpreter.
"""

_REST = 4.0
"""How many times as long it pauses as its packets have kept the loop busy.

A packet may name many pools, or a model that is checked: a slice ends only after it.
"""

_MAX_REST_S = 0.05
"""How long it pauses at most: what others do in the same turns counts as well, and so
does an application around the driver.
"""

_FEW = 8
"""A process with more connections pauses after each slice."""

_MEMORY_S = 1.0
"""How long a connection that has ended counts: one can open a new one each time."""


class Readers:
    """Counts the connections of a driver that may be read from."""

    def __init__(self) -> None:
        self.connections = 0


class ReadingTurns:
    """Lets a few packets of a process be read in each turn of the loop.

    That is for processes with several connections; others have one in each anyway, and
    for bursts, in which packets of all of a process's take the same turns. What packets
    cause counts as well: the calls and tasks that they make the loop's next.
    """

    def __init__(self, driver: Readers) -> None:
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._connections = 0
        self._taken = 0
        self._began = 0.0
        self._used_before = 0.0
        self._waiting: deque[Callable[[], bool]] = deque()

    def opened(self) -> None:
        """Count a new connection of the process."""
        self._connections += 1
        self._driver.connections += 1

    def closed(self) -> None:
        """Count one less, in a while."""
        # In no context: the caller's would keep the client for as long.
        self._loop.call_later(_MEMORY_S, self._forget, context=Context())

    def take(self, proceed: Callable[[], bool]) -> bool:
        """Return whether a packet of a connection may be read now; see `TakeTurn`."""
        if not self._taken and self._connections <= 1:
            return True
        return self.take_for_burst(proceed)

    def take_for_burst(self, proceed: Callable[[], bool]) -> bool:
        """Return it for a packet of a burst, of which one connection has many."""
        if not self._taken:
            self._begin()
            return True
        if self._waiting or self._is_used_up():
            # It is called from a turn that another connection began: what it reads is
            # to be done for its own client all the same.
            self._waiting.append(partial(copy_context().run, proceed))
            return False
        self._taken += 1
        return True

    def _forget(self) -> None:
        self._connections -= 1
        self._driver.connections -= 1

    def _begin(self) -> None:
        self._taken = 1
        self._began = time.perf_counter()
        self._used_before = time.thread_time()
        self._loop.call_soon(self._end)

    def _is_used_up(self) -> bool:
        return (
            self._taken >= _MAX_PACKETS or time.perf_counter() - self._began >= _SLICE_S
        )

    def _end(self) -> None:
        has_others = self._driver.connections > self._connections
        if has_others and (self._waiting or self._connections > _FEW):
            # After the tasks that were begun for these packets.
            self._loop.call_soon(self._rest)
        else:
            self._next()

    def _rest(self) -> None:
        used = time.thread_time() - self._used_before
        rest = min(max(_REST_S, used * _REST), _MAX_REST_S)
        self._loop.call_later(rest, self._next)

    def _next(self) -> None:
        """Let those read that have waited the longest and are still there."""
        self._taken = 0
        while self._waiting and not (self._taken and self._is_used_up()):
            proceed = self._waiting.popleft()
            if not self._taken:
                self._begin()
            else:
                self._taken += 1
            proceed()


class DecodingTurns:
    """Lets a process have one large message decoded at a time, and few processes."""

    def __init__(self, driver: asyncio.Semaphore) -> None:
        self._driver = driver
        self._own = asyncio.Lock()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it inside the block."""
        # Only one of a process waits beside other processes'.
        async with self._own, self._driver:
            yield
