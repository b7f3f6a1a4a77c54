"""Calls from the driver to one of its clients."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

from asyncnn.callbacks import IBurstCallback
from asyncnn.errors import AsyncnnError, DeviceUnavailableError, InvalidArgumentError
from asyncnn.hal.types import ErrorStatus, Memory
from asyncnn.service import wire
from asyncnn.service.driver.announced import AnnouncedPools

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
"""How long a client may take to answer."""


class CallsToClient:
    """Numbers calls and hands each its answer. Belongs to the event loop.

    A client that is slow, or gone, or answers nonsense fails its own calls only.
    """

    def __init__(
        self,
        send: Callable[[wire.ToClient], None],
        *,
        answer_timeout: float = CALL_TIMEOUT_S,
    ) -> None:
        self._send = send
        self._answer_timeout = answer_timeout
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Memories]] = {}
        self._is_closed = False

    async def ask(self, question: Callable[[int], wire.GetMemories]) -> wire.Memories:
        """Send ``question``, made for a number, and return the answer to it.

        :raises DeviceUnavailableError: if the client is gone, or does not answer.
        """
        if self._is_closed:
            raise DeviceUnavailableError("the client has gone")
        number = next(self._numbers)
        answer: asyncio.Future[wire.Memories]
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(question(number))
            async with asyncio.timeout(self._answer_timeout):
                return await answer
        except TimeoutError:
            raise DeviceUnavailableError("the client does not answer") from None
        finally:
            self._waiting.pop(number, None)

    def answered(self, answer: wire.Memories) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        future = self._waiting.get(answer.call)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self) -> None:
        """Fail the calls that wait: the client is gone."""
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(DeviceUnavailableError("the client has gone"))


class RemoteBurstCallback(IBurstCallback):
    """A client's callback that knows the memory of burst ``number``'s slots."""

    __slots__ = ("_calls", "_number", "_pools")

    def __init__(
        self, calls: CallsToClient, pools: AnnouncedPools, number: int
    ) -> None:
        self._calls = calls
        self._pools = pools
        self._number = number

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        """Ask the client; memories are mapped."""
        try:
            answer = await self._calls.ask(
                lambda call: wire.GetMemories(call, self._number, tuple(slots))
            )
            status = ErrorStatus(answer.status)
            if status is not ErrorStatus.NONE:
                return status, ()
            return status, self._memories(answer.pools, len(slots))
        except ValueError:
            return ErrorStatus.GENERAL_FAILURE, ()
        except AsyncnnError as error:
            logger.info("slots of a burst not known: %s", error)
            return error.status, ()

    def _memories(self, numbers: Sequence[int], count: int) -> tuple[Memory, ...]:
        if len(numbers) != count:
            raise InvalidArgumentError(f"{len(numbers)} pools for {count} slots")
        return self._pools.find_mapped(numbers)
