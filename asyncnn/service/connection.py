"""The client's end of a connection: calls out, notifications in.

When the driver is gone, every call that waits for an answer gets DEVICE_UNAVAILABLE,
exactly once, in the very callback of the loop that learns of it. A call that could not
be sent raises instead, and is not answered.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from asyncnn.errors import (
    DeviceUnavailableError,
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionPreference,
    Memory,
    Model,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.memory.shared import shareable
from asyncnn.service import wire
from asyncnn.service.channel import Channel
from asyncnn.service.limits import ServiceLimits
from asyncnn.service.offered import OfferedPools

logger = logging.getLogger(__name__)

DEAD_OBJECT = "the driver has died (DEAD_OBJECT)"
CANCELLED = "the preparation was cancelled"

Executed = Callable[[ErrorStatus, tuple[OutputShape, ...], Timing, str], None]
"""Told how an execution ended; the last argument explains a failure."""


class PreparationListener(Protocol):
    """Told how a preparation ended, and how to give the result back."""

    def link_to_death(self, connection: "Connection", number: int) -> None:
        """Watch for the one who waits."""
        ...

    def done(
        self, connection: "Connection", number: int, status: ErrorStatus, reason: str
    ) -> None:
        """Take the outcome."""
        ...


class Connection:
    """Talks to the driver at the other end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._limits = limits = ServiceLimits()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._reason = ""
        self._ended = asyncio.Event()
        self._welcome: asyncio.Future[wire.Welcome] | None = None
        self._calls: dict[int, asyncio.Future[wire.SupportedOperations]] = {}
        self._preparing: dict[int, PreparationListener] = {}
        self._executing: dict[int, Executed] = {}
        self._pools = OfferedPools(
            self._send,
            self._send_if_open,
            self._call_soon,
            self._numbers,
            limits.max_fds_per_message,
        )
        self._channel = Channel(
            connection,
            self._receive,
            self._lost,
            max_message_bytes=limits.max_message_bytes,
            max_fds=limits.max_fds_per_message,
            max_unread_bytes=limits.max_unread_bytes,
        )

    @property
    def is_closed(self) -> bool:
        """Whether the driver is gone or the connection was closed."""
        return self._channel.is_closed

    @property
    def reason(self) -> str:
        """Why it is closed; empty while it is not."""
        return self._reason

    def close(self, reason: str) -> None:
        """Hang up; what is pending ends with DEVICE_UNAVAILABLE."""
        if not self._ended.is_set():
            self._channel.close()
            self._end(reason)

    async def wait_closed(self) -> None:
        """Wait until the driver is gone or the connection was closed."""
        await self._ended.wait()

    async def greet(self) -> wire.Welcome:
        """Exchange greetings.

        :raises DeviceUnavailableError: if the driver hangs up or speaks another
            version of the protocol.
        """
        self._send(wire.Hello(wire.PROTOCOL_VERSION))
        self._welcome = self._loop.create_future()
        welcome = await self._welcome
        if welcome.version != wire.PROTOCOL_VERSION:
            raise DeviceUnavailableError(
                f"the driver speaks version {welcome.version} of the protocol, "
                f"this client {wire.PROTOCOL_VERSION}"
            )
        return welcome

    async def supported_operations(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Ask which operations of a model would run.

        :raises DeviceUnavailableError: if the driver is gone.
        """
        pools = self._pools.numbers_of(_all_shareable(model.pools))
        call = next(self._numbers)
        self._send(wire.GetSupportedOperations(call, replace(model, pools=()), pools))
        future = self._calls[call] = self._loop.create_future()
        try:
            answer = await future
        finally:
            self._calls.pop(call, None)
        return _status(answer.status), answer.supported

    def prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        listener: PreparationListener,
    ) -> None:
        """Send a model to be prepared; ``listener`` is told.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        pools = self._pools.numbers_of(_all_shareable(model.pools))
        number = next(self._numbers)
        self._send(
            wire.PrepareModel(
                number, replace(model, pools=()), pools, preference, priority, deadline
            )
        )
        self._preparing[number] = listener
        listener.link_to_death(self, number)

    def cancel_preparation(self, number: int) -> None:
        """Tell the driver, which is not going to answer, that nobody waits."""
        listener = self._preparing.pop(number, None)
        if listener is not None:
            self.release_prepared(number)
            status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            self._tell(listener.done, self, number, status, CANCELLED)

    def release_prepared(self, number: int) -> None:
        """Tell the driver that a prepared model is not needed any more."""
        self._send_if_open(wire.ReleasePreparedModel(number))

    def release_prepared_soon(self, number: int) -> None:
        """Release a prepared model from any thread, as a finaliser has to."""
        self._call_soon(partial(self.release_prepared, number))

    def execute(
        self,
        prepared: int,
        request: Request,
        measure: int,
        deadline: int | None,
        loop_timeout: int | None,
        executed: Executed,
    ) -> int:
        """Send a request whose pools all travel; return the number of the execution.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        number = next(self._numbers)
        pools = self._pools.numbers_of(request.pools)
        self._send(
            wire.Execute(
                number,
                prepared,
                request.inputs,
                request.outputs,
                pools,
                measure,
                deadline,
                loop_timeout,
            )
        )
        self._executing[number] = executed
        return number

    def cancel(self, execution: int) -> None:
        """Tell the driver that nobody waits for an execution."""
        if execution in self._executing:
            self._send_if_open(wire.CancelExecution(execution))

    def _call_soon(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are we
            self._loop.call_soon_threadsafe(call)

    def _send_if_open(self, message: wire.ToDriver) -> None:
        with contextlib.suppress(DeviceUnavailableError):
            self._send(message)

    def _send(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send a message, or raise: whoever waits for an answer registers afterwards.

        :raises InvalidArgumentError: if it holds what cannot be encoded.
        :raises ResourceExhaustedPersistentError: if the driver would not take it.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        :raises DeviceUnavailableError: if the driver is gone.
        """
        if not self.is_closed:
            data = _encoded(message)
            if len(data) > self._limits.max_message_bytes:
                raise ResourceExhaustedPersistentError(
                    f"a message of {len(data)} bytes is too large",
                    hint="put constants into pools",
                )
            try:
                self._channel.send(data, fds)
            except OSError as error:
                raise ResourceExhaustedTransientError(
                    f"a message cannot be sent: {error.strerror}"
                ) from error
        if self.is_closed:
            raise DeviceUnavailableError(self._reason or DEAD_OBJECT)

    def _receive(self, data: memoryview, fds: list[int]) -> None:
        if fds:
            raise InvalidArgumentError("descriptors beside a message that has none")
        message = wire.decode_to_client(data)
        match message:
            case wire.Executed():
                executed = self._executing.pop(message.execution, None)
                if executed is not None:
                    self._tell(
                        executed,
                        _status(message.status),
                        message.output_shapes,
                        message.timing,
                        message.reason,
                    )
            case wire.Prepared():
                number = message.prepared
                listener = self._preparing.pop(number, None)
                if listener is not None:
                    status = _status(message.status)
                    self._tell(listener.done, self, number, status, message.reason)
            case wire.SupportedOperations():
                future = self._calls.get(message.call)
                if future is not None and not future.done():
                    future.set_result(message)
            case wire.Welcome():
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(message)

    def _tell(self, listener: Callable[..., None], *outcome: object) -> None:
        """Tell one that waits; if it fails, that is not the others' business."""
        try:
            listener(*outcome)
        except Exception:
            logger.exception("a listener failed while it was notified")

    def _lost(self, reason: str) -> None:
        logger.warning("driver lost: %s", reason)
        self._end(f"{DEAD_OBJECT}: {reason}")

    def _end(self, reason: str) -> None:
        """Answer everything that waits."""
        self._reason = reason
        self._ended.set()
        self._pools.clear()
        waiting: list[asyncio.Future[Any]] = list(self._calls.values())
        if self._welcome is not None:
            waiting.append(self._welcome)
        for future in waiting:
            if not future.done():
                future.set_exception(DeviceUnavailableError(reason))
        preparing, self._preparing = self._preparing, {}
        executing, self._executing = self._executing, {}
        status = ErrorStatus.DEVICE_UNAVAILABLE
        for number, listener in preparing.items():
            self._tell(listener.done, self, number, status, reason)
        for executed in executing.values():
            self._tell(executed, status, (), NO_TIMING, reason)


def _all_shareable(pools: Sequence[Memory]) -> list[Memory]:
    return [shareable(memory) for memory in pools]


def _encoded(message: wire.ToDriver) -> bytes:
    try:
        return wire.encode(message)
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"cannot be sent: {error}") from error


def _status(number: int) -> ErrorStatus:
    """Return the status that a driver, maybe a newer one, means."""
    try:
        return ErrorStatus(number)
    except ValueError:
        return ErrorStatus.GENERAL_FAILURE
