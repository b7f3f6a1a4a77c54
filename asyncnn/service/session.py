"""One client's connection, on the driver's side.

Everything a client owns hangs on its session and ends with it. What it sends is not
trusted: numbers are looked up in tables of this connection, models and requests are
validated by the device, memory goes through the session's mapper.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine

from msgspec.structs import replace

from asyncnn.callbacks import (
    CallbackObject,
    IExecutionCallback,
    IPreparedModelCallback,
)
from asyncnn.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    NO_TIMING,
    ErrorStatus,
    Memory,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.memory.mapping import Mapper
from asyncnn.service import wire
from asyncnn.service.announced import AnnouncedPools, are_mapped
from asyncnn.service.channel import Channel
from asyncnn.service.limits import ServiceLimits

logger = logging.getLogger(__name__)


class Session:
    """Serves one client of ``device``. ``ended`` is called once, when it is gone."""

    def __init__(
        self,
        device: IDevice,
        connection: socket.socket,
        limits: ServiceLimits,
        mapper: Mapper,
        ended: Callable[["Session"], None],
    ) -> None:
        self._device = device
        self._limits = limits
        self._ended = ended
        self._greeted = False
        self._pools = AnnouncedPools(mapper, limits.max_pools)
        self._preparing: dict[int, _Preparing] = {}
        self._prepared: dict[int, IPreparedModel] = {}
        self._executing: dict[int, _Executing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel = Channel(
            connection,
            self._receive,
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
        self._release()
        self._ended(self)

    def _release(self) -> None:
        waiting = (*self._preparing.values(), *self._executing.values())
        self._preparing.clear()
        self._executing.clear()
        for callback in waiting:
            _kill(callback)
        for task in self._tasks:
            task.cancel()
        self._prepared.clear()
        self._pools.close()

    def _send(self, message: wire.ToClient) -> None:
        try:
            self._channel.send(wire.encode(message))
        except OSError as error:
            # It would wait for this answer for ever.
            self._channel.abandon(f"answering failed: {error.strerror}")

    def _receive(self, data: memoryview, fds: list[int]) -> None:
        message = wire.decode_to_driver(data)
        if type(message) is wire.Execute and self._greeted and not fds:
            self._execute(message)
        else:
            self._handle(message, fds)

    def _handle(self, message: wire.ToDriver, fds: list[int]) -> None:
        """Do what a message asks for.

        :raises InvalidArgumentError: if it breaks the protocol.
        """
        if not self._greeted and not isinstance(message, wire.Hello):
            raise InvalidArgumentError("a message before the greeting")
        if isinstance(message, wire.AnnouncePools):
            self._pools.announce(message.pools, fds)
            return
        if fds:
            raise InvalidArgumentError("descriptors beside a message that has none")
        match message:
            case wire.Hello():
                self._greet(message)
            case wire.Execute():
                self._execute(message)
            case wire.CancelExecution():
                self._cancel(message)
            case wire.ForgetPools():
                self._pools.forget(message.numbers)
            case wire.PrepareModel():
                self._prepare(message)
            case wire.ReleasePreparedModel():
                self._release_prepared(message)
            case wire.GetStatus():
                status = self._device.get_status()
                self._send(wire.Status(message.call, status))
            case wire.GetSupportedOperations():
                self._get_supported_operations(message)

    def _check_room(self) -> None:
        """Check that a call may be kept waiting.

        :raises ResourceExhaustedTransientError: if too many are.
        """
        if len(self._tasks) >= self._limits.max_executions:
            raise ResourceExhaustedTransientError("too many calls are pending")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            )
        )
        if message.version != wire.PROTOCOL_VERSION:
            raise InvalidArgumentError(
                f"the client speaks version {message.version} of the protocol, "
                f"the driver {wire.PROTOCOL_VERSION}"
            )

    def _get_supported_operations(self, message: wire.GetSupportedOperations) -> None:
        try:
            self._check_room()
            pools = self._pools.find(message.pools)
        except AsyncnnError as error:
            self._send(wire.SupportedOperations(message.call, error.status, ()))
            return
        self._spawn(self._supported_operations(message, pools))

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
            status = _explained(error).status
        self._send(wire.SupportedOperations(message.call, status, supported))

    def _prepare(self, message: wire.PrepareModel) -> None:
        number, limits = message.prepared, self._limits
        if number in self._preparing or number in self._prepared:
            raise InvalidArgumentError(f"prepared model {number} exists already")
        callback = _Preparing(self, number)
        self._preparing[number] = callback
        try:
            if len(self._preparing) > limits.max_preparing:
                raise ResourceExhaustedTransientError("too many models are prepared")
            if len(self._preparing) + len(self._prepared) > limits.max_prepared_models:
                raise ResourceExhaustedTransientError("too many prepared models")
            pools = self._pools.find(message.pools)
            if are_mapped(pools):
                self._launch_preparation(message, pools, callback)
            else:
                self._check_room()
                self._spawn(self._prepare_with_copies(message, pools, callback))
        except Exception as error:
            callback.fail(_explained(error))

    async def _prepare_with_copies(
        self,
        message: wire.PrepareModel,
        pools: tuple[Memory, ...],
        callback: "_Preparing",
    ) -> None:
        try:
            copies = await self._pools.copied(pools)
            self._launch_preparation(message, copies, callback)
        except Exception as error:
            callback.fail(_explained(error))

    def _launch_preparation(
        self,
        message: wire.PrepareModel,
        pools: tuple[Memory, ...],
        callback: "_Preparing",
    ) -> None:
        # What is no enumerator is refused by the device, like everything else.
        self._device.prepare_model_1_3(
            replace(message.model, pools=pools),
            message.preference,  # type: ignore[arg-type]
            message.priority,  # type: ignore[arg-type]
            message.deadline,
            (),
            (),
            bytes(BYTE_SIZE_OF_CACHE_TOKEN),
            callback,
        )

    def finish_preparing(
        self, callback: "_Preparing", status: ErrorStatus, model: IPreparedModel | None
    ) -> None:
        """Keep a prepared model and tell the client, unless it released it."""
        number = callback.number
        if self._preparing.get(number) is not callback:
            return
        del self._preparing[number]
        if model is not None:
            self._prepared[number] = model
        self._send(wire.Prepared(number, status, callback.reason))

    def _release_prepared(self, message: wire.ReleasePreparedModel) -> None:
        self._prepared.pop(message.prepared, None)
        callback = self._preparing.pop(message.prepared, None)
        if callback is not None:
            _kill(callback)

    def _execute(self, message: wire.Execute) -> None:
        number = message.execution
        if number in self._executing:
            raise InvalidArgumentError(f"execution {number} exists already")
        callback = _Executing(self, message)
        self._executing[number] = callback
        try:
            if len(self._executing) > self._limits.max_executions:
                raise ResourceExhaustedTransientError("too many executions are pending")
            prepared = self._prepared.get(message.prepared)
            if prepared is None:
                raise InvalidArgumentError(f"no prepared model {message.prepared}")
            pools = self._pools.find(message.pools)
            if are_mapped(pools):
                callback.launch(prepared, pools)
            else:
                self._check_room()
                self._spawn(self._execute_with_copies(prepared, pools, callback))
        except Exception as error:
            callback.fail(_explained(error))

    async def _execute_with_copies(
        self,
        prepared: IPreparedModel,
        pools: tuple[Memory, ...],
        callback: "_Executing",
    ) -> None:
        try:
            callback.copies = await self._pools.copied(pools)
            callback.launch(prepared, callback.copies)
        except Exception as error:
            callback.fail(_explained(error))

    def finish_executing(
        self,
        callback: "_Executing",
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Tell the client, once outputs that were not computed in place are."""
        number = callback.message.execution
        if self._executing.get(number) is not callback:
            return
        if callback.copies and status is ErrorStatus.NONE:
            self._spawn(self._write_back(callback, shapes, timing))
            return
        del self._executing[number]
        self._send(wire.Executed(number, status, shapes, timing, callback.reason))

    async def _write_back(
        self, callback: "_Executing", shapes: tuple[OutputShape, ...], timing: Timing
    ) -> None:
        copies, callback.copies = callback.copies, ()
        try:
            await self._pools.write_back(copies, callback.message.outputs)
        except Exception as error:
            callback.fail(_explained(error))
            return
        self.finish_executing(callback, ErrorStatus.NONE, shapes, timing)

    def _cancel(self, message: wire.CancelExecution) -> None:
        callback = self._executing.get(message.execution)
        if callback is not None:
            _kill(callback)


class _Preparing(IPreparedModelCallback):
    """Tells the client of a model's preparation."""

    __slots__ = ("_session", "number")

    def __init__(self, session: Session, number: int) -> None:
        super().__init__()
        self._session = session
        self.number = number

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        self._session.finish_preparing(self, status, prepared_model)

    def fail(self, error: AsyncnnError) -> None:
        """Tell the client of a failure, unless it was told of an outcome before."""
        self.reason = str(error)
        self.notify_1_3(error.status, None)


class _Executing(IExecutionCallback):
    """Tells the client of an execution's end."""

    __slots__ = ("_session", "copies", "message")

    takes_early_results = True

    def __init__(self, session: Session, message: wire.Execute) -> None:
        super().__init__()
        self._session = session
        self.message = message
        self.copies: tuple[Memory, ...] = ()

    def launch(self, prepared: IPreparedModel, pools: tuple[Memory, ...]) -> None:
        """Execute with pools that have their bytes."""
        message = self.message
        prepared.execute_1_3(
            Request(message.inputs, message.outputs, pools),
            message.measure,  # type: ignore[arg-type]
            message.deadline,
            message.loop_timeout,
            self,
        )

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self._session.finish_executing(self, status, output_shapes, timing)

    def fail(self, error: AsyncnnError) -> None:
        """Tell the client of a failure, unless it was told of an outcome before."""
        self.reason = str(error)
        self.notify_1_3(error.status, (), NO_TIMING)


def _explained(error: Exception) -> AsyncnnError:
    """Return the error to tell a client of; what nobody expected is logged."""
    if isinstance(error, AsyncnnError):
        return error
    logger.error("a call failed", exc_info=error)
    return GeneralFailureError(f"{type(error).__name__}: {error}")


def _kill(callback: CallbackObject) -> None:
    """Let a callback die, whatever a device makes of it."""
    try:
        callback.die()
    except Exception:
        logger.exception("a call could not be cancelled")
