"""The pools that this client announced to its driver."""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.service import wire


class Send(Protocol):
    """Sends a message, or raises an `AsyncnnError`."""

    def __call__(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send ``message`` with descriptors beside it."""
        ...


class OfferedPools:
    """Announces pools when they are used first, and forgets those that are gone.

    ``call_soon`` runs a function on the event loop, from any thread.
    """

    def __init__(
        self,
        send: Send,
        send_if_open: Callable[[wire.ToDriver], None],
        call_soon: Callable[[Callable[[], None]], None],
        numbers: Iterator[int],
        max_fds: int,
    ) -> None:
        self._send = send
        self._send_if_open = send_if_open
        self._call_soon = call_soon
        self._numbers = numbers
        self._max_fds = max_fds
        self._announced: dict[weakref.ref[Memory], int] = {}
        self._gone: deque[int] = deque()

    def numbers_of(self, pools: Sequence[object]) -> tuple[int, ...]:
        """Return the numbers of pools, announcing those that the driver has not seen.

        :raises InvalidArgumentError: if a pool is a token of a buffer, or its
            descriptors cannot be sent.
        :raises AsyncnnError: if one cannot be announced.
        """
        numbers: list[int] = []
        for memory in pools:
            if not isinstance(memory, Memory):
                raise InvalidArgumentError("the device has no memory domains")
            number = self._announced.get(weakref.ref(memory))
            if number is None:
                number = self._announce(memory)
            numbers.append(number)
        return tuple(numbers)

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self._announced.clear()
        self._gone.clear()

    def _announce(self, memory: Memory) -> int:
        number = next(self._numbers)
        fds = memory.handle.fds
        _check_descriptors(fds, self._max_fds)
        # Pools that are gone count against the limits of the driver.
        self._forget()
        info = wire.PoolInfo(
            number, memory.name, memory.size, memory.handle.ints, len(fds)
        )
        self._send(wire.AnnouncePools((info,)), fds)
        self._announced[weakref.ref(memory, self._lost)] = number
        return number

    def _lost(self, memory: weakref.ref[Memory]) -> None:
        """Remember a pool to forget; called by finalisers, on any thread."""
        number = self._announced.pop(memory, None)
        if number is not None:
            self._gone.append(number)
            self._call_soon(self._forget)

    def _forget(self) -> None:
        if self._gone:
            numbers = tuple(self._gone.popleft() for _ in range(len(self._gone)))
            self._send_if_open(wire.ForgetPools(numbers))


def _check_descriptors(fds: Sequence[int], most: int) -> None:
    """Check what the kernel would refuse by failing the whole connection.

    :raises InvalidArgumentError: if there are too many, or one is not open.
    """
    if len(fds) > most:
        raise InvalidArgumentError(f"a pool with {len(fds)} descriptors")
    for fd in fds:
        try:
            os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"descriptor {fd} of a pool is not open"
            ) from error
