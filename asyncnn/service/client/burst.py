"""Bursts whose driver's side is in another process, on the client's side."""

import asyncio
import itertools
import logging
from typing import TypeAlias

from asyncnn.callbacks import CallbackObject, IBurstCallback
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import BufferToken, ErrorStatus, Handle
from asyncnn.service import wire
from asyncnn.service.client.sent_pools import Numbers
from asyncnn.service.client.unanswered import Line
from asyncnn.service.limits import OwnedTasks

logger = logging.getLogger(__name__)

_MAX_ANSWERS = 256
"""Questions of the driver that are being answered at a time."""

_Answer: TypeAlias = "tuple[ErrorStatus, RemoteBurst | None]"


class RemoteBurst(CallbackObject):
    """The `IBurstContext` of burst ``number`` of a connection."""

    def __init__(
        self, bursts: "RemoteBursts", number: int, carries_deadlines: bool
    ) -> None:
        super().__init__()
        self.carries_deadlines = carries_deadlines
        self._bursts = bursts
        self._number = number

    def free_memory(self, slot: int) -> None:
        """Have the driver forget the memory of a slot."""
        self._bursts.send(wire.FreeMemory(self._number, slot))

    def cancel(self, request: int) -> None:
        """Have the driver stop an execution."""
        self._bursts.send(wire.CancelBurstRequest(self._number, request))

    def close(self) -> None:
        """Have the driver release the burst."""
        self.unlink_to_death()
        self._bursts.release(self._number)


class RemoteBursts:
    """The bursts of a connection by number, and the callbacks that the driver may ask.

    Belongs to the event loop.
    """

    def __init__(self, connection: Line, known: Numbers) -> None:
        self._send = connection.send
        self.send = connection.send_if_open
        self._known = known
        self._numbers = itertools.count(1)
        self._callbacks: dict[int, IBurstCallback] = {}
        self._tasks = OwnedTasks(_MAX_ANSWERS)
        self._opening: dict[int, asyncio.Future[_Answer]] = {}
        self._open: dict[int, RemoteBurst] = {}

    def __len__(self) -> int:
        """Return how many there are, those included that are being opened."""
        return len(self._open) + len(self._opening)

    def serve(self, callback: IBurstCallback) -> int:
        """Let the driver ask ``callback``; return the number to do so by."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        return number

    def forget(self, number: int) -> None:
        """Let the driver ask a callback no more."""
        self._callbacks.pop(number, None)

    def answer(self, message: wire.GetMemories) -> None:
        """Answer a question of the driver soon."""
        callback = self._callbacks.get(message.burst)
        try:
            if callback is None:
                raise InvalidArgumentError(f"there is no burst {message.burst}")
            self._tasks.check_room()
        except AsyncnnError as error:
            self.send(wire.Memories(message.call, error.status, ()))
        else:
            self._tasks.start(self._answer(message, callback))

    async def configure(
        self,
        prepared: int,
        callback: IBurstCallback,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst of a prepared model; cancelling the call releases it."""
        number = self.serve(callback)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._opening[number] = answer
        burst: IBurstContext | None = None
        try:
            fds = request_channel.fds
            queues = request_channel.ints, result_channel.ints, len(fds)
            given = number, prepared, *queues, callback.carries_deadlines
            self._send(wire.ConfigureBurst(*given), (*fds, *result_channel.fds))
            status, burst = await answer
        except AsyncnnError as error:
            status = error.status
        except asyncio.CancelledError:
            # The answer may have come in this very turn, and nobody has the burst.
            self._open.pop(number, None)
            self.send(wire.ReleaseBurst(number))
            raise
        finally:
            self._opening.pop(number, None)
            if burst is None:
                self.forget(number)
        return status, burst

    def configured(self, message: wire.BurstConfigured) -> None:
        """Take the driver's answer to `configure`."""
        number, status = message.burst, wire.status_of(message.status)
        answer = self._opening.get(number)
        if answer is None or answer.done():
            return
        burst = None
        if status is ErrorStatus.NONE:
            # Here, not in `configure`: the next message may say that it has ended.
            burst = RemoteBurst(self, number, message.carries_deadlines)
            self._open[number] = burst
        answer.set_result((status, burst))

    def ended(self, number: int) -> None:
        """Learn that the driver has ended a burst."""
        self.forget(number)
        burst = self._open.pop(number, None)
        if burst is not None:
            burst.die()

    def release(self, number: int) -> None:
        """Have the driver release a burst, unless it has ended."""
        self.forget(number)
        if self._open.pop(number, None) is not None:
            self.send(wire.ReleaseBurst(number))

    def close(self) -> None:
        """Let all bursts end, and forget what is about to be answered."""
        self._tasks.cancel()
        self._callbacks.clear()
        for answer in self._opening.values():
            if not answer.done():
                answer.set_result((ErrorStatus.DEVICE_UNAVAILABLE, None))
        for number in tuple(self._open):
            self.ended(number)

    async def _answer(
        self, message: wire.GetMemories, callback: IBurstCallback
    ) -> None:
        status = ErrorStatus.GENERAL_FAILURE
        numbers: tuple[int, ...] = ()
        try:
            found, memories = await callback.get_memories(message.slots)
            if not all(
                isinstance(memory, BufferToken) or memory.handle.fds
                for memory in memories
            ):
                raise InvalidArgumentError(
                    "a pool of a burst is memory of this process alone",
                    hint="asyncnn.shared_array makes memory that the driver shares",
                )
            # Both or none of them: an answer that is a failure names no pool.
            status, numbers = ErrorStatus(found), self._known.of_pools(memories)
        except AsyncnnError as error:
            status = error.status
        except Exception:
            logger.exception("a burst callback failed")
        self.send(wire.Memories(message.call, status, numbers))
