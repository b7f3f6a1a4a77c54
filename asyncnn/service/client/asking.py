"""The models that a client has prepared by its driver."""

import logging
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.deadlines import unanswered
from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.hal.refusals import CacheArguments, PrepareArguments, checked_descriptors
from asyncnn.logs import COMPILATION
from asyncnn.memory.descriptors import Descriptor, duplicated
from asyncnn.memory.shared import shareable
from asyncnn.offload import offload
from asyncnn.service import wire
from asyncnn.service.client.sent_pools import Numbers
from asyncnn.service.client.staging import LARGE_BYTES
from asyncnn.service.client.unanswered import Cause, Line, notify
from asyncnn.service.decoding import MessageFile, encode_given
from asyncnn.service.limits import OwnedTasks, is_large

MakeMessage: TypeAlias = Callable[[hal.Model, tuple[int, ...]], wire.WithModel]
"""Makes the message with a model that has no pools, but their numbers."""


class ModelSender(msgspec.Struct, frozen=True, eq=False):
    """Sends messages with models. Belongs to the event loop."""

    _connection: Line
    _known: Numbers

    def takes_long(self, model: hal.Model) -> bool:
        """Return whether to send ``model`` at once would keep the loop for long."""
        copied = sum([pool.size for pool in model.pools if not pool.handle.fds])
        return is_large(model) or copied + len(model.operand_values) > LARGE_BYTES

    def send_now(
        self, model: hal.Model, make: MakeMessage, fds: Sequence[int] = ()
    ) -> None:
        """Send a message with ``model``."""
        pools = _all_shareable(model.pools)
        message = make(replace(model, pools=()), self._known.of_pools(pools))
        self._connection.send(message, fds)

    async def send(
        self,
        model: hal.Model,
        make: MakeMessage,
        fds: Sequence[int] = (),
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a message with ``model`` unless it has ceased to be wanted by then."""
        pools = await offload(_all_shareable, model.pools)
        if not is_wanted():
            return
        message = make(replace(model, pools=()), self._known.of_pools(pools))
        file = await offload(_encoded, message)
        if is_wanted():
            self._connection.send(file, fds)


def _all_shareable(pools: Sequence[hal.Memory]) -> list[hal.Memory]:
    return [shareable(memory) for memory in pools]


def _encoded(message: wire.ToDriver) -> MessageFile:
    try:
        return MessageFile(encode_given(message))
    except OSError as error:
        raise hal.ResourceExhaustedTransientError(
            f"a message cannot be sent: {error.strerror}"
        ) from error


class SentCache(msgspec.Struct, frozen=True):
    """Cache arguments with their descriptors, which stay the caller's."""

    info: wire.CacheInfo = wire.NO_CACHE
    fds: tuple[int, ...] = ()


NOTHING_SENT = SentCache()


def to_send(
    model_cache: Sequence[hal.Handle],
    data_cache: Sequence[hal.Handle],
    token: bytes,
    needed: tuple[int, int],
) -> SentCache:
    """Return the arguments of a call; the driver needs so many files of each kind.

    :raises InvalidArgumentError: as `checked_descriptors`, or if one file is two.
    :raises GeneralFailureError: if the driver caches no models, or one is not open, or
        no file.
    """
    if needed == (0, 0):
        raise hal.GeneralFailureError("the driver does not cache models")
    cache = CacheArguments(model_cache, data_cache, token)
    fds = tuple(checked_descriptors(cache, needed))
    files: set[tuple[int, int]] = set()
    for fd in fds:
        try:
            status = os.fstat(fd)
        except (OSError, OverflowError) as error:
            raise hal.GeneralFailureError(f"cache file {fd} is not open") from error
        if not stat.S_ISREG(status.st_mode):
            raise hal.GeneralFailureError(f"cache file {fd} is not a regular file")
        files.add((status.st_dev, status.st_ino))
    if len(files) < len(fds):
        raise hal.InvalidArgumentError("a file cannot be two of a model's cache files")
    return SentCache(wire.CacheInfo(*needed, bytes(token)), fds)


class ConnectionQueries(msgspec.Struct, frozen=True, eq=False):
    """The queries of a connection. Belongs to the event loop.

    All raise an `AsyncnnError` if the driver cannot be asked, or is lost.
    """

    _connection: Line
    _models: ModelSender

    async def supported_operations(self, model: hal.Model) -> tuple[bool, ...]:
        """Ask which operations of a model would run."""
        call = next(self._connection.numbers)

        def question(model: hal.Model, pools: tuple[int, ...]) -> wire.WithModel:
            return wire.GetSupportedOperations(call, model, pools)

        if self._models.takes_long(model):
            await self._models.send(model, question)
        else:
            self._models.send_now(model, question)
        answer = await self._connection.answers.answer(call, wire.SupportedOperations)
        status = wire.status_of(answer.status)
        if status is not hal.ErrorStatus.NONE:
            raise hal.error_for(status, "the driver does not say what it supports")
        return answer.supported

    async def statistics(self) -> DeviceStatistics:
        """Ask what the driver does.

        :raises AsyncnnError: if it does not answer.
        """
        call = next(self._connection.numbers)
        self._connection.send(wire.GetStatistics(call))
        answer = await self._connection.answers.answer(call, wire.Statistics)
        status = wire.status_of(answer.status)
        if status is not hal.ErrorStatus.NONE:
            raise hal.error_for(status, "the driver reports no statistics")
        if answer.statistics is None:
            raise hal.GeneralFailureError("the driver's statistics are empty")
        return answer.statistics

    async def save(self, prepared: int, cache: SentCache) -> hal.ErrorStatus:
        """Have a prepared model written to cache files; return what became of it."""
        call = next(self._connection.numbers)
        self._connection.send(wire.SaveModel(call, prepared, cache.info), cache.fds)
        answer = await self._connection.answers.answer(call, wire.ModelSaved)
        return wire.status_of(answer.status)


logger = logging.getLogger(__name__)

CANCELLED = "the preparation was cancelled"


class PreparationListener(Protocol):
    """Notified of how a preparation ended, exactly once."""

    def link_to_death(self, cancel: Callable[[], None]) -> None:
        """Call ``cancel`` once nobody waits."""

    def done(self, outcome: wire.Prepared) -> None:
        """Take the outcome."""


class RequestedPreparations(msgspec.Struct, eq=False):
    """Preparations under way, by number. Belongs to the event loop.

    ``release`` has the driver release a prepared model, or stop preparing it.
    """

    _connection: Line
    _models: ModelSender
    _tasks: OwnedTasks
    _release: Callable[[int], None]
    _listeners: dict[int, PreparationListener] = {}
    _unsent: set[int] = set()

    def __len__(self) -> int:
        """Return how many are waited for."""
        return len(self._listeners)

    def prepare(
        self,
        asked: PrepareArguments,
        listener: PreparationListener,
        cache: SentCache = NOTHING_SENT,
    ) -> None:
        """Have a model prepared; it is sent soon if that takes long.

        Its files are ``cache``'s.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say. The
            listener is not notified then.
        """
        model, preference, priority, deadline, _ = asked
        number = next(self._connection.numbers)
        COMPILATION("send", model=number, operations=model.operation_count)

        def message(model: hal.Model, pools: tuple[int, ...]) -> wire.WithModel:
            return wire.PrepareModel(
                number, model, pools, preference, priority, deadline, cache.info
            )

        if not self._models.takes_long(model):
            self._models.send_now(model, message, cache.fds)
            self._listen(number, listener, deadline)
            return
        self._tasks.check_room()
        files = duplicated(cache.fds)  # the caller may close its own
        # Before it is listened to: a callback that is dead already cancels within
        # `_listen`, and the driver hears nothing of what it never got.
        self._unsent.add(number)
        self._listen(number, listener, deadline)
        if number in self._listeners:
            self._tasks.start(self._send_soon(number, model, message, files))

    def prepare_from_cache(
        self, deadline: int | None, cache: SentCache, listener: PreparationListener
    ) -> None:
        """Have a model prepared from its cache."""
        number = next(self._connection.numbers)
        message = wire.PrepareModelFromCache(number, cache.info, deadline)
        self._connection.send(message, cache.fds)
        self._listen(number, listener, deadline)

    def cancel(self, number: int) -> None:
        """Stop a preparation; the driver does not answer it any more."""
        self._give_up(number, hal.ResourceExhaustedTransientError(CANCELLED))

    def prepared(self, message: wire.Prepared) -> None:
        """Take an answer of the driver."""
        status = wire.status_of(message.status)
        COMPILATION("answered", model=message.prepared, status=status.name)
        self._end(message)

    def lose(self, cause: Cause) -> None:
        """Fail what waits: the connection has ended."""
        error = cause()
        for number in tuple(self._listeners):
            self._fail(number, error)

    async def _send_soon(
        self,
        number: int,
        model: hal.Model,
        message: Callable[[hal.Model, tuple[int, ...]], wire.WithModel],
        files: list[Descriptor],
    ) -> None:
        fds = [file.fd for file in files]
        try:
            await self._models.send(
                model, message, fds, is_wanted=lambda: number in self._listeners
            )
        except hal.AsyncnnError as error:
            self._fail(number, error)
        except Exception as error:
            logger.exception("a model was not sent")
            self._fail(number, hal.GeneralFailureError(str(error)))
        finally:
            self._unsent.discard(number)

    def _expire(self, number: int) -> None:
        self._give_up(number, unanswered(self._connection.deadlines.grace_s))

    def _give_up(self, number: int, error: hal.AsyncnnError) -> None:
        if number in self._listeners:
            if number not in self._unsent:
                self._release(number)
            self._fail(number, error)

    def _listen(
        self, number: int, listener: PreparationListener, deadline: int | None
    ) -> None:
        self._listeners[number] = listener
        if deadline is not None:
            self._connection.deadlines.watch(number, deadline, self._expire)
        listener.link_to_death(partial(self.cancel, number))

    def _fail(self, number: int, error: hal.AsyncnnError) -> None:
        self._end(wire.Prepared(number, error.status, str(error)))

    def _end(self, outcome: wire.Prepared) -> None:
        number = outcome.prepared
        self._unsent.discard(number)
        self._connection.deadlines.answered(number)
        # The first of answer, deadline, cancellation and end takes it.
        listener = self._listeners.pop(number, None)
        if listener is not None:
            notify(listener.done, outcome)
