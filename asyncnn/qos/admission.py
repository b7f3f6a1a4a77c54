"""How much may be pending, of each client and in all; waiting for room."""

import asyncio
from collections import deque

from asyncnn.errors import ResourceExhaustedTransientError
from asyncnn.qos.client import Client


class Admission:
    """Counts what is pending and refuses, or lets wait, what exceeds the bounds.

    Belongs to one event loop.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending = 0
        self._of: dict[Client, int] = {}
        self._waiters: dict[Client, deque[asyncio.Future[None]]] = {}

    def pending(self, client: Client) -> int:
        """Return the number of admissions of ``client`` that were not released."""
        return self._of.get(client, 0)

    def has_room(self, client: Client) -> bool:
        """Tell whether one more of ``client`` is within both bounds."""
        if self._pending >= self._max_pending:
            return False
        limit = client.max_pending
        return limit is None or self.pending(client) < limit

    def admit(self, client: Client) -> None:
        """Count one more.

        :raises ResourceExhaustedTransientError: if a bound is reached.
        """
        count = self._of.get(client, 0)
        limit = client.max_pending
        if self._pending >= self._max_pending:
            raise _exhausted(self._pending, "")
        if limit is not None and count >= limit:
            raise _exhausted(count, f" of {client.name}")
        self._pending += 1
        self._of[client] = count + 1

    def release(self, client: Client) -> None:
        """Count one less, and wake one that waits for room."""
        self._pending -= 1
        left = self._of[client] - 1
        if left:
            self._of[client] = left
        else:
            del self._of[client]
        if self._waiters:
            self.pass_on(client)

    async def room(self, client: Client) -> None:
        """Wait until `admit` accepts one more of ``client``, in order of arrival.

        The caller admits it, or passes it on, before it suspends again.
        """
        while not self.has_room(client):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(client, deque()).append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self.pass_on(client)
                raise

    def pass_on(self, first: Client) -> None:
        """Wake the next waiter that has room now, of ``first`` if it can be."""
        for client in (first, *self._waiters):
            waiters = self._waiters.get(client)
            if waiters is None or not self.has_room(client):
                continue
            waiter = _pop_waiting(waiters)
            if not waiters:
                del self._waiters[client]
            if waiter is not None:
                waiter.set_result(None)
                return


def _exhausted(count: int, whose: str) -> ResourceExhaustedTransientError:
    return ResourceExhaustedTransientError(
        f"{count} executions{whose} are pending, the limit",
        hint="await some of them first, or raise max_pending",
    )


def _pop_waiting(
    waiters: deque[asyncio.Future[None]],
) -> asyncio.Future[None] | None:
    """Return the first that was not cancelled."""
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            return waiter
    return None
