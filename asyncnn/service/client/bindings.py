"""The requests that a client has given numbers to, so as not to send them again.

A request counts as one sent before if it has the very same arguments and pools: tuples
and pools that cannot change, compared by identity. That costs a look-up, and holds for
requests that a builder makes anew around the same arrays.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from asyncnn.hal.types import BufferToken, Memory, Request, RequestArgument
from asyncnn.memory.slabs import Part

MAX_CANDIDATES = 64
"""Requests seen once that are remembered; the one seen first is forgotten first."""

_Key: TypeAlias = tuple[int, ...]


class _Binding(msgspec.Struct, frozen=True, eq=False):
    """A number, and what keeps the identities in its key from meaning other things.

    Arguments are held. Pools are watched, since they are to go when nobody uses them,
    here or in the driver, which is told to forget the binding then.
    """

    number: int
    arguments: tuple[Sequence[RequestArgument], Sequence[RequestArgument]]
    pools: tuple[weakref.ref[Memory], ...]


class Bindings:
    """Numbers of requests, up to ``most`` of them.

    When there are that many, further requests get none, rather than others losing
    theirs: that would cost more than it saves.

    ``call_forgotten`` is called, on any thread, when there is something for
    `take_forgotten`.
    """

    def __init__(
        self, most: int = 0, call_forgotten: Callable[[], None] = lambda: None
    ) -> None:
        self.most = most
        self._call_forgotten = call_forgotten
        self._forgotten: deque[int] = deque()
        self._bound: dict[_Key, _Binding] = {}
        self._candidates: dict[_Key, None] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def number_of(self, prepared: int, request: Request) -> int | None:
        """Return the number of a request to a prepared model, None if it has none."""
        try:
            binding = self._bound.get(_key(prepared, request))
        except (AttributeError, TypeError):  # it is no request at all
            return None
        return None if binding is None else binding.number

    def is_worth_binding(self, prepared: int, request: Request) -> bool:
        """Tell whether a valid request without a number was seen before."""
        key = _key(prepared, request)
        if key in self._candidates:
            return len(self._bound) < self.most
        if len(self._candidates) == MAX_CANDIDATES:
            del self._candidates[next(iter(self._candidates))]
        self._candidates[key] = None
        return False

    def add(self, number: int, prepared: int, request: Request) -> None:
        """Remember the number that the driver knows a request by."""
        key = _key(prepared, request)
        gone: Callable[[Any], None] = partial(self._lose, key)
        pools = [pool for pool in request.pools if isinstance(pool, Memory)]
        self._candidates.pop(key, None)
        self._bound[key] = _Binding(
            number,
            (request.inputs, request.outputs),
            tuple([weakref.ref(pool, gone) for pool in pools]),
        )

    def take_forgotten(self) -> tuple[int, ...]:
        """Return the numbers of requests whose pools have gone since the last call."""
        gone = self._forgotten
        return tuple([gone.popleft() for _ in range(len(gone))])

    def release(self, prepared: int) -> None:
        """Forget the requests to a prepared model, as the driver does."""
        for key in [key for key in list(self._bound) if key[0] == prepared]:
            self._bound.pop(key, None)

    def forget_buffer(self, token: int) -> None:
        """Forget the requests that name a buffer, as the driver does."""
        for key in [key for key in list(self._bound) if -token in key]:
            self._bound.pop(key, None)

    def forget_pool(self, memory: Memory) -> None:
        """Forget the requests that name a pool, or a part of it, as the driver does."""
        for key, binding in list(self._bound.items()):
            pools = [pool() for pool in binding.pools]
            if any(p is memory or _slab_of(p) is memory for p in pools):
                self._bound.pop(key, None)

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self._bound.clear()
        self._candidates.clear()
        self._forgotten.clear()

    def _lose(self, key: _Key, _: object) -> None:
        """Forget a request, one of whose pools has gone, on any thread."""
        binding = self._bound.pop(key, None)
        if binding is not None:
            self._forgotten.append(binding.number)
            self._call_forgotten()


def _slab_of(pool: Memory | None) -> Memory | None:
    return pool.slab if type(pool) is Part else None


def _key(prepared: int, request: Request) -> _Key:
    return (
        prepared,
        id(request.inputs),
        id(request.outputs),
        # A token is a value, and no identity is negative.
        *[-p.token if type(p) is BufferToken else id(p) for p in request.pools],
    )
