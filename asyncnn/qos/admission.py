"""How much may be pending, of each client and user and in all."""

from collections.abc import Callable

from asyncnn.hal.errors import ResourceExhaustedTransientError, too_many
from asyncnn.qos.work import Client, User


class Admission:
    """Counts what is pending and refuses what exceeds the bounds.

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

    @property
    def is_full(self) -> bool:
        """Whether nobody is admitted."""
        return self._pending >= self._max_pending

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
        """Count one less."""
        if self._pending == self._max_pending:
            self._filled_or_freed()
        self._pending -= 1
        self._count_out(client)
        if client.user.max_pending is not None:
            self._count_out(client.user)

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
