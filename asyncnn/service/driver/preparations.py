"""The models that one client has prepared, on the driver's side.

To check a large model takes long: that is done on a thread before the device is given
it, which then finds that it was checked already.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from msgspec.structs import replace

from asyncnn.callbacks import IPreparedModelCallback
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    failure_of,
    too_many,
)
from asyncnn.hal.interfaces import IDescribed, IDevice, IPreparedModel, ISavable
from asyncnn.hal.refusals import LoadArguments, PrepareArguments
from asyncnn.hal.routes import IRouting
from asyncnn.hal.types import ErrorStatus, Memory, Model
from asyncnn.hal.validate import validate_model
from asyncnn.service import wire
from asyncnn.service.driver.parts import SessionFields, SessionPart
from asyncnn.service.driver.pools import ReceivedCache, are_mapped
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained, kill, log, warn_if_refused
from asyncnn.service.limits import is_large
from asyncnn.service.wire import CacheInfo

if TYPE_CHECKING:
    from asyncnn.service.driver.isolating import Isolated


class Preparations(SessionPart):
    """Preparations under way by number; what is prepared is a model of that number."""

    def __init__(self, session: SessionFields, quota: Quota) -> None:
        super().__init__(session)
        self._quota = quota
        self._preparing: CountedTable[_Preparing] = quota.table()
        # What is being done for a model that was released goes on keeping its files.
        self._caches: WeakSet[ReceivedCache] = WeakSet()
        self._slow = 0

    @property
    def descriptors(self) -> int:
        """How many descriptors of cache files are kept open."""
        return sum([cache.descriptors for cache in self._caches])

    def decline(self, number: int, error: AsyncnnError) -> None:
        """Notify the client that the driver has no room for a model."""
        self._begin(number).fail(error)

    def prepare(self, message: wire.PrepareModel[Model], fds: Sequence[int]) -> None:
        """Have a model prepared and answer the client; ``fds`` stay the caller's."""
        callback = self._begin(message.prepared)
        try:
            self._check_room()
            isolated = self._isolated_for(message.model)
            cache = self._received(message.cache, fds)
            if cache.prepare_to_write():
                callback.saved = cache
            pools = self._pools.find(message.pools)
            may_wait = isolated is not None or is_large(message.model)
            may_wait = may_wait or self._recorder is not None
            if are_mapped(pools) and not may_wait:
                model = replace(message.model, pools=pools)
                self._launch(model, message, cache, callback)
            else:
                self._check_tasks()
                slowly = message, pools, cache, callback, isolated
                self.start(self._prepare_slowly(*slowly))
        except Exception as error:
            callback.fail(explained(error))

    def prepare_from_cache(
        self, message: wire.PrepareModelFromCache, fds: Sequence[int]
    ) -> None:
        """Have a model loaded; likewise."""
        callback = self._begin(message.prepared)
        callback.is_unseen = True
        if self._recorder is not None:
            callback.call = self._recorder.load()
        try:
            self._check_room()
            self._check_tasks()
            cache = self._received(message.cache, fds)
            self.start(self._load(message.deadline, cache, callback))
        except Exception as error:
            callback.fail(explained(error))

    def save(self, message: wire.SaveModel, fds: Sequence[int]) -> None:
        """Write a prepared model to the client's files; ``fds`` stay the caller's."""
        with self._answering(partial(wire.ModelSaved, message.call)):
            model = self._model(message.prepared)
            if not isinstance(model, ISavable):
                raise GeneralFailureError("the device saves models only at first")
            if (message.cache.model_files, message.cache.data_files) != (1, 1):
                raise InvalidArgumentError("a model is saved in one file of each kind")
            self._check_tasks()
            cache = self._received(message.cache, fds)
            self.start(self._save(message.call, model, cache))

    def release(self, number: int) -> None:
        """Let go of a prepared model, or stop preparing it."""
        self._models.pop(number, None)
        callback = self._preparing.pop(number, None)
        if self._recorder is not None:
            self._recorder.release(number)
            if callback is not None:
                self._recorder.cancelled(callback.call)
        if callback is not None:
            kill(callback)

    def close(self) -> None:
        """Stop what is under way: the client is gone."""
        # Forgotten before they die, so that what they notify reaches nobody.
        preparing = tuple(self._preparing.values())
        self._preparing.clear()
        for callback in preparing:
            if self._recorder is not None:
                self._recorder.left(callback.call)
            kill(callback)

    def finish(
        self, callback: "_Preparing", status: ErrorStatus, model: IPreparedModel | None
    ) -> None:
        """Keep a prepared model and answer the client, unless it released it."""
        number = callback.number
        if self._preparing.get(number) is not callback:
            return
        cache, callback.saved = callback.saved, None
        if cache is not None and model is not None:
            self._tasks.start(self._write_back(cache, callback, model))
            return
        del self._preparing[number]
        if model is not None:
            self._models[number] = model
            if self._isolated is not None and callback.device is not self._device:
                self._isolated.adopt(model, callback.device)
        described: object = model if callback.is_unseen else None
        signature = described.signature if isinstance(described, IDescribed) else None
        route = None
        device = callback.device
        if model is not None and isinstance(device, IRouting):
            route = device.usual_route(model)
        if self._recorder is not None:
            self._recorder.prepared(number, route)
            if model is None:
                self._recorder.release(number)
            self._recorder.ended(callback.call, status)
        self._send(wire.Prepared(number, status, callback.reason, signature, route))

    def _begin(self, number: int) -> "_Preparing":
        if number in self._preparing or number in self._models:
            raise InvalidArgumentError(f"prepared model {number} exists already")
        callback = _Preparing(self, number, self._device)
        self._preparing[number] = callback
        return callback

    def _check_room(self) -> None:
        self._check_preparing(len(self._preparing))
        self._quota.check(self._preparing, self._models, more=0)

    def _check_preparing(self, count: int) -> None:
        most = self._limits.max_preparing
        if count > most:
            what = "pending preparations"
            raise too_many(what, "ServiceLimits.max_preparing", most)

    def _received(self, info: CacheInfo, fds: Sequence[int]) -> ReceivedCache:
        cache = ReceivedCache(info, fds)
        self._caches.add(cache)
        return cache

    def _check_tasks(self) -> None:
        """Check that another `start` may follow.

        Each holds a model of any size, or its files, and a thread, even if the model
        was released meanwhile.
        """
        self._tasks.check_room()
        self._check_preparing(self._slow + 1)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do what takes long, while the client has not gone."""
        self._slow += 1
        self._tasks.start(work).add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self._slow -= 1

    async def _prepare_slowly(
        self,
        message: wire.PrepareModel[Model],
        pools: tuple[Memory, ...],
        cache: ReceivedCache,
        callback: "_Preparing",
        isolated: "Isolated | None",
    ) -> None:
        try:
            if not are_mapped(pools):
                pools = await self._pools.copied(pools)
            model = replace(message.model, pools=pools)
            if self._recorder is not None:
                noted = await self._validating(self._recorder.model_of, model)
                if not callback.is_dead:  # else its number may be another's by now
                    callback.call = self._recorder.prepare(message, noted)
            if isolated is not None:
                model, callback.device = await isolated.place(model, self._device)
            if is_large(model) and not callback.is_dead:
                await self._validating(validate_model, model)
            if not callback.is_dead:
                self._launch(model, message, cache, callback)
        except Exception as error:
            callback.fail(explained(error))

    def _launch(
        self,
        model: Model,
        message: wire.PrepareModel[Model],
        cache: ReceivedCache,
        callback: "_Preparing",
    ) -> None:
        # What is no enumerator is refused by the device, like everything else.
        asked = PrepareArguments(
            model,
            message.preference,  # type: ignore[arg-type]
            message.priority,  # type: ignore[arg-type]
            message.deadline,
            cache.arguments,
        )
        asked.by(callback.device, callback)

    async def _load(
        self, deadline: int | None, cache: ReceivedCache, callback: "_Preparing"
    ) -> None:
        try:
            await self._pools.on_thread(cache.read, self._limits.max_pool_bytes)
            if self._isolated is not None:
                isolated = deadline, cache, callback, self._isolated
                callback.otherwise = partial(self._load_isolated, *isolated)
            LoadArguments(deadline, cache.arguments).by(self._device, callback)
        except Exception as error:
            callback.fail(explained(error))

    async def _load_isolated(
        self,
        deadline: int | None,
        cache: ReceivedCache,
        callback: "_Preparing",
        isolated: "Isolated",
    ) -> None:
        try:
            callback.device = await isolated.device()
            LoadArguments(deadline, cache.arguments).by(callback.device, callback)
        except Exception as error:
            callback.fail(explained(error))

    async def _save(self, call: int, model: ISavable, cache: ReceivedCache) -> None:
        with self._answering(partial(wire.ModelSaved, call)):
            await self._pools.on_thread(cache.prepare_to_save)
            (model_file,), (data_file,), token = cache.arguments
            status = await model.save_to_cache(model_file, data_file, token)
            if status is ErrorStatus.NONE:
                await self._pools.on_thread(cache.write)
            self._send(wire.ModelSaved(call, status))

    async def _write_back(
        self, cache: ReceivedCache, callback: "_Preparing", model: IPreparedModel
    ) -> None:
        """Give the client its cache files before it learns of the model."""
        try:
            await self._pools.on_thread(cache.write)
        except Exception as error:
            log.log(
                logging.WARNING,
                "a model of %s is not kept in its cache: %s",
                self.client_name,
                str(failure_of(error)),
                client=self.client_name,
            )
        self.finish(callback, ErrorStatus.NONE, model)


class _Preparing(IPreparedModelCallback):
    """Notifies the client of a model's preparation.

    A model from a cache ``is_unseen``; one that is ``saved`` is written back first.
    ``device`` prepares it; if it does not load it, ``otherwise`` is tried.
    """

    def __init__(
        self, preparations: Preparations, number: int, device: IDevice
    ) -> None:
        super().__init__()
        self._preparations = preparations
        self.number = number
        self.device = device
        self.otherwise: Callable[[], Coroutine[None, None, None]] | None = None
        self.is_unseen = False
        self.saved: ReceivedCache | None = None
        self.call = 0

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        otherwise, self.otherwise = self.otherwise, None
        if otherwise is not None and status is ErrorStatus.GENERAL_FAILURE:
            self._preparations.start(otherwise())
            return
        if status is not ErrorStatus.NONE:
            warn_if_refused(self._preparations.client_name, self, status)
        self._preparations.finish(self, status, prepared_model)

    def fail(self, error: AsyncnnError) -> None:
        self.reason = str(error)
        self._preparations.finish(self, error.status, None)
