"""Whom work is done for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from asyncnn.errors import InvalidArgumentError

_numbers = count(1)


def _weight(weight: float, whose: str) -> float:
    if not 0 < weight < float("inf"):
        raise InvalidArgumentError(f"the weight of a {whose} must be positive")
    return weight


def _max_pending(most: int | None, whose: str) -> int | None:
    if most is not None and most < 0:
        raise InvalidArgumentError(f"max_pending of a {whose} is negative")
    return most


class User:
    """Clients that share what is theirs in common; two users of one name are two.

    Users that compete get lane time in proportion to ``weight``, however many clients
    each of them has. ``max_pending`` bounds what waits or runs of all of these on one
    scheduler, if it is not None; errors call this bound ``limit``. A driver has a user
    for each uid.

    :raises InvalidArgumentError: if the weight is not positive, or the bound negative.
    """

    __slots__ = ("__weakref__", "limit", "max_pending", "name", "weight")

    def __init__(
        self,
        name: str,
        *,
        weight: float = 1.0,
        max_pending: int | None = None,
        limit: str = "User.max_pending",
    ) -> None:
        self.name = name
        self.weight = _weight(weight, "user")
        self.max_pending = _max_pending(max_pending, "user")
        self.limit = limit

    def __repr__(self) -> str:
        return f"User({self.name!r}, weight={self.weight:g})"


OWN_USER = User("own")
"""Of clients that were not given another one."""


class Client:
    """An identity with a share of the lanes; two clients of one name are two.

    ``number`` tells apart all clients that there ever are in this process.
    Clients of one ``user`` that compete get lane time in proportion to ``weight``.
    ``max_pending`` bounds what waits or runs of each on one scheduler; None leaves it
    to the bound of the scheduler. Errors call this bound ``limit``.

    :raises InvalidArgumentError: if the weight is not positive, or the bound negative.
    """

    __slots__ = (
        "__weakref__",
        "limit",
        "max_pending",
        "name",
        "number",
        "user",
        "weight",
    )

    def __init__(
        self,
        name: str,
        *,
        weight: float = 1.0,
        max_pending: int | None = None,
        limit: str = "Client.max_pending",
        user: User = OWN_USER,
    ) -> None:
        self.name = name
        self.number = next(_numbers)
        self.weight = _weight(weight, "client")
        self.max_pending = _max_pending(max_pending, "client")
        self.limit = limit
        self.user = user

    def __repr__(self) -> str:
        return f"Client({self.name!r}, weight={self.weight:g})"


LOCAL = Client("local")
"""The application that opened the device in its own process."""

calling_client: ContextVar[Client] = ContextVar("calling_client", default=LOCAL)
"""Whose call is being served: the counterpart of the calling uid of HIDL's binder.

A session sets it for its task; work takes it over when it is made.
"""


@contextmanager
def acting_for(client: Client) -> Iterator[None]:
    """Attribute the work of calls inside the block to ``client``."""
    token = calling_client.set(client)
    try:
        yield
    finally:
        calling_client.reset(token)
