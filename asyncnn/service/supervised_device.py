"""A connection that survives its driver.

What a driver had taken on when it died ends with DEVICE_UNAVAILABLE, as always. Then
the supervisor connects again, to a driver that was restarted or that it starts itself,
and prepares every model that is still in use anew. Calls made in between wait.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from asyncnn import hal
from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.hal.errors import closed_error
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    CacheArguments,
    DeviceFacts,
    FactualDevice,
    LoadArguments,
    PrepareArguments,
    forwarding,
)
from asyncnn.hal.routes import Route
from asyncnn.memory.descriptors import Descriptor
from asyncnn.offload import offload
from asyncnn.service.client.asking import to_send
from asyncnn.service.client.remote_device import RemoteDevice
from asyncnn.service.client.unanswered import Cause, forked
from asyncnn.service.supervised_model import ModelOrder, SupervisedModel
from asyncnn.service.supervision import (
    NO_DRIVER,
    Backoff,
    Life,
    Supervision,
    Waiting,
    watch_for_hanging,
)

logger = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[RemoteDevice]]
"""Connects to a driver, and starts one before if that is what is wanted."""


@asynccontextmanager
async def supervised(
    connect: Connect, supervision: Supervision
) -> AsyncIterator["SupervisedDevice"]:
    """Keep a device connected for the length of an ``async with`` block.

    :raises AsyncnnError: on entering, if the first connection fails.
    """
    device = SupervisedDevice(supervision, connect)
    try:
        await device.first_connection
        yield device
    finally:
        await device.aclose()


class SupervisedDevice(BaseDevice, FactualDevice):
    """An `IDevice` whose driver may be replaced; made by `supervised`."""

    def __init__(self, supervision: Supervision, connect: Connect) -> None:
        self.first_connection: asyncio.Future[None]
        self.first_connection = asyncio.get_running_loop().create_future()
        self._supervision = supervision
        self._remote: RemoteDevice | None = None
        self._models: weakref.WeakSet[SupervisedModel] = weakref.WeakSet()
        self._waiting = Waiting(supervision.wait)
        self._changed = asyncio.Event()
        self._life = Life()
        self._is_closing = False
        self._task = asyncio.get_running_loop().create_task(self._supervise(connect))

    async def aclose(self) -> None:
        """End every call and disconnect, or wait until that is done.

        Cancelling leaves it to go on by itself; any number of tasks may call this.
        """
        if self._life.end is forked:
            return
        if not self._is_closing:
            self._is_closing = True
            self.end(closed_error)
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _supervise(self, connect: Connect) -> None:
        try:
            await self._keep_connected(connect)
        except Exception as error:
            logger.exception("the supervision of a driver failed")
            if not self.first_connection.done():
                self.first_connection.set_exception(error)
            reason = f"the supervision of the driver failed: {error}"
            self.end(partial(hal.NoDriverError, reason))

    async def _keep_connected(self, connect: Connect) -> None:
        backoff = Backoff(self._supervision)
        while True:
            connected = None
            try:
                async with connect() as remote, self._watched(remote):
                    connected = time.monotonic()
                    path = self._supervision.record_to
                    calls = _calls_of(remote, path) if path else None
                    reason = await self._use(remote)
                    if calls is not None:
                        await _write(calls, path)
                        calls = None
            except hal.AsyncnnError as error:
                if not self.first_connection.done():
                    self.first_connection.set_exception(error)
                    return
                reason = str(error)
            now = time.monotonic()
            pause = backoff.lost(now, 0.0 if connected is None else now - connected)
            if pause is None:
                reason = f"no driver stays alive, the last failure: {reason}"
                self.end(partial(hal.NoDriverError, reason))
                return
            logger.warning("no driver: %s; next attempt in %.2f s", reason, pause)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _watched(self, remote: RemoteDevice) -> AsyncIterator[None]:
        watch = watch_for_hanging(remote, self._supervision.hang_after)
        task = asyncio.create_task(watch)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _use(self, remote: RemoteDevice) -> str:
        # Known before anything is released: what has waited is launched with it.
        self._remote = remote
        self._changed.set()
        if not self.first_connection.done():
            self.first_connection.set_result(None)
        self._waiting.release()
        # Those that are waited for first, one at a time: a driver bounds how many
        # models a client has prepared at once, and others may be wanted meanwhile.
        for model in sorted(self._models, key=lambda model: -model.waiting):
            await model.prepare_again(remote)
        reason = await remote.wait_lost()
        self._life.loss = partial(hal.DriverDiedError, reason)
        return reason

    def end(self, cause: Cause) -> None:
        """Let every call fail from now on, and those that wait."""
        if self._life.end is not None:
            return
        self._life.end = cause
        self._changed.set()
        error = cause()
        for model in list(self._models):
            model.end(error)
        self._waiting.fail(error)

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return what was lost, maybe before there was another driver; see `Life`."""
        return self._life.cause_of_death(self._remote)

    def _connected(self) -> RemoteDevice | None:
        remote = self._remote
        if remote is None or remote.is_lost or self._life.end is not None:
            return None
        return remote

    def _inner(self) -> RemoteDevice:
        """Return the last driver's device, whose facts hold while there is none."""
        if self._remote is None:
            raise RuntimeError("there was no connection yet")
        return self._remote

    # What the last driver's device says of itself; see `RemoteDevice`.
    label = property(lambda self: self._inner().label)
    published = property(lambda self: self._inner().published)
    seals_caches = property(lambda self: self._inner().seals_caches)
    get_number_of_cache_files_needed = forwarding(
        hal.IDevice.get_number_of_cache_files_needed
    )

    def _facts(self) -> DeviceFacts:
        return self._inner()._facts()

    def usual_route(self, prepared: object) -> Route | None:
        """Return how executions of a prepared model go; see `IRouting`."""
        if isinstance(prepared, SupervisedModel):
            return prepared.usual_route
        return None

    def get_status(self) -> hal.DeviceStatus:
        """Return what the driver's device reports; OFFLINE while there is no driver."""
        remote = self._connected()
        return hal.DeviceStatus.OFFLINE if remote is None else remote.get_status()

    async def get_statistics(self) -> DeviceStatistics:
        """Ask the driver; fail while there is none."""
        remote = self._connected()
        if remote is None:
            raise self.cause_of_death() or hal.NoDriverError(NO_DRIVER)
        return await remote.get_statistics()

    async def _supported(self, model: hal.Model) -> tuple[bool, ...]:
        async with self._in_time():
            remote = await self._next()
        status, supported = await remote.get_supported_operations_1_3(model)
        if status is not hal.ErrorStatus.NONE:
            raise hal.error_for(status, "the driver does not say what it supports")
        return supported

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._supervision.wait):
                yield
        except TimeoutError as error:
            raise hal.NoDriverError(NO_DRIVER) from error

    async def _next(self) -> RemoteDevice:
        while (remote := self._connected()) is None:
            self._life.check()
            self._changed.clear()
            await self._changed.wait()
        return remote

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> hal.ErrorStatus:
        remote = self._connected()
        if remote is not None:
            order = ModelOrder(asked._replace(deadline=None, cache=CacheArguments()))
            adoption = _Adoption(self, order, remote, callback)
            callback.link_to_death(adoption.die)
            return asked.by(remote, adoption)
        self._life.check()
        asked.validate()
        notify = OneShot(callback.notify_1_3)
        return self._waiting.hold(
            callback,
            asked.deadline,
            partial(asked.by, self, callback),
            lambda status: notify(status, None),
        )

    def adopt(
        self, order: ModelOrder, remote: RemoteDevice, prepared: hal.IPreparedModel
    ) -> SupervisedModel:
        """Return a model that the driver has prepared as one that outlives it."""
        model = SupervisedModel(
            order, remote, prepared, self._supervision.wait, self._life
        )
        self._models.add(model)
        return model

    def _load(
        self, asked: LoadArguments, callback: IPreparedModelCallback
    ) -> hal.ErrorStatus:
        # Fails while there is no driver: there may be another way to get the model.
        remote = self._inner()
        _, *needed = remote.get_number_of_cache_files_needed()
        self._life.check()
        order = ModelOrder(to_send(*asked.cache, (needed[0], needed[1])))
        adoption = _Adoption(self, order, remote, callback)
        callback.link_to_death(adoption.die)
        return order.give(remote, asked.deadline, adoption)

    async def _allocate(self, asked: AllocateArguments) -> tuple[hal.IBuffer, int]:
        """Ask the driver, once there is one. A buffer dies with its driver."""
        async with self._in_time():
            remote = await self._next()
            models = [
                await model.awaited() if isinstance(model, SupervisedModel) else model
                for model in asked.prepared_models
            ]
        return await asked._replace(prepared_models=models).by(remote)


def _calls_of(remote: RemoteDevice, path: str) -> Descriptor | None:
    """Return the memory of a driver's calls, which are to be written to a file."""
    # Few supervise drivers that record.
    from asyncnn.service.recorded_memory import open_memory

    try:
        return Descriptor(open_memory(remote.pid))
    except hal.AsyncnnError as error:
        logger.warning("%s is not going to be written: %s", path, error)
        return None


async def _write(calls: Descriptor, path: str) -> None:
    from asyncnn.service.recording import save_memory

    try:
        await offload(save_memory, calls.fd, path)
        logger.warning("the last calls of the driver are in %s", path)
    except (hal.AsyncnnError, OSError) as error:
        logger.warning("%s is not written: %s", path, error)


class _Adoption(IPreparedModelCallback):
    """Passes a prepared model on as one that outlives its driver."""

    def __init__(
        self,
        device: SupervisedDevice,
        order: ModelOrder,
        remote: RemoteDevice,
        callback: IPreparedModelCallback,
    ) -> None:
        super().__init__()
        self._device = device
        self._order = order
        self._remote = remote
        self._callback = callback

    def notify_1_3(
        self, status: hal.ErrorStatus, prepared_model: hal.IPreparedModel | None
    ) -> None:
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = self.reason
        if prepared_model is None:
            callback.notify_1_3(status, None)
        else:
            model = self._device.adopt(self._order, self._remote, prepared_model)
            callback.notify_1_3(status, model)
