"""One client's connection, on the driver's side.

Everything a client owns hangs on its session and ends with it. What it sends is not
trusted: numbers are looked up in tables of this connection, models and requests are
validated by the device, memory goes through the session's mapper.
"""

import logging
import socket
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from asyncnn.callbacks import IPreparedModelCallback
from asyncnn.devices.statistics import DeviceStatistics, IMeasured
from asyncnn.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IDescribed, IDevice, IPreparedModel
from asyncnn.hal.types import ErrorStatus, Memory, Model
from asyncnn.memory.mapping import Mapper
from asyncnn.qos import Client, acting_for
from asyncnn.service import wire
from asyncnn.service.caches import ReceivedCache
from asyncnn.service.channel import Channel
from asyncnn.service.driver.announced import AnnouncedPools, are_mapped
from asyncnn.service.driver.buffers import Buffers
from asyncnn.service.driver.bursts import Bursts
from asyncnn.service.driver.calls import CallsToClient, RemoteBurstCallback
from asyncnn.service.driver.executions import Executions
from asyncnn.service.driver.failures import explained, kill
from asyncnn.service.driver.fenced import FencedOrders
from asyncnn.service.driver.tasks import OwnedTasks
from asyncnn.service.limits import ServiceLimits
from asyncnn.tracing import Layer, Phase, active, span
from asyncnn.vlog import DRIVER

logger = logging.getLogger(__name__)

_WITH_DESCRIPTORS = {
    wire.AnnouncePools,
    wire.ConfigureBurst,
    wire.ExecuteFenced,
    wire.ExportFence,
    wire.PrepareModel,
    wire.PrepareModelFromCache,
}


class Session:
    """Serves one client of ``device``. ``ended`` is called once, when it is gone.

    The client is told of others' work only if it ``sees_others``.
    """

    def __init__(
        self,
        device: IDevice,
        connection: socket.socket,
        limits: ServiceLimits,
        mapper: Mapper,
        ended: Callable[["Session"], None],
        *,
        name: str = "remote",
        sees_others: bool = False,
    ) -> None:
        self._device = device
        self._limits = limits
        self._ended = ended
        client = Client(name)
        self._client_number = client.number
        self._sees_others = sees_others
        self._greeted = False
        self._pools = AnnouncedPools(mapper, limits.max_pools)
        self._preparing: dict[int, _Preparing] = {}
        self._prepared: dict[int, IPreparedModel] = {}
        self._tasks = OwnedTasks(limits.max_executions)
        self._calls = CallsToClient(self._send)
        self._executions = Executions(
            self._prepared, self._pools, self._tasks, limits, self._send
        )
        self._fenced = FencedOrders(
            self._executions, self._pools, self._tasks, limits, self._send
        )
        self._bursts = Bursts(
            self._prepared, self.burst_callback, self._tasks, limits, self._send
        )
        self._buffers = Buffers(
            device,
            self._prepared,
            self._pools,
            self._tasks,
            limits,
            self._send,
        )
        # The loop calls on behalf of the client, then, and tasks inherit that. Nothing
        # else refers to it, so that it is gone as soon as it has hung up.
        with acting_for(client):
            self._channel = Channel(
                connection,
                self._receive if active.recorder is None else self._receive_traced,
                self._lost,
                max_message_bytes=limits.max_message_bytes,
                max_fds=limits.max_fds_per_message,
                max_unread_bytes=limits.max_unread_bytes,
            )

    def close(self) -> None:
        """Hang up and give back all that the client had."""
        self._channel.close()
        self._release()

    def _lost(self, reason: str) -> None:
        logger.info("client lost: %s", reason)
        DRIVER("client lost", reason=reason)
        self._release()
        self._ended(self)

    def burst_callback(self, number: int) -> RemoteBurstCallback:
        """Return the client's callback for burst ``number``."""
        return RemoteBurstCallback(self._calls, self._pools, number)

    def _release(self) -> None:
        preparing, self._preparing = self._preparing, {}
        for callback in preparing.values():
            kill(callback)
        self._executions.close()
        self._fenced.close()
        self._bursts.close()
        self._buffers.close()
        self._calls.close()
        self._tasks.cancel()
        self._prepared.clear()
        self._pools.close()

    def _send(self, message: wire.ToClient) -> None:
        try:
            self._channel.send(wire.encode(message))
        except OSError as error:
            # It would wait for this answer for ever.
            self._channel.abandon(f"answering failed: {error.strerror}")

    def _receive_traced(self, data: memoryview, fds: list[int]) -> None:
        with span("receive", Layer.IPC, Phase.INPUTS_AND_OUTPUTS):
            self._receive(data, fds)

    def _receive(self, data: memoryview, fds: list[int]) -> None:
        message = wire.decode_to_driver(data)
        if fds and type(message) not in _WITH_DESCRIPTORS:
            raise InvalidArgumentError("descriptors beside a message that has none")
        if not self._greeted and type(message) is not wire.Hello:
            raise InvalidArgumentError("a message before the greeting")
        # The ones that come most often are looked for first.
        if type(message) is wire.ExecuteBound or type(message) is wire.Execute:
            self._executions.execute(message)
        elif type(message) is wire.ExecuteFenced:
            self._fenced.execute(message, fds)
        elif type(message) is wire.Several:
            for each in message.messages:
                self._fenced.execute(each, ())
        else:
            self._handle(message, data, fds)

    def _handle(self, message: wire.ToDriver, data: memoryview, fds: list[int]) -> None:
        """Do what a message asks for.

        :raises InvalidArgumentError: if it breaks the protocol.
        """
        match message:
            case wire.AnnouncePools():
                self._pools.announce(message.pools, fds)
            case wire.BindRequest():
                if len(data) > wire.MAX_BOUND_BYTES:
                    raise InvalidArgumentError("a request is too large to be bound")
                self._executions.bind(message)
            case wire.ConfigureBurst():
                self._bursts.configure(message, fds)
            case wire.FreeMemory() | wire.CancelBurstRequest() | wire.ReleaseBurst():
                self._bursts.handle(message)
            case wire.CancelExecution():
                self._executions.cancel(message.execution)
                self._fenced.cancel(message.execution)
            case wire.ExportFence():
                self._fenced.export(message.execution, fds)
            case wire.ForgetPools():
                self._pools.forget(message.numbers)
                self._buffers.forget(message.numbers)
                self._executions.forget_pools(message.numbers)
            case wire.Allocate():
                self._buffers.allocate(message)
            case wire.CopyBufferTo() | wire.CopyBufferFrom():
                self._buffers.copy(message)
            case wire.Memories():
                self._calls.answered(message)
            case wire.PrepareModel():
                self._prepare(message, fds)
            case wire.PrepareModelFromCache():
                self._prepare_from_cache(message, fds)
            case wire.ReleasePreparedModel():
                self._release_prepared(message)
            case wire.GetSupportedOperations():
                self._get_supported_operations(message)
            case wire.GetStatistics():
                self._get_statistics(message.call)
            case wire.Hello():
                self._greet(message)

    def _greet(self, message: wire.Hello) -> None:
        device = self._device
        if self._greeted:
            raise InvalidArgumentError("a second greeting")
        self._greeted = True
        _, model_files, data_files = device.get_number_of_cache_files_needed()
        self._send(
            wire.Welcome(
                version=wire.PROTOCOL_VERSION,
                driver_version=device.get_version_string()[1],
                device_type=device.get_type()[1],
                capabilities=device.get_capabilities_1_3()[1],
                extensions=device.get_supported_extensions()[1],
                model_cache_files=model_files,
                data_cache_files=data_files,
                max_bound_requests=self._limits.max_bound_requests,
                max_pools=self._limits.max_pools,
            )
        )
        if message.version != wire.PROTOCOL_VERSION:
            raise InvalidArgumentError(
                f"the client speaks version {message.version} of the protocol, "
                f"the driver {wire.PROTOCOL_VERSION}"
            )

    def _get_supported_operations(self, message: wire.GetSupportedOperations) -> None:
        try:
            self._tasks.check_room()
            pools = self._pools.find(message.pools)
        except AsyncnnError as error:
            self._send(wire.SupportedOperations(message.call, error.status, ()))
            return
        self._tasks.start(self._supported_operations(message, pools))

    async def _supported_operations(
        self, message: wire.GetSupportedOperations, pools: tuple[Memory, ...]
    ) -> None:
        supported: tuple[bool, ...] = ()
        try:
            if not are_mapped(pools):
                pools = await self._pools.copied(pools)
            model = replace(message.model, pools=pools)
            status, supported = await self._device.get_supported_operations_1_3(model)
        except Exception as error:
            status = explained(error).status
        self._send(wire.SupportedOperations(message.call, status, supported))

    def _get_statistics(self, call: int) -> None:
        try:
            self._tasks.check_room()
        except AsyncnnError as error:
            self._send(wire.Statistics(call, error.status, None))
            return
        self._tasks.start(self._statistics(call))

    async def _statistics(self, call: int) -> None:
        try:
            statistics = await self._measured()
            answer = wire.Statistics(call, ErrorStatus.NONE, statistics)
        except Exception as error:
            answer = wire.Statistics(call, explained(error).status, None)
        self._send(answer)

    async def _measured(self) -> DeviceStatistics:
        """Return what the client may know.

        :raises GeneralFailureError: if the device keeps no statistics.
        """
        if not isinstance(self._device, IMeasured):
            raise GeneralFailureError("the device keeps no statistics")
        statistics = await self._device.get_statistics()
        if self._sees_others:
            return statistics
        return statistics.seen_by(self._client_number)

    def _prepare(self, message: wire.PrepareModel, fds: Sequence[int]) -> None:
        callback = self._begin_preparing(message.prepared)
        try:
            self._check_room_for_model()
            cache = ReceivedCache(message.cache, fds)
            if cache.prepare_to_write():
                callback.saved = cache
            pools = self._pools.find(message.pools)
            if are_mapped(pools):
                self._launch_preparation(message, pools, cache, callback)
            else:
                self._tasks.check_room()
                self._tasks.start(
                    self._prepare_with_copies(message, pools, cache, callback)
                )
        except Exception as error:
            callback.fail(explained(error))

    def _prepare_from_cache(
        self, message: wire.PrepareModelFromCache, fds: Sequence[int]
    ) -> None:
        callback = self._begin_preparing(message.prepared)
        callback.is_unseen = True
        try:
            self._check_room_for_model()
            cache = ReceivedCache(message.cache, fds)
            self._tasks.check_room()
            self._tasks.start(self._load(message.deadline, cache, callback))
        except Exception as error:
            callback.fail(explained(error))

    async def _load(
        self, deadline: int | None, cache: ReceivedCache, callback: "_Preparing"
    ) -> None:
        try:
            await self._pools.on_thread(cache.read, self._limits.max_pool_bytes)
            self._device.prepare_model_from_cache_1_3(
                deadline, cache.model_cache, cache.data_cache, cache.token, callback
            )
        except Exception as error:
            callback.fail(explained(error))

    def _begin_preparing(self, number: int) -> "_Preparing":
        if number in self._preparing or number in self._prepared:
            raise InvalidArgumentError(f"prepared model {number} exists already")
        callback = self._preparing[number] = _Preparing(self, number)
        return callback

    def _check_room_for_model(self) -> None:
        limits = self._limits
        if len(self._preparing) > limits.max_preparing:
            raise ResourceExhaustedTransientError("too many models are prepared")
        if len(self._preparing) + len(self._prepared) > limits.max_prepared_models:
            raise ResourceExhaustedTransientError("too many prepared models")

    async def _prepare_with_copies(
        self,
        message: wire.PrepareModel,
        pools: tuple[Memory, ...],
        cache: ReceivedCache,
        callback: "_Preparing",
    ) -> None:
        try:
            copies = await self._pools.copied(pools)
            self._launch_preparation(message, copies, cache, callback)
        except Exception as error:
            callback.fail(explained(error))

    def _launch_preparation(
        self,
        message: wire.PrepareModel,
        pools: tuple[Memory, ...],
        cache: ReceivedCache,
        callback: "_Preparing",
    ) -> None:
        # What is no enumerator is refused by the device, like everything else.
        self._device.prepare_model_1_3(
            replace(message.model, pools=pools),
            message.preference,  # type: ignore[arg-type]
            message.priority,  # type: ignore[arg-type]
            message.deadline,
            cache.model_cache,
            cache.data_cache,
            cache.token,
            callback,
        )

    def finish_preparing(
        self, callback: "_Preparing", status: ErrorStatus, model: IPreparedModel | None
    ) -> None:
        """Keep a prepared model and tell the client, unless it released it."""
        number = callback.number
        if self._preparing.get(number) is not callback:
            return
        cache, callback.saved = callback.saved, None
        if cache is not None and model is not None:
            self._tasks.start(self._write_back(cache, callback, model))
            return
        del self._preparing[number]
        if model is not None:
            self._prepared[number] = model
        signature = _signature(model) if callback.is_unseen else None
        self._send(wire.Prepared(number, status, callback.reason, signature))

    async def _write_back(
        self, cache: ReceivedCache, callback: "_Preparing", model: IPreparedModel
    ) -> None:
        """Give the client its cache files before it learns of the model."""
        try:
            await self._pools.on_thread(cache.write)
        except Exception as error:
            logger.warning("a model is not cached: %s", explained(error))
        self.finish_preparing(callback, ErrorStatus.NONE, model)

    def _release_prepared(self, message: wire.ReleasePreparedModel) -> None:
        self._prepared.pop(message.prepared, None)
        self._executions.forget_model(message.prepared)
        callback = self._preparing.pop(message.prepared, None)
        if callback is not None:
            kill(callback)


def _signature(model: object) -> Model | None:
    return model.signature if isinstance(model, IDescribed) else None


class _Preparing(IPreparedModelCallback):
    """Tells the client of a model's preparation.

    A model from a cache ``is_unseen``; one that is ``saved`` is written back first.
    """

    __slots__ = ("_session", "is_unseen", "number", "saved")

    def __init__(self, session: Session, number: int) -> None:
        super().__init__()
        self._session = session
        self.number = number
        self.is_unseen = False
        self.saved: ReceivedCache | None = None

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        self._session.finish_preparing(self, status, prepared_model)

    def fail(self, error: AsyncnnError) -> None:
        """Tell the client of a failure, unless it was told of an outcome before."""
        self.reason = str(error)
        self.notify_1_3(error.status, None)
