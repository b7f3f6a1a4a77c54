"""Whom work is done for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from asyncnn.errors import InvalidArgumentError

_numbers = count(1)


class Client:
    """An identity with a share of the lanes; two clients of one name are two.

    ``number`` tells apart all clients that there ever are in this process.
    Clients that compete get lane time in proportion to ``weight``. ``max_pending``
    bounds what waits or runs of each on one scheduler; None leaves it to the bound of
    the scheduler.

    :raises InvalidArgumentError: if the weight or the bound is not positive.
    """

    __slots__ = ("__weakref__", "max_pending", "name", "number", "weight")

    def __init__(
        self, name: str, *, weight: float = 1.0, max_pending: int | None = None
    ) -> None:
        if not 0 < weight < float("inf"):
            raise InvalidArgumentError("the weight of a client must be positive")
        if max_pending is not None and max_pending < 1:
            raise InvalidArgumentError("max_pending of a client must be at least 1")
        self.name = name
        self.number = next(_numbers)
        self.weight = weight
        self.max_pending = max_pending

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
