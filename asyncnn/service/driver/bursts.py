"""The bursts that one client opened, and the driver's calls to its callbacks."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from asyncnn.callbacks import IBurstCallback
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import BufferToken, ErrorStatus, Handle, Memory
from asyncnn.memory.descriptors import Descriptor, duplicated
from asyncnn.pacing import TakeTurn
from asyncnn.service import wire
from asyncnn.service.driver.parts import SessionFields, SessionPart
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained
from asyncnn.service.limits import PendingAnswers

logger = logging.getLogger(__name__)

_DESCRIPTORS = 8
"""Of a burst: two queues, each a file and two doorbells, and what watches them."""

_MAPPINGS = 2


class Bursts(SessionPart):
    """Bursts by their numbers, which end with `close`.

    ``callback_of`` gives the client's callback for a burst. A burst goes on when its
    model is released, until it is released itself.
    """

    def __init__(
        self,
        session: SessionFields,
        callback_of: Callable[[int], "RemoteBurstCallback"],
        quota: Quota,
    ) -> None:
        super().__init__(session)
        self._callback_of = callback_of
        self._quota = quota
        self._bursts: CountedTable[IBurstContext | None] = quota.table()
        self._channels: dict[int, list[Descriptor]] = {}

    @property
    def descriptors(self) -> int:
        """How many descriptors the bursts keep open, about."""
        return _DESCRIPTORS * len(self._bursts)

    @property
    def mappings(self) -> int:
        """How many queues are mapped."""
        return _MAPPINGS * len(self._bursts)

    def configure(self, message: wire.ConfigureBurst, fds: Sequence[int]) -> None:
        """Open a burst and answer the client. The descriptors stay the caller's.

        :raises InvalidArgumentError: if its number is in use, or the message does not
            fit its descriptors.
        """
        number = message.burst
        if number in self._bursts or number in self._channels:
            raise InvalidArgumentError(f"burst {number} exists already")
        split = message.request_fds
        if not 0 <= split <= len(fds):
            raise InvalidArgumentError("queues and descriptors do not match")
        with self._answering(partial(wire.BurstConfigured, number)):
            self._quota.check(self._bursts)
            self._tasks.check_room()
            prepared = self._model(message.prepared)
            # The caller closes its own before the burst is open.
            self._channels[number] = kept = duplicated(fds)
            numbers = tuple([descriptor.fd for descriptor in kept])
            channels = (
                Handle(numbers[:split], message.request_ints),
                Handle(numbers[split:], message.result_ints),
            )
            self._bursts[number] = None
            callback = self._callback_of(number)
            callback.carries_deadlines = message.carries_deadlines
            if self._recorder is not None:
                callback.recorder = self._recorder.burst(message.prepared, number)
            self._tasks.start(self._configure(number, prepared, callback, *channels))

    def handle(
        self, message: wire.FreeMemory | wire.CancelBurstRequest | wire.ReleaseBurst
    ) -> None:
        """Do what a message says of a burst, unless there is none of that number."""
        burst = self._bursts.get(message.burst)
        if type(message) is wire.ReleaseBurst:
            self._bursts.pop(message.burst, None)
            if burst is not None:
                burst.close()
        elif burst is None:
            return
        elif type(message) is wire.FreeMemory:
            burst.free_memory(message.slot)
        elif type(message) is wire.CancelBurstRequest:
            burst.cancel(message.request)

    def close(self) -> None:
        """Release all bursts: the client is gone."""
        # Forgotten first: a burst that is closed may report its death.
        bursts = tuple(self._bursts.values())
        self._bursts.clear()
        for burst in bursts:
            if burst is not None:
                burst.close()
        self._channels.clear()

    async def _configure(
        self,
        number: int,
        prepared: IPreparedModel,
        callback: IBurstCallback,
        request_channel: Handle,
        result_channel: Handle,
    ) -> None:
        burst: IBurstContext | None = None
        given = callback, request_channel, result_channel
        isolated = self._isolated
        try:
            if isolated is not None and isolated.device_of([prepared]) is not None:
                status, burst = isolated.bursts.configure(prepared, *given)
            else:
                status, burst = await prepared.configure_execution_burst(*given)
        except Exception as error:
            status = explained(error).status
        finally:
            self._channels.pop(number, None)
        if burst is None:
            self._bursts.pop(number, None)
        elif number not in self._bursts:  # released meanwhile
            burst.close()
            return
        else:
            self._bursts[number] = burst
        carries_deadlines = getattr(burst, "carries_deadlines", False)
        self._send(wire.BurstConfigured(number, status, carries_deadlines))
        if burst is not None:
            # After the answer: one that is dead already is reported in this very call.
            burst.link_to_death(partial(self._died, number))

    def _died(self, number: int) -> None:
        if self._bursts.pop(number, None) is not None:
            self._send(wire.BurstEnded(number))


_has_gone = partial(DeviceUnavailableError, "the client has gone")

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
        self._answers = PendingAnswers()
        self._is_closed = False

    async def ask(self, question: Callable[[int], wire.GetMemories]) -> wire.Memories:
        """Send ``question``, made for a number, and return the answer to it.

        :raises DeviceUnavailableError: if the client is gone, or does not answer.
        """
        if self._is_closed:
            raise _has_gone()
        number = next(self._numbers)
        self._send(question(number))
        try:
            async with asyncio.timeout(self._answer_timeout):
                return await self._answers.answer(number, wire.Memories)
        except TimeoutError:
            raise DeviceUnavailableError("the client does not answer") from None

    def answered(self, answer: wire.Memories) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        self._answers.answered(answer.call, answer)

    def close(self) -> None:
        """Fail the calls that wait: the client is gone."""
        self._is_closed = True
        self._answers.lose(_has_gone)


class RemoteBurstCallback(IBurstCallback):
    """A client's callback that knows the memory of burst ``number``'s slots.

    Packets are read when its process may ``take_turn``.
    """

    def __init__(
        self,
        calls: CallsToClient,
        pools: AnnouncedPools,
        number: int,
        take_turn: TakeTurn,
    ) -> None:
        self.take_turn = take_turn
        self._calls = calls
        self._pools = pools
        self._number = number

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory | BufferToken, ...]]:
        """Ask the client; memories are mapped."""
        try:
            answer = await self._calls.ask(
                lambda call: wire.GetMemories(call, self._number, tuple(slots))
            )
            status = ErrorStatus(answer.status)
            if status is not ErrorStatus.NONE:
                return status, ()
            if len(answer.pools) != len(slots):
                count = len(answer.pools)
                raise InvalidArgumentError(f"{count} pools for {len(slots)} slots")
            return status, self._pools.find_mapped(answer.pools)
        except AsyncnnError as error:
            logger.info("slots of a burst not known: %s", error)
            return error.status, ()
        except ValueError:  # there is no such status
            return ErrorStatus.GENERAL_FAILURE, ()
