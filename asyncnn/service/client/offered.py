"""The pools that this client announced to its driver."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    too_many,
)
from asyncnn.hal.types import BufferToken, Memory
from asyncnn.memory.slabs import Slab
from asyncnn.service import wire
from asyncnn.service.limits import ServiceLimits


class Send(Protocol):
    """Sends a message, or raises an `AsyncnnError`."""

    def __call__(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send ``message`` with descriptors beside it."""
        ...


class OfferedPools:
    """Announces pools when they are used first, and forgets those that are gone.

    ``call_soon`` runs a function on the event loop, from any thread. ``most`` is how
    many pools the driver takes, ``most_bytes`` how large they may be together. Before
    there are more, ``free_idle`` is called to give back those that nothing uses.
    """

    def __init__(
        self,
        send: Send,
        send_if_open: Callable[[wire.ToDriver], None],
        call_soon: Callable[[Callable[[], None]], None],
        numbers: Iterator[int],
        limits: ServiceLimits,
        free_idle: Callable[[], None],
        *,
        may_see_slabs: bool,
    ) -> None:
        self._send = send
        self._send_if_open = send_if_open
        self._call_soon = call_soon
        self._numbers = numbers
        self._max_fds = limits.max_fds_per_message
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self.most = limits.max_pools
        self.most_bytes = limits.max_pool_bytes
        self._announced: dict[weakref.ref[Memory], int] = {}
        self._sizes: dict[int, int] = {}
        self._buffers: dict[int, int] = {}
        self._gone: deque[int] = deque()

    def numbers_of(self, pools: Sequence[object]) -> tuple[int, ...]:
        """Return the numbers of pools, announcing those that the driver has not seen.

        A buffer's token stands for the number that it was allocated by.

        :raises InvalidArgumentError: if there is no such buffer.
        :raises GeneralFailureError: if the descriptors of a pool cannot be sent.
        :raises ResourceExhaustedTransientError: if the driver has as many as it takes.
        :raises AsyncnnError: if one cannot be announced.
        """
        numbers: list[int] = []
        for memory in pools:
            if isinstance(memory, Memory):
                number = self._announced.get(weakref.ref(memory))
                numbers.append(self._announce(memory) if number is None else number)
            else:
                numbers.append(self._number_of_buffer(memory))
        return tuple(numbers)

    def adopt(self, token: int, number: int) -> None:
        """Let the token of a buffer stand for ``number`` until `lose_buffer`."""
        self._buffers[token] = number

    def lose_buffer(self, token: int) -> None:
        """Have the driver forget a buffer; called by finalisers, on any thread."""
        number = self._buffers.pop(token, None)
        if number is not None:
            self._gone.append(number)
            self._call_soon(self._forget)

    def refused(self, numbers: Collection[int]) -> list[Memory]:
        """Announce pools anew when they are used again; return those still alive."""
        found: list[Memory] = []
        for memory, number in list(self._announced.items()):
            if number in numbers:
                pool = memory()
                if pool is not None:
                    found.append(pool)
                self._lost(memory)
        return found

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self._announced.clear()
        self._sizes.clear()
        self._buffers.clear()
        self._gone.clear()

    def _number_of_buffer(self, pool: object) -> int:
        number = self._buffers.get(pool.token) if type(pool) is BufferToken else None
        if number is None:
            raise InvalidArgumentError(f"{pool!r} is no buffer of this driver")
        return number

    def _announce(self, memory: Memory) -> int:
        number = next(self._numbers)
        fds = memory.handle.fds
        _check_descriptors(fds, self._max_fds)
        if type(memory) is Slab and not self._may_see_slabs:
            raise InvalidArgumentError(
                "a small shared array lies beside others, which a driver of another "
                "user is not to see",
                hint="make it with shared_array(..., isolated=True)",
            )
        self._make_room(memory.size)
        info = wire.PoolInfo(
            number, memory.name, memory.size, memory.handle.ints, len(fds)
        )
        self._send(wire.AnnouncePools((info,)), fds)
        self._announced[weakref.ref(memory, self._lost)] = number
        self._sizes[number] = memory.size
        return number

    def _make_room(self, size: int) -> None:
        """Have what is idle freed if the driver would not take another pool otherwise.

        :raises ResourceExhaustedTransientError: if all of its pools are in use.
        """
        total = sum(list(self._sizes.values()))
        if len(self._announced) >= self.most or total + size > self.most_bytes:
            self._free_idle()
        # Pools that are gone count against the limits of the driver.
        self._forget()
        if len(self._announced) >= self.most:
            raise too_many(
                "pools",
                "ServiceLimits.max_pools",
                self.most,
                hint="await executions, or use fewer large arrays again and again",
            )

    def _lost(self, memory: weakref.ref[Memory]) -> None:
        """Remember a pool to forget; called by finalisers, on any thread."""
        number = self._announced.pop(memory, None)
        if number is not None:
            self._sizes.pop(number, None)
            self._gone.append(number)
            self._call_soon(self._forget)

    def _forget(self) -> None:
        while self._gone:
            count = min(len(self._gone), wire.MAX_FORGOTTEN)
            numbers = tuple(self._gone.popleft() for _ in range(count))
            self._send_if_open(wire.ForgetPools(numbers))


def _check_descriptors(fds: Sequence[int], most: int) -> None:
    """Check what the kernel would refuse by failing the whole connection.

    :raises GeneralFailureError: if there are too many, or one is not open.
    """
    if len(fds) > most:
        raise GeneralFailureError(f"a pool with {len(fds)} descriptors")
    for fd in fds:
        try:
            os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise GeneralFailureError(
                f"descriptor {fd} of a pool is not open"
            ) from error
