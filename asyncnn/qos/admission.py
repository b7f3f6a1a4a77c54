"""How much may be pending, of each client and user and in all; waiting for room."""

import asyncio
from collections import deque
from collections.abc import Callable

from asyncnn.hal.errors import ResourceExhaustedTransientError, too_many
from asyncnn.qos.work import Client, User


class Admission:
    """Counts what is pending and refuses, or lets wait, what exceeds the bounds.

    ``filled_or_freed`` is called when the last place is taken and when it is free
    again. Belongs to one event loop.
    """

    def __init__(
        self, max_pending: int, filled_or_freed: Callable[[], None] = lambda: None
    ) -> None:
        self._max_pending = max_pending
        self._filled_or_freed = filled_or_freed
        self._pending = 0
        self._of: dict[Client | User, int] = {}
        self._waiters: dict[Client, deque[asyncio.Future[None]]] = {}

    @property
    def is_full(self) -> bool:
        """Whether nobody is admitted."""
        return self._pending >= self._max_pending

    def has_room(self, client: Client) -> bool:
        """Tell whether one more of ``client`` is within all bounds."""
        if self._pending >= self._max_pending:
            return False
        return not (self._is_full(client) or self._is_full(client.user))

    def admit(self, client: Client) -> None:
        """Count one more.

        :raises ResourceExhaustedTransientError: if a bound is reached.
        """
        count = self._of.get(client, 0)
        limit = client.max_pending
        if self._pending >= self._max_pending:
            raise _exhausted("", "DeviceSettings.max_pending", self._pending)
        if limit is not None and count >= limit:
            raise _exhausted(f" of {client.name}", client.limit, limit)
        user = client.user
        if user.max_pending is not None:
            if self._is_full(user):
                raise _exhausted(f" of {user.name}", user.limit, user.max_pending)
            self._of[user] = self._of.get(user, 0) + 1
        self._pending += 1
        self._of[client] = count + 1
        if self._pending == self._max_pending:
            self._filled_or_freed()

    def release(self, client: Client) -> None:
        """Count one less, and wake one that waits for room."""
        if self._pending == self._max_pending:
            self._filled_or_freed()
        self._pending -= 1
        self._count_out(client)
        if client.user.max_pending is not None:
            self._count_out(client.user)
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

    def _is_full(self, owner: Client | User) -> bool:
        most = owner.max_pending
        return most is not None and self._of.get(owner, 0) >= most

    def _count_out(self, owner: Client | User) -> None:
        left = self._of[owner] - 1
        if left:
            self._of[owner] = left
        else:
            del self._of[owner]


def _exhausted(whose: str, limit: str, most: int) -> ResourceExhaustedTransientError:
    return too_many(
        f"pending calls{whose}", limit, most, hint="await some of them first"
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
