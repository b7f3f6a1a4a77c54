"""Copies between buffers and pools: short ones on the loop, others on a thread."""

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from asyncnn.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.mapping import Mapper
from asyncnn.offload import SerialOffload

SHORT_BYTES = 256 * 1024
"""Copying no more takes the loop about as long as handing it to a thread would."""


class Copier:
    """Copies for one device. `close` is final but for copies under way.

    ``cause_of_death`` says why the device takes no work any more, if so.
    """

    def __init__(
        self, cause_of_death: Callable[[], DeviceUnavailableError | None]
    ) -> None:
        self.cause_of_death = cause_of_death
        self._mapper = Mapper()
        self._offload = SerialOffload()
        self._copies: set[asyncio.Task[None]] = set()

    async def fill(
        self,
        target: Callable[[int], NDArray[np.uint8]],
        memory: Memory,
        ended: Callable[[bool], None],
    ) -> None:
        """Copy a pool into as many bytes of ``target``; see `_run` for ``ended``.

        :raises AsyncnnError: if the pool cannot be mapped or memory reserved.
        """
        await self._run(partial(_fill, self._mapper, target, memory), memory, ended)

    async def empty(
        self,
        source: Callable[[int], NDArray[np.uint8]],
        memory: Memory,
        ended: Callable[[bool], None],
    ) -> None:
        """Copy as many bytes of ``source`` into a pool; see `_run` for ``ended``.

        :raises AsyncnnError: if the pool cannot be mapped, or written to.
        """
        await self._run(partial(_empty, self._mapper, source, memory), memory, ended)

    def check_open(self) -> None:
        """Check that the device takes work.

        :raises DeviceUnavailableError: if it does not.
        """
        cause = self.cause_of_death()
        if cause is not None:
            raise cause

    def rest(self) -> None:
        """Give back what is not needed until the next copy."""
        self._mapper.trim()

    def close(self) -> None:
        """Give everything back."""
        self.rest()
        self._mapper.close()

    async def wait_ended(self) -> None:
        """Wait for the copies under way."""
        if self._copies:
            await asyncio.wait(self._copies)

    async def _run(
        self, copy: Callable[[], None], memory: Memory, ended: Callable[[bool], None]
    ) -> None:
        """Run ``copy``, and tell ``ended``, once, whether it has gone well.

        That is when it is over, even if the caller was cancelled before.
        """
        if memory.buffer is not None and memory.size <= SHORT_BYTES:
            has_succeeded = False
            try:
                copy()
                has_succeeded = True
            finally:
                ended(has_succeeded)
            return
        copied = asyncio.get_running_loop().create_task(self._offload(copy))
        self._copies.add(copied)
        copied.add_done_callback(self._copies.discard)
        copied.add_done_callback(
            lambda done: ended(not done.cancelled() and done.exception() is None)
        )
        await asyncio.shield(copied)


def _fill(
    mapper: Mapper, target: Callable[[int], NDArray[np.uint8]], memory: Memory
) -> None:
    data = _bytes(mapper.map(memory))
    np.copyto(target(memory.size), data)


def _empty(
    mapper: Mapper, source: Callable[[int], NDArray[np.uint8]], memory: Memory
) -> None:
    mapped = mapper.map(memory)
    data = _bytes(mapped)
    if not data.flags.writeable:
        raise InvalidArgumentError("the pool to copy to is read-only")
    np.copyto(data, source(memory.size))
    mapper.flush(mapped)


def _bytes(mapped: Memory) -> NDArray[np.uint8]:
    assert mapped.buffer is not None
    if not mapped.size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mapped.buffer, np.uint8, mapped.size)
