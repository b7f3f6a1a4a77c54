"""The bursts that one client opened, and the driver's calls to its callbacks."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from asyncnn.callbacks import IBurstCallback
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    too_many,
)
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import (
    ErrorStatus,
    Handle,
    Memory,
)
from asyncnn.service import wire
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.quotas import Quota, Table
from asyncnn.service.driver.reporting import explained
from asyncnn.service.limits import OwnedTasks, ServiceLimits, close_all, duplicates

logger = logging.getLogger(__name__)

_DESCRIPTORS = 8
"""Of a burst: two queues, each a file and two doorbells, and what watches them."""

_MAPPINGS = 2


class Bursts:
    """Bursts by their numbers. Belongs to the event loop; ends with `close`.

    ``models`` are the client's prepared models by number, which others keep, and
    ``callback_of`` gives the client's callback for a burst. A burst goes on when its
    model is released, until it is released itself.
    """

    def __init__(
        self,
        models: Mapping[int, IPreparedModel],
        callback_of: Callable[[int], IBurstCallback],
        tasks: OwnedTasks,
        limits: ServiceLimits,
        quota: Quota,
        send: Callable[[wire.ToClient], None],
    ) -> None:
        self._models = models
        self._callback_of = callback_of
        self._tasks = tasks
        self._limits = limits
        self._send = send
        self._quota = quota
        self._bursts: Table[IBurstContext | None] = quota.table()
        self._channels: dict[int, tuple[Handle, Handle]] = {}

    @property
    def descriptors(self) -> int:
        """How many descriptors the bursts keep open, about."""
        return _DESCRIPTORS * len(self._bursts)

    @property
    def mappings(self) -> int:
        """How many queues are mapped."""
        return _MAPPINGS * len(self._bursts)

    def decline(self, message: wire.ConfigureBurst, error: AsyncnnError) -> None:
        """Tell the client that the driver has no room for a burst."""
        self._send(wire.BurstConfigured(message.burst, error.status))

    def configure(self, message: wire.ConfigureBurst, fds: Sequence[int]) -> None:
        """Open a burst and tell the client. The descriptors stay the caller's.

        :raises InvalidArgumentError: if its number is in use, or the message does not
            fit its descriptors.
        """
        number = message.burst
        if number in self._bursts or number in self._channels:
            raise InvalidArgumentError(f"burst {number} exists already")
        split = message.request_fds
        if not 0 <= split <= len(fds):
            raise InvalidArgumentError("queues and descriptors do not match")
        try:
            if len(self._bursts) >= self._limits.max_bursts:
                raise too_many(
                    "open bursts", "ServiceLimits.max_bursts", self._limits.max_bursts
                )
            self._quota.check(self._bursts)
            self._tasks.check_room()
            prepared = self._models.get(message.prepared)
            if prepared is None:
                raise InvalidArgumentError(f"no prepared model {message.prepared}")
            self._channels[number] = channels = (
                _duplicated(fds[:split], message.request_ints),
                _duplicated(fds[split:], message.result_ints),
            )
        except AsyncnnError as error:
            self._send(wire.BurstConfigured(number, explained(error).status))
            return
        self._bursts[number] = None
        self._tasks.start(self._configure(number, prepared, *channels))

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
        bursts = tuple(self._bursts.values())
        self._bursts.clear()
        for burst in bursts:
            if burst is not None:
                burst.close()
        for number in tuple(self._channels):
            self._close_channels(number)

    async def _configure(
        self,
        number: int,
        prepared: IPreparedModel,
        request_channel: Handle,
        result_channel: Handle,
    ) -> None:
        burst: IBurstContext | None = None
        try:
            status, burst = await prepared.configure_execution_burst(
                self._callback_of(number), request_channel, result_channel
            )
        except Exception as error:
            status = explained(error).status
        finally:
            self._close_channels(number)
        if burst is None:
            self._bursts.pop(number, None)
        elif number not in self._bursts:  # released meanwhile
            burst.close()
            return
        else:
            self._bursts[number] = burst
        self._send(wire.BurstConfigured(number, status))
        if burst is not None:
            burst.link_to_death(partial(self._died, number))

    def _died(self, number: int) -> None:
        if self._bursts.pop(number, None) is not None:
            self._send(wire.BurstEnded(number))

    def _close_channels(self, number: int) -> None:
        for channel in self._channels.pop(number, ()):
            close_all(channel.fds)


def _duplicated(fds: Sequence[int], ints: tuple[int, ...]) -> Handle:
    """Return a handle with descriptors of its own.

    :raises ResourceExhaustedTransientError: if there are none left.
    """
    try:
        return Handle(duplicates(fds), ints)
    except OSError as error:
        raise ResourceExhaustedTransientError(str(error.strerror)) from error


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
