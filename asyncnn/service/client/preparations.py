"""The models that a client has prepared by its driver."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from asyncnn.errors import AsyncnnError, ResourceExhaustedTransientError
from asyncnn.grace import unanswered
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Model, Priority
from asyncnn.memory.copying import Descriptor
from asyncnn.service import wire
from asyncnn.service.caches import NOTHING_SENT, SentCache, duplicated
from asyncnn.service.causes import Cause
from asyncnn.service.client.overdue import DeadlineWatch
from asyncnn.service.client.sending import ModelSender, Send
from asyncnn.service.driver.tasks import OwnedTasks
from asyncnn.vlog import COMPILATION

logger = logging.getLogger(__name__)

CANCELLED = "the preparation was cancelled"


class PreparationListener(Protocol):
    """Told how a preparation ended, exactly once."""

    def link_to_death(self, cancel: Callable[[], None]) -> None:
        """Call ``cancel`` once nobody waits."""
        ...

    def done(
        self,
        number: int,
        status: ErrorStatus,
        reason: str,
        signature: Model | None = None,
    ) -> None:
        """Take the outcome; the signature is that of a model from a cache."""
        ...


class Preparations:
    """Preparations under way, by number. Belongs to the event loop.

    ``release`` has the driver release a prepared model, or stop preparing it.
    """

    def __init__(
        self,
        send: Send,
        models: ModelSender,
        numbers: "itertools.count[int]",
        tasks: OwnedTasks,
        release: Callable[[int], None],
        deadlines: DeadlineWatch,
    ) -> None:
        self._send = send
        self._models = models
        self._numbers = numbers
        self._tasks = tasks
        self._release = release
        self._deadlines = deadlines
        self._listeners: dict[int, PreparationListener] = {}
        self._unsent: set[int] = set()

    def prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        listener: PreparationListener,
        cache: SentCache = NOTHING_SENT,
    ) -> None:
        """Have a model prepared; it is sent soon if that takes long.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say. The
            listener is not told then.
        """
        number = next(self._numbers)
        COMPILATION("send", model=number, operations=model.operation_count)

        def message(model: Model, pools: tuple[int, ...]) -> wire.WithModel:
            return wire.PrepareModel(
                number, model, pools, preference, priority, deadline, cache.info
            )

        if not self._models.takes_long(model):
            self._models.send_now(model, message, cache.fds)
            self._listen(number, listener, deadline)
            return
        self._tasks.check_room()
        files = duplicated(cache.fds)  # the caller may close its own
        self._unsent.add(number)
        self._listen(number, listener, deadline)
        if number in self._listeners:
            self._tasks.start(self._send_soon(number, model, message, files))

    def prepare_from_cache(
        self, deadline: int | None, cache: SentCache, listener: PreparationListener
    ) -> None:
        """Have a model prepared from its cache.

        :raises AsyncnnError: as `prepare`.
        """
        number = next(self._numbers)
        message = wire.PrepareModelFromCache(number, cache.info, deadline)
        self._send(message, cache.fds)
        self._listen(number, listener, deadline)

    def cancel(self, number: int) -> None:
        """Tell the driver, which is not going to answer, that nobody waits."""
        self._give_up(number, ResourceExhaustedTransientError(CANCELLED))

    def prepared(self, message: wire.Prepared) -> None:
        """Take an answer of the driver."""
        status = wire.status_of(message.status)
        COMPILATION("answered", model=message.prepared, status=status.name)
        self._tell(message.prepared, status, message.reason, message.signature)

    def lose(self, cause: Cause) -> None:
        """Fail what waits: the connection has ended."""
        error = cause()
        for number in tuple(self._listeners):
            self._tell(number, error.status, str(error))

    async def _send_soon(
        self,
        number: int,
        model: Model,
        message: Callable[[Model, tuple[int, ...]], wire.WithModel],
        files: list[Descriptor],
    ) -> None:
        fds = [file.fd for file in files]
        try:
            await self._models.send(
                model, message, fds, is_wanted=lambda: number in self._listeners
            )
        except AsyncnnError as error:
            self._tell(number, error.status, str(error))
        except Exception as error:
            logger.exception("a model was not sent")
            self._tell(number, ErrorStatus.GENERAL_FAILURE, str(error))
        finally:
            self._unsent.discard(number)

    def _expire(self, number: int) -> None:
        self._give_up(number, unanswered(self._deadlines.grace_s))

    def _give_up(self, number: int, error: AsyncnnError) -> None:
        if number in self._listeners:
            if number not in self._unsent:
                self._release(number)
            self._tell(number, error.status, str(error))

    def _listen(
        self, number: int, listener: PreparationListener, deadline: int | None
    ) -> None:
        self._listeners[number] = listener
        if deadline is not None:
            self._deadlines.watch(number, deadline, self._expire)
        listener.link_to_death(partial(self.cancel, number))

    def _tell(
        self,
        number: int,
        status: ErrorStatus,
        reason: str,
        signature: Model | None = None,
    ) -> None:
        """Tell one that waits; if it fails, that is not the others' business."""
        self._unsent.discard(number)
        self._deadlines.answered(number)
        listener = self._listeners.pop(number, None)
        if listener is not None:
            try:
                listener.done(number, status, reason, signature)
            except (Exception, asyncio.CancelledError):
                logger.exception("a listener failed while it was notified")
