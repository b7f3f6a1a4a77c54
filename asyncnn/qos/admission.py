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
        if self._pending >= self._max_pending:
            raise _exhausted("", "DeviceSettings.max_pending", self._pending)
        # Both before anything is counted: what is refused leaves no count behind.
        for owner in (client, client.user):
            most = owner.max_pending
            if most is not None and self._of.get(owner, 0) >= most:
                raise _exhausted(f" of {owner.name}", owner.limit, most)
        for owner in (client, client.user):
            self._of[owner] = self._of.get(owner, 0) + 1
        self._pending += 1
        if self._pending == self._max_pending:
            self._filled_or_freed()

    def release(self, client: Client) -> None:
        """Count one less."""
        if self._pending == self._max_pending:
            self._filled_or_freed()
        self._pending -= 1
        for owner in (client, client.user):
            self._of[owner] -= 1
            if not self._of[owner]:  # or a client that has gone would be kept for it
                del self._of[owner]


def _exhausted(whose: str, limit: str, most: int) -> ResourceExhaustedTransientError:
    return too_many(
        f"pending calls{whose}", limit, most, hint="await some of them first"
    )
