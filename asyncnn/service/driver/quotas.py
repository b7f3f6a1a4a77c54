"""What the connections of one user may have in all.

Nothing is counted as it comes and goes, where a way out could be forgotten: what each
connection has lies in tables, and their lengths are looked at when one more is wanted.
"""

from typing import Any, TypeVar
from weakref import WeakValueDictionary

from asyncnn.errors import too_many
from asyncnn.memory.limits import CommonBytes
from asyncnn.service.limits import ServiceLimits, UserLimits

T = TypeVar("T")


class Table(dict[int, T]):
    """What a connection has, by number; other than a `dict`, it has weak references."""

    __slots__ = ("__weakref__",)


class Quota:
    """``most`` of ``what`` in all tables together. Belongs to the event loop.

    A table is bounded by itself to ``most_each``. ``limit`` names the setting.
    """

    def __init__(self, what: str, most: int, most_each: int, limit: str) -> None:
        self._what = what
        self._most = most
        self._limit = limit
        self._tables: WeakValueDictionary[int, Table[Any]] = WeakValueDictionary()
        # So few tables cannot have too many.
        self._unchecked = most // max(most_each, 1)

    def table(self) -> Table[T]:
        """Return a new table; what is in it counts for as long as it exists."""
        table: Table[T] = Table()
        self._tables[id(table)] = table
        return table

    def check(self, more: int = 1) -> None:
        """Check that there may be ``more``.

        :raises ResourceExhaustedTransientError: if these would be too many.
        """
        if len(self._tables) <= self._unchecked:
            return
        count = sum(map(len, self._tables.values()))
        if count + more > self._most:
            raise too_many(
                self._what,
                self._limit,
                self._most,
                hint="release some of them, in any process of this user",
            )


class UserQuotas:
    """The quotas of the user ``uid``, beside the limits of each connection."""

    def __init__(self, uid: int, limits: UserLimits, each: ServiceLimits) -> None:
        def quota(limit: str, what: str) -> Quota:
            most, most_each = getattr(limits, limit), getattr(each, limit)
            return Quota(f"{what} of uid {uid}", most, most_each, f"UserLimits.{limit}")

        self.prepared_models = quota("max_prepared_models", "prepared models")
        self.executions = quota("max_executions", "pending executions")
        self.fenced_executions = quota(
            "max_fenced_executions", "pending fenced executions"
        )
        self.bursts = quota("max_bursts", "open bursts")
        self.buffers = quota("max_buffers", "buffers")
        self.pools = quota("max_pools", "pools")
        self.pool_bytes = CommonBytes(
            limits.max_pool_bytes,
            f"bytes in pools of uid {uid}",
            "UserLimits.max_pool_bytes",
        )
