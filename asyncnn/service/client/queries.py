"""What a client asks its driver and awaits an answer to."""

import asyncio
import itertools
from typing import TypeAlias, TypeVar

from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.errors import GeneralFailureError, error_for
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.service import wire
from asyncnn.service.caches import SentCache
from asyncnn.service.causes import Cause
from asyncnn.service.client.sending import ModelSender, Send

Answer: TypeAlias = wire.SupportedOperations | wire.Statistics | wire.ModelSaved
AnswerT = TypeVar("AnswerT", wire.SupportedOperations, wire.Statistics, wire.ModelSaved)


class Queries:
    """The queries of a connection. Belongs to the event loop."""

    def __init__(
        self, send: Send, models: ModelSender, numbers: "itertools.count[int]"
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._numbers = numbers
        self._models = models
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def supported_operations(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Ask which operations of a model would run.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        call = next(self._numbers)

        def question(model: Model, pools: tuple[int, ...]) -> wire.WithModel:
            return wire.GetSupportedOperations(call, model, pools)

        if self._models.takes_long(model):
            await self._models.send(model, question)
        else:
            self._models.send_now(model, question)
        answer = await self._answer(call, wire.SupportedOperations)
        return wire.status_of(answer.status), answer.supported

    async def statistics(self) -> DeviceStatistics:
        """Ask what the driver does.

        :raises AsyncnnError: if the driver cannot be asked, is lost, or does not tell.
        """
        call = next(self._numbers)
        self._send(wire.GetStatistics(call))
        answer = await self._answer(call, wire.Statistics)
        status = wire.status_of(answer.status)
        if status is not ErrorStatus.NONE:
            raise error_for(status, "the driver tells no statistics")
        if answer.statistics is None:
            raise GeneralFailureError("the driver's statistics are empty")
        return answer.statistics

    async def save(self, prepared: int, cache: SentCache) -> ErrorStatus:
        """Have a prepared model written to cache files; return what became of it.

        :raises AsyncnnError: if the driver cannot be asked, or is lost.
        """
        call = next(self._numbers)
        self._send(wire.SaveModel(call, prepared, cache.info), cache.fds)
        answer = await self._answer(call, wire.ModelSaved)
        return wire.status_of(answer.status)

    def answered(self, answer: Answer) -> None:
        """Take an answer of the driver."""
        future = self._waiting.get(answer.call)
        if future is not None and not future.done():
            future.set_result(answer)

    def lose(self, cause: Cause) -> None:
        """Fail what waits: the connection has ended."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(cause())

    async def _answer(self, call: int, kind: type[AnswerT]) -> AnswerT:
        future = self._waiting[call] = self._loop.create_future()
        try:
            answer = await future
        finally:
            del self._waiting[call]
        if not isinstance(answer, kind):
            raise GeneralFailureError(f"the driver answers with {answer!r}")
        return answer
