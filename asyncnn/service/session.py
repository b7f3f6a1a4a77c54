"""One client's connection, on the driver's side.

Everything a client owns hangs on its session and ends with it. What it sends is not
trusted: numbers are looked up in tables of this connection, models and requests are
validated by the device, memory goes through the session's mapper.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence

from msgspec.structs import replace

from asyncnn.callbacks import IExecutionCallback, IPreparedModelCallback
from asyncnn.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    NO_TIMING,
    ErrorStatus,
    Handle,
    Memory,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.memory.mapping import Mapper
from asyncnn.service import wire
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
        self._mapper = mapper
        self._ended = ended
        self._greeted = False
        self._pools: dict[int, Memory] = {}
        self._preparing: dict[int, _Preparing] = {}
        self._prepared: dict[int, IPreparedModel] = {}
        self._executing: dict[int, _Executing] = {}
        self._answering: set[asyncio.Task[None]] = set()
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
        for callback in (*self._preparing.values(), *self._executing.values()):
            callback.die()
        for task in self._answering:
            task.cancel()
        self._preparing.clear()
        self._executing.clear()
        self._prepared.clear()
        self._pools.clear()
        self._mapper.close()

    def _send(self, message: wire.ToClient) -> None:
        self._channel.send(wire.encode(message))

    def _receive(self, data: memoryview, fds: list[int]) -> None:
        try:
            message = wire.decode_to_driver(data)
            if type(message) is wire.Execute and self._greeted and not fds:
                self._execute(message)
                return
            self._handle(message, fds)
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _handle(self, message: wire.ToDriver, fds: list[int]) -> None:
        """Do what a message asks for.

        :raises InvalidArgumentError: if it breaks the protocol.
        """
        if isinstance(message, wire.Hello):
            self._greet(message)
            return
        if not self._greeted:
            raise InvalidArgumentError("a message before the greeting")
        if isinstance(message, wire.AnnouncePools):
            self._announce(message, fds)
            return
        if fds:
            raise InvalidArgumentError("descriptors beside a message that has none")
        match message:
            case wire.Execute():
                self._execute(message)
            case wire.CancelExecution():
                self._cancel(message)
            case wire.ForgetPools():
                self._forget(message)
            case wire.PrepareModel():
                self._prepare(message)
            case wire.ReleasePreparedModel():
                self._release_prepared(message)
            case wire.GetStatus():
                status = self._device.get_status()
                self._send(wire.Status(message.call, status))
            case wire.GetSupportedOperations():
                self._spawn(self._supported_operations(message))

    def _spawn(self, answer: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

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

    def _announce(self, message: wire.AnnouncePools, fds: list[int]) -> None:
        if sum(pool.fds for pool in message.pools) != len(fds) or any(
            pool.fds < 0 for pool in message.pools
        ):
            raise InvalidArgumentError("pools and descriptors do not match")
        start = 0
        for pool in message.pools:
            own = tuple(fds[start : start + pool.fds])
            start += pool.fds
            if pool.number in self._pools:
                raise InvalidArgumentError(f"pool {pool.number} is announced twice")
            memory = Memory(pool.name, pool.size, Handle(own, pool.ints))
            try:
                self._pools[pool.number] = self._mapper.map(memory)
            except AsyncnnError as error:
                logger.info("pool %d refused: %s", pool.number, error)

    def _forget(self, message: wire.ForgetPools) -> None:
        for number in message.numbers:
            self._pools.pop(number, None)

    def _memories(self, numbers: Sequence[int]) -> tuple[Memory, ...]:
        """Return pools ready for use; those that cannot be mapped are copied anew."""
        try:
            return tuple([self._mapper.map(self._pools[number]) for number in numbers])
        except KeyError as error:
            raise InvalidArgumentError(f"there is no usable pool {error}") from None

    async def _supported_operations(self, message: wire.GetSupportedOperations) -> None:
        status: ErrorStatus = ErrorStatus.INVALID_ARGUMENT
        supported: tuple[bool, ...] = ()
        with contextlib.suppress(InvalidArgumentError):
            model = replace(message.model, pools=self._memories(message.pools))
            status, supported = await self._device.get_supported_operations_1_3(model)
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
            if len(self._prepared) >= limits.max_prepared_models:
                raise ResourceExhaustedTransientError("too many prepared models")
            model = replace(message.model, pools=self._memories(message.pools))
        except AsyncnnError as error:
            callback.reason = str(error)
            callback.notify_1_3(error.status, None)
            return
        # What is no enumerator is refused by the device, like everything else.
        self._device.prepare_model_1_3(
            model,
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
        """Keep a prepared model and tell the client."""
        if self._preparing.pop(callback.number, None) is None:
            return
        if model is not None:
            self._prepared[callback.number] = model
        self._send(wire.Prepared(callback.number, status, callback.reason))

    def _release_prepared(self, message: wire.ReleasePreparedModel) -> None:
        self._prepared.pop(message.prepared, None)
        callback = self._preparing.pop(message.prepared, None)
        if callback is not None:
            callback.die()

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
            pools = self._memories(message.pools)
        except AsyncnnError as error:
            callback.reason = str(error)
            callback.notify_1_3(error.status, (), NO_TIMING)
            return
        callback.pools = pools
        prepared.execute_1_3(
            Request(message.inputs, message.outputs, pools),
            message.measure,  # type: ignore[arg-type]
            message.deadline,
            message.loop_timeout,
            callback,
        )

    def finish_executing(
        self,
        callback: "_Executing",
        status: ErrorStatus,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Write back outputs that were not computed in place, and tell the client."""
        number = callback.message.execution
        if self._executing.pop(number, None) is None:
            return
        if status is ErrorStatus.NONE:
            self._write_back(callback)
        self._send(wire.Executed(number, status, shapes, timing, callback.reason))

    def _write_back(self, callback: "_Executing") -> None:
        for output in callback.message.outputs:
            location = output.location
            if not output.has_no_value:
                memory = callback.pools[location.pool_index]
                self._mapper.flush(memory, location.offset, location.length)

    def _cancel(self, message: wire.CancelExecution) -> None:
        callback = self._executing.get(message.execution)
        if callback is not None:
            callback.die()


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


class _Executing(IExecutionCallback):
    """Tells the client of an execution's end."""

    __slots__ = ("_session", "message", "pools")

    takes_early_results = True

    def __init__(self, session: Session, message: wire.Execute) -> None:
        super().__init__()
        self._session = session
        self.message = message
        self.pools: tuple[Memory, ...] = ()

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self._session.finish_executing(self, status, output_shapes, timing)
