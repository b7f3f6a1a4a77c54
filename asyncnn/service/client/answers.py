"""What a client answers when its driver calls."""

import itertools
import logging
from collections.abc import Callable

from asyncnn.callbacks import IBurstCallback
from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.service import wire
from asyncnn.service.client.offered import OfferedPools
from asyncnn.service.driver.tasks import OwnedTasks

logger = logging.getLogger(__name__)

_MAX_ANSWERS = 256


class BurstCallbacks:
    """The callbacks of bursts by their numbers. Belongs to the event loop.

    ``send_if_open`` sends an answer unless the driver is gone.
    """

    def __init__(
        self, send_if_open: Callable[[wire.ToDriver], None], pools: OfferedPools
    ) -> None:
        self._send_if_open = send_if_open
        self._pools = pools
        self._numbers = itertools.count(1)
        self._callbacks: dict[int, IBurstCallback] = {}
        self._tasks = OwnedTasks(_MAX_ANSWERS)

    def serve(self, callback: IBurstCallback) -> int:
        """Let the driver ask ``callback``; return the number to do so by."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        return number

    def forget(self, number: int) -> None:
        """Let the driver ask a callback no more."""
        self._callbacks.pop(number, None)

    def answer(self, message: wire.GetMemories) -> None:
        """Answer soon."""
        callback = self._callbacks.get(message.burst)
        try:
            if callback is None:
                raise InvalidArgumentError(f"there is no burst {message.burst}")
            self._tasks.check_room()
        except AsyncnnError as error:
            self._send_if_open(wire.Memories(message.call, error.status, ()))
        else:
            self._tasks.start(self._answer(message, callback))

    def close(self) -> None:
        """Forget all callbacks, and what they are about to answer."""
        self._callbacks.clear()
        self._tasks.cancel()

    async def _answer(
        self, message: wire.GetMemories, callback: IBurstCallback
    ) -> None:
        status = ErrorStatus.GENERAL_FAILURE
        numbers: tuple[int, ...] = ()
        try:
            status, numbers = await self._ask(callback, message.slots)
        except AsyncnnError as error:
            status = error.status
        except Exception:
            logger.exception("a burst callback failed")
        self._send_if_open(wire.Memories(message.call, status, numbers))

    async def _ask(
        self, callback: IBurstCallback, slots: tuple[int, ...]
    ) -> tuple[ErrorStatus, tuple[int, ...]]:
        status, memories = await callback.get_memories(slots)
        if not all(memory.handle.fds for memory in memories):
            raise InvalidArgumentError(
                "a pool of a burst is memory of this process alone",
                hint="asyncnn.shared_array makes memory that the driver shares",
            )
        return ErrorStatus(status), self._pools.numbers_of(memories)
