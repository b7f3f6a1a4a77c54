"""What all clients of a driver may have together of what the system gives a process.

A driver has some hundred or thousand descriptors and some ten thousand mappings, and
whoever took all of them would harm everybody else. So a process may have as many as are
left for others, and no more: one that takes what it can gets half of them, two get a
third each, and there is always something left for the next one.
"""

import time
from collections.abc import Callable
from weakref import WeakSet

from asyncnn.errors import ResourceExhaustedTransientError, too_many

_RECOUNT_S = 0.1
"""Counting everybody's takes long where there are hundreds of connections."""


class Budget:
    """``most`` of ``what`` for all clients, and up to ``most_each`` for each process.

    ``limit`` names what bounds all of them, ``limit_each`` the setting for one.
    """

    def __init__(
        self, what: str, most: int, limit: str, most_each: int, limit_each: str
    ) -> None:
        self.what = what
        self.most = most
        self.limit = limit
        self.most_each = most_each
        self.limit_each = limit_each
        self.used = 0
        self._accounts: WeakSet[Account] = WeakSet()
        self._counted_at = -_RECOUNT_S

    def account(self, owner: "Owner", count: Callable[[], int]) -> "Account":
        """Return the account of a connection, which has as many as ``count`` says."""
        account = Account(self, owner, count)
        self._accounts.add(account)
        return account

    def recount(self) -> None:
        """Learn what has been given back lately."""
        now = time.monotonic()
        if now - self._counted_at >= _RECOUNT_S:
            for account in self._accounts:
                account.update()
            self._counted_at = now


class Owner:
    """A process, and what its connections have of one budget."""

    def __init__(self) -> None:
        self.used = 0


class Account:
    """What one connection has of a budget. Belongs to the event loop."""

    def __init__(self, budget: Budget, owner: Owner, count: Callable[[], int]) -> None:
        self._budget = budget
        self._owner = owner
        self._count = count
        self._used = 0

    def update(self) -> None:
        """Count anew what the connection has."""
        self._set(self._count())

    def check_room(self, more: int) -> None:
        """Check that the connection may have ``more``, and count them until `update`.

        Others of the process may ask for as many before the next one.

        :raises ResourceExhaustedTransientError: if its process or the driver has not as
            many left.
        """
        self.update()
        refusal = self._refusal(more)
        if refusal is not None:
            self._budget.recount()
            refusal = self._refusal(more)
        if refusal is not None:
            raise refusal
        if self._count is not _nothing:
            self._set(self._used + more)

    def close(self) -> None:
        """Count nothing any more: the connection has ended."""
        self._count = _nothing
        self._set(0)

    def _set(self, used: int) -> None:
        more, self._used = used - self._used, used
        self._owner.used += more
        self._budget.used += more

    def _refusal(self, more: int) -> ResourceExhaustedTransientError | None:
        budget, own = self._budget, self._owner.used
        if own + more > budget.most_each:
            return too_many(budget.what, budget.limit_each, budget.most_each)
        left = budget.most - budget.used
        if own + more > left - more:
            return ResourceExhaustedTransientError(
                f"the client has {own} of the driver's {budget.most} {budget.what}, "
                f"and {max(left, 0)} are left for others: {budget.limit}"
            )
        return None


def _nothing() -> int:
    return 0
