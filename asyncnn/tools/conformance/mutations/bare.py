"""A client and a burst that check nothing, so that the driver itself has to.

The client of the library refuses mutants before they are sent. What a driver does when
a client sends them all the same is seen here.
"""

import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from asyncnn import hal
from asyncnn.burst.packets import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, decode_result
from asyncnn.callbacks import ExecutionResult, SynchronousByCallback
from asyncnn.fmq import MessageQueue
from asyncnn.hal.refusals import BaseDevice, NoFencesNorBursts, PrepareArguments
from asyncnn.hal.types import ExecutionOptions
from asyncnn.service import wire
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import NotifyingExecution
from asyncnn.service.client.sent_pools import Sendable
from asyncnn.service.process import socket_address


@asynccontextmanager
async def bare_client(path: str | os.PathLike[str]) -> AsyncIterator[hal.IDevice]:
    """Connect to the driver that serves ``path`` for the length of the block."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(socket_address(path))
    peer.setblocking(False)
    connection = Connection(peer)
    try:
        await connection.greet()
        yield cast("hal.IDevice", _BareDevice(connection))
    finally:
        connection.close()


class _BareDevice(BaseDevice):
    """The part of a device that mutants are sent to; every pool must travel."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _supported(self, model: hal.Model) -> tuple[bool, ...]:
        return await self._connection.queries.supported_operations(model)

    def prepare_model_1_3(self, model: hal.Model, *call: Any) -> hal.ErrorStatus:
        """Send the model; only the callback learns what the driver makes of it."""
        listener = _Preparation(self._connection, call[-1])
        asked = PrepareArguments(model, *call[:3])
        self._connection.preparations.prepare(asked, listener)
        return hal.ErrorStatus.NONE


class _Preparation:
    """Hands the driver's answer on to a callback."""

    def __init__(
        self, connection: Connection, callback: hal.IPreparedModelCallback
    ) -> None:
        self._connection = connection
        self._callback = callback

    def link_to_death(self, cancel: Callable[[], None]) -> None:
        """Do nothing: whoever asks waits."""

    def done(self, outcome: wire.Prepared) -> None:
        self._callback.reason = outcome.reason
        status, prepared = wire.status_of(outcome.status), None
        if status is hal.ErrorStatus.NONE:
            prepared = _BarePreparedModel(self._connection, outcome.prepared)
        self._callback.notify_1_3(status, prepared)


class _BarePreparedModel(SynchronousByCallback, NoFencesNorBursts):
    """Model ``number`` of a connection; the driver frees it when this object goes."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        weakref.finalize(self, connection.release_prepared_soon, number)

    def execute_1_3(self, request: hal.Request, *call: Any) -> hal.ErrorStatus:
        """Send the request; only the callback learns what the driver makes of it."""
        *limits, callback = call
        execution = NotifyingExecution(self._connection, request, Sendable())
        execution.callback = callback
        self._connection.execute(self._number, execution, ExecutionOptions(*limits))
        return hal.ErrorStatus.NONE


@asynccontextmanager
async def bare_burst(
    prepared: hal.IPreparedModel,
    pools: Sequence[hal.Memory],
    results_length: int = DEFAULT_QUEUE_LENGTH,
) -> AsyncIterator["BareBurst"]:
    """Open a burst for the length of the block; ``pools`` are slots 0, 1, 2...

    :raises AsyncnnError: if the device does not take it.
    """
    with (
        MessageQueue.create(DATUM_BYTES, DEFAULT_QUEUE_LENGTH) as requests,
        MessageQueue.create(DATUM_BYTES, results_length) as results,
    ):
        status, context = await prepared.configure_execution_burst(
            _Pools(pools), requests.descriptor, results.descriptor
        )
        if context is None:
            raise hal.error_for(status, "a burst was refused")
        try:
            yield BareBurst(requests, results, context)
        finally:
            context.close()


class BareBurst(msgspec.Struct, frozen=True):
    """The application's ends of the queues, one packet and one answer at a time."""

    requests: MessageQueue
    results: MessageQueue
    context: hal.IBurstContext

    async def send(self, packet: bytes) -> bytes:
        """Send a packet and return the result as it came.

        :raises GeneralFailureError: if there was an answer too many before.
        :raises AsyncnnError: if the burst has ended.
        """
        if self.results.available_to_read():
            raise hal.GeneralFailureError("the last packet has a second answer")
        if not self.requests.write_nowait(packet):
            raise hal.GeneralFailureError("the packet before has not been taken")
        return await self.results.read()

    async def execute(self, packet: bytes) -> ExecutionResult:
        """Send a packet and return what its result says.

        :raises PacketError: if the result is malformed.
        :raises AsyncnnError: as `send`.
        """
        shape, timing = decode_result(await self.send(packet))
        return ExecutionResult(shape.status, shape.output_shapes, timing)

    def free_memory(self, slot: int) -> None:
        """Have the driver forget a slot, known or not."""
        self.context.free_memory(slot)


class _Pools(hal.IBurstCallback):
    """An application that knows the first few slots."""

    def __init__(self, pools: Sequence[hal.Memory]) -> None:
        self._pools = pools

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[hal.ErrorStatus, tuple[hal.Memory, ...]]:
        if not all(0 <= slot < len(self._pools) for slot in slots):
            return hal.ErrorStatus.INVALID_ARGUMENT, ()
        return hal.ErrorStatus.NONE, tuple(self._pools[slot] for slot in slots)
