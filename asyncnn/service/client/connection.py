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
from typing import Protocol

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
from asyncnn.service.caches import NOTHING_SENT, SentCache
from asyncnn.service.channel import Channel
from asyncnn.service.client.answers import BurstCallbacks
from asyncnn.service.client.bindings import Bindings
from asyncnn.service.client.buffers import RemoteBuffers
from asyncnn.service.client.burst import RemoteBursts
from asyncnn.service.client.fenced import RemoteFences
from asyncnn.service.client.offered import OfferedPools
from asyncnn.service.client.queries import Queries
from asyncnn.service.limits import ServiceLimits

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
        self,
        connection: "Connection",
        number: int,
        status: ErrorStatus,
        reason: str,
        signature: Model | None = None,
    ) -> None:
        """Take the outcome; the signature is that of a model from a cache."""
        ...


class Connection:
    """Talks to the driver at the other end of a socket.

    ``queries`` are what it is asked, ``bindings`` the requests that it knows by number,
    ``bursts`` those that are open, ``burst_callbacks`` what it may call for them,
    ``buffers`` the device-managed ones.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._limits = limits = ServiceLimits()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._reason = ""
        self._ended = asyncio.Event()
        self._welcome: asyncio.Future[wire.Welcome] | None = None
        self._preparing: dict[int, PreparationListener] = {}
        self._executing: dict[int, Executed] = {}
        self._pools = OfferedPools(
            self._send,
            self._send_if_open,
            self._call_soon,
            self._numbers,
            limits.max_fds_per_message,
            limits.max_pools,
        )
        self.queries = Queries(self._send, self._numbers, self._pools)
        self.bindings = Bindings()
        self.buffers = RemoteBuffers(
            self._send,
            self._send_if_open,
            self._call_soon,
            self._numbers,
            self._pools,
            self.bindings,
        )
        self.burst_callbacks = BurstCallbacks(self._send_if_open, self._pools)
        self.bursts = RemoteBursts(self._send, self._send_if_open, self.burst_callbacks)
        self.fences = RemoteFences(
            self._send,
            self._send_if_open,
            self._call_soon,
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
        self.bindings.most = welcome.max_bound_requests
        self._pools.most = welcome.max_pools
        return welcome

    def prepare(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        listener: PreparationListener,
        cache: SentCache = NOTHING_SENT,
    ) -> None:
        """Send a model to be prepared; ``listener`` is told.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        pools = self._pools.numbers_of(_all_shareable(model.pools))
        number = next(self._numbers)
        message = wire.PrepareModel(
            number,
            replace(model, pools=()),
            pools,
            preference,
            priority,
            deadline,
            cache.info,
        )
        self._send(message, cache.fds)
        self._preparing[number] = listener
        listener.link_to_death(self, number)

    def prepare_from_cache(
        self, deadline: int | None, cache: SentCache, listener: PreparationListener
    ) -> None:
        """Have a model prepared from its cache; ``listener`` is told.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        number = next(self._numbers)
        message = wire.PrepareModelFromCache(number, cache.info, deadline)
        self._send(message, cache.fds)
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
        self.bindings.release(number)
        self._send_if_open(wire.ReleasePreparedModel(number))

    def release_prepared_soon(self, number: int) -> None:
        """Release a prepared model from any thread, as a finaliser has to."""
        self._call_soon(partial(self.release_prepared, number))

    def bind(self, prepared: int, request: Request) -> int | None:
        """Give a valid request a number if it is worth it; return the number.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        if not self.bindings.is_worth_binding(prepared, request):
            return None
        number = next(self._numbers)
        pools = self._pools.numbers_of(request.pools)
        message = wire.BindRequest(
            number, prepared, request.inputs, request.outputs, pools
        )
        if len(wire.encode_given(message)) > wire.MAX_BOUND_BYTES:
            return None
        self._send(message)
        self.bindings.add(number, prepared, request)
        return number

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

    def execute_bound(
        self,
        bound: int,
        measure: int,
        deadline: int | None,
        loop_timeout: int | None,
        executed: Executed,
    ) -> int:
        """Have a request that has a number executed; otherwise like `execute`.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        number = next(self._numbers)
        self._send(wire.ExecuteBound(number, bound, measure, deadline, loop_timeout))
        self._executing[number] = executed
        return number

    def order(
        self,
        prepared: int,
        bound: int | None,
        request: Request,
        measure: int,
        deadline: int | None,
        loop_timeout: int | None,
    ) -> wire.Execute | wire.ExecuteBound:
        """Return a new order for a request, by its number if it is bound.

        :raises AsyncnnError: if its pools cannot be sent, as the driver is gone, say.
        """
        number = next(self._numbers)
        if bound is not None:
            return wire.ExecuteBound(number, bound, measure, deadline, loop_timeout)
        arguments = request.inputs, request.outputs
        pools = self._pools.numbers_of(request.pools)
        return wire.Execute(
            number, prepared, *arguments, pools, measure, deadline, loop_timeout
        )

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
        channel = self._channel
        if not channel.is_closed:
            self.fences.flush()  # they were sent before
            data = wire.encode_given(message)
            if len(data) > self._limits.max_message_bytes:
                raise ResourceExhaustedPersistentError(
                    f"a message of {len(data)} bytes is too large",
                    hint="put constants into pools",
                )
            try:
                channel.send(data, fds)
            except OSError as error:
                raise ResourceExhaustedTransientError(
                    f"a message cannot be sent: {error.strerror}"
                ) from error
        if channel.is_closed:
            raise DeviceUnavailableError(self._reason or DEAD_OBJECT)

    def _receive(self, data: memoryview, fds: list[int]) -> None:
        if fds:
            raise InvalidArgumentError("descriptors beside a message that has none")
        message = wire.decode_to_client(data)
        if type(message) is wire.Executed:  # the one that comes most often
            executed = self._executing.pop(message.execution, None)
            if executed is not None:
                self._tell(
                    executed,
                    wire.status_of(message.status),
                    message.output_shapes,
                    message.timing,
                    message.reason,
                )
        else:
            self._handle(message)

    def _handle(self, message: wire.ToClient) -> None:
        match message:
            case wire.Prepared():
                number = message.prepared
                listener = self._preparing.pop(number, None)
                if listener is not None:
                    outcome = wire.status_of(message.status), message.reason
                    self._tell(listener.done, self, number, *outcome, message.signature)
            case wire.SupportedOperations() | wire.Statistics():
                self.queries.answered(message)
            case wire.FencedDone():
                self.fences.done(message)
            case wire.Allocated():
                self.buffers.allocated(message)
            case wire.BufferCopied():
                self.buffers.copied(message)
            case wire.GetMemories():
                self.burst_callbacks.answer(message)
            case wire.BurstConfigured():
                self.bursts.configured(message.burst, wire.status_of(message.status))
            case wire.BurstEnded():
                self.bursts.ended(message.burst)
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
        self.bindings.clear()
        self.bursts.close()
        self.burst_callbacks.close()
        self.buffers.lose(reason)
        self.queries.lose(reason)
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(DeviceUnavailableError(reason))
        preparing, self._preparing = self._preparing, {}
        executing, self._executing = self._executing, {}
        status = ErrorStatus.DEVICE_UNAVAILABLE
        for number, listener in preparing.items():
            self._tell(listener.done, self, number, status, reason)
        self.fences.lose(reason)
        for executed in executing.values():
            self._tell(executed, status, (), NO_TIMING, reason)


def _all_shareable(pools: Sequence[Memory]) -> list[Memory]:
    return [shareable(memory) for memory in pools]
