"""What a client asks its driver and awaits an answer to."""

import asyncio
import itertools
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.errors import DeviceUnavailableError, GeneralFailureError, error_for
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.memory.shared import shareable
from asyncnn.service import wire
from asyncnn.service.client.offered import OfferedPools, Send

Question: TypeAlias = wire.GetSupportedOperations | wire.GetStatistics
Answer: TypeAlias = wire.SupportedOperations | wire.Statistics
AnswerT = TypeVar("AnswerT", wire.SupportedOperations, wire.Statistics)


class Queries:
    """The queries of a connection. Belongs to the event loop."""

    def __init__(
        self, send: Send, numbers: "itertools.count[int]", pools: OfferedPools
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._numbers = numbers
        self._pools = pools
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def supported_operations(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Ask which operations of a model would run.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        call = next(self._numbers)
        pools = self._pools.numbers_of([shareable(memory) for memory in model.pools])
        question = wire.GetSupportedOperations(call, replace(model, pools=()), pools)
        answer = await self._ask(call, question, wire.SupportedOperations)
        return wire.status_of(answer.status), answer.supported

    async def statistics(self) -> DeviceStatistics:
        """Ask what the driver does.

        :raises AsyncnnError: if the driver cannot be asked, is lost, or does not tell.
        """
        call = next(self._numbers)
        answer = await self._ask(call, wire.GetStatistics(call), wire.Statistics)
        status = wire.status_of(answer.status)
        if status is not ErrorStatus.NONE:
            raise error_for(status, "the driver tells no statistics")
        if answer.statistics is None:
            raise GeneralFailureError("the driver's statistics are empty")
        return answer.statistics

    def answered(self, answer: Answer) -> None:
        """Take an answer of the driver."""
        future = self._waiting.get(answer.call)
        if future is not None and not future.done():
            future.set_result(answer)

    def lose(self, reason: str) -> None:
        """Fail what waits: the driver is gone."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(DeviceUnavailableError(reason))

    async def _ask(self, call: int, question: Question, kind: type[AnswerT]) -> AnswerT:
        self._send(question)
        future = self._waiting[call] = self._loop.create_future()
        try:
            answer = await future
        finally:
            del self._waiting[call]
        if not isinstance(answer, kind):
            raise GeneralFailureError(f"the driver answers with {answer!r}")
        return answer
