"""One connection of a client, on the driver's side.

Everything a client owns hangs on its session and ends with it. What it sends is not
trusted: numbers are looked up in tables of this connection, models and requests are
validated by the device, memory goes through the session's mapper.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.hal.interfaces import IDevice, IWatched, seals_caches
from asyncnn.hal.refusals import DeviceFacts
from asyncnn.hal.types import DeviceStatus, ErrorStatus
from asyncnn.logs import DRIVER
from asyncnn.memory.mapping import Mapper
from asyncnn.qos import Client, acting_for
from asyncnn.service import wire
from asyncnn.service.channel import MAX_PACKET_BYTES, Channel, ChannelBounds
from asyncnn.service.decoding import FromClient, Unread, decode_to_driver
from asyncnn.service.driver.bursts import Bursts, CallsToClient, RemoteBurstCallback
from asyncnn.service.driver.executions import Executions
from asyncnn.service.driver.fenced import FencedOrders
from asyncnn.service.driver.parts import SessionFields
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.preparations import Preparations
from asyncnn.service.driver.queries import ClientBuffers, Queries
from asyncnn.service.driver.quotas import ProcessResources, Quota, UserQuotas
from asyncnn.service.driver.reporting import NO_DESCRIPTOR, explained, log
from asyncnn.service.limits import OwnedTasks, ServiceLimits
from asyncnn.tracing import Layer, Phase, active, span

if TYPE_CHECKING:
    from asyncnn.service.driver.isolating import Isolated, Isolation
    from asyncnn.service.driver.recorder import ClientRecorder

_WITH_DESCRIPTORS = {
    wire.AnnouncePools,
    wire.ConfigureBurst,
    wire.ExecuteFenced,
    wire.ExportFence,
    wire.PrepareModel,
    wire.PrepareModelFromCache,
    wire.SaveModel,
}


_REPLACEABLE = {wire.Prepared, wire.Statistics, wire.SupportedOperations}
"""Answers that may be large, for which a short refusal can be sent instead."""


class ServedClient(msgspec.Struct, frozen=True, eq=False):
    """A client and what it may do.

    ``quotas`` are its user's, ``resources`` what its process may take of the
    driver. One that ``sees_others`` is shown the work of other clients, too. If it
    ``may_run_regions``, they are run by a device that is ``isolated``, or else by that
    of all. What it calls is noted by a ``recorder``.
    """

    client: Client
    quotas: UserQuotas
    resources: ProcessResources
    sees_others: bool = False
    may_run_regions: bool = False
    isolated: "Isolation | None" = None
    recorder: "ClientRecorder | None" = None


class ClientSession(SessionFields):
    """Serves a connection of a client. ``lost`` is called once, when it has ended."""

    def __init__(
        self,
        device: IDevice,
        connection: socket.socket,
        limits: ServiceLimits,
        mapper: Mapper,
        lost: Callable[["ClientSession"], None],
        served: ServedClient,
    ) -> None:
        client, quotas, resources = served.client, served.quotas, served.resources
        self._device = device
        self._limits = limits
        self._notify_lost = lost
        # Kept, so that the next connection of the same user finds them.
        self._quotas = quotas
        self.client_name = client.name
        self._greeted = False
        self._sent_status = DeviceStatus.AVAILABLE
        self._unwatch: Callable[[], None] = lambda: None
        self._is_released = self._has_ended = False
        self._want: ResourceExhaustedTransientError | None = None
        self._pools = AnnouncedPools(mapper, quotas.pools, self._send)
        self._models = quotas.prepared_models.table()
        self._tasks = OwnedTasks(limits.max_executions)
        isolated = served.isolated
        self._isolated = None
        if isolated is not None:
            self._isolated = _apart(isolated, limits, quotas.region_processes)
        self._may_run_regions = served.may_run_regions
        self._resources = resources
        self._recorder = served.recorder
        self._validating = resources.validating
        self._preparations = Preparations(self, quotas.prepared_models)
        self._queries = Queries(self, None if served.sees_others else client.number)
        self._calls = CallsToClient(self._send)
        self._executions = Executions(self, quotas.executions)
        self._fenced = FencedOrders(self, self._executions, quotas.fenced_executions)
        self._bursts = Bursts(self, self.burst_callback, quotas.bursts)
        self._buffers = ClientBuffers(self, quotas.buffers)
        self._descriptors = resources.descriptors(self._count_descriptors)
        self._mappings = resources.mappings(self._count_mappings)
        self._greeting = asyncio.get_running_loop().call_later(
            limits.max_greeting_s, self._greets_too_late
        )
        # The loop calls on behalf of the client, then, and tasks inherit that. Nothing
        # else refers to it, so that it is gone as soon as its process has hung up.
        with acting_for(client):
            self._channel = Channel(
                connection,
                decode_to_driver,
                self._receive if active.recorder is None else self._receive_traced,
                self._lost,
                self._channel_bounds(),
            )
        resources.reading.opened()

    def _channel_bounds(self) -> ChannelBounds:
        limits, resources = self._limits, self._resources
        return ChannelBounds(
            max_message_bytes=limits.max_message_bytes,
            max_fds=limits.max_fds_per_message,
            max_unread_bytes=limits.max_unread_bytes,
            reserve=resources.reserve,
            take_turn=resources.reading.take,
            decoding=resources.decoding,
            may_hold=self._may_hold,
        )

    def close(self) -> None:
        """Hang up and give back all that the client had."""
        if self._has_ended:
            return
        try:
            self._channel.close()
        finally:
            self._release()

    async def wait_ended(self) -> None:
        """Wait until no thread works for the client any more, once it is closed.

        What the client had is gone then.
        """
        await self._channel.wait_ended()
        await self._tasks.wait_ended()
        if self._isolated is not None:
            await self._isolated.wait_ended()
        if self._has_ended:
            return
        self._has_ended = True
        # These refer to this, and would be there until the collector looks at them.
        self._channel.close()
        del self._pools, self._preparations, self._queries, self._calls
        del self._executions, self._fenced, self._bursts, self._buffers

    def _lost(self, reason: str) -> None:
        name = self.client_name
        if self._channel.has_refused:
            log.log(logging.WARNING, "%s is hung up on: %s", name, reason)
        else:
            log.log(logging.INFO, "%s has gone: %s", name, reason)
        DRIVER("client lost", client=self.client_name, reason=reason)
        self._release()
        self._notify_lost(self)

    def burst_callback(self, number: int) -> RemoteBurstCallback:
        """Return the client's callback for burst ``number``."""
        take_turn = self._resources.reading.take_for_burst
        return RemoteBurstCallback(self._calls, self._pools, number, take_turn)

    def _release(self) -> None:
        """Close each part, whatever happens to the others."""
        self._greeting.cancel()
        if not self._is_released:
            self._is_released = True
            self._resources.reading.closed()
        with ExitStack() as parts:
            if self._isolated is not None:
                parts.callback(self._isolated.close)
            parts.callback(self._descriptors.close)
            parts.callback(self._mappings.close)
            parts.callback(self._pools.close)
            parts.callback(self._models.clear)
            parts.callback(self._tasks.cancel)
            parts.callback(self._calls.close)
            parts.callback(self._buffers.close)
            parts.callback(self._bursts.close)
            parts.callback(self._fenced.close)
            parts.callback(self._executions.close)
            parts.callback(self._preparations.close)
            parts.callback(self._unwatch)

    def _send(self, message: wire.ToClient) -> None:
        data = wire.encode_flat(message)
        try:
            if len(data) >= MAX_PACKET_BYTES and type(message) in _REPLACEABLE:
                # The driver keeps their files for a client that reads none of them.
                self._descriptors.check_room(1)
                self._channel.send(data)
                self._descriptors.update()
            else:
                self._channel.send(data)
        except OSError as error:
            reason = f"the driver cannot send the answer: {error.strerror}"
            self._send_instead(message, reason)
        except ResourceExhaustedTransientError as error:
            self._send_instead(message, str(error))

    def _send_instead(self, message: wire.ToClient, reason: str) -> None:
        if self._channel.is_closed:
            return
        status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        match message:
            case wire.SupportedOperations(call=call) if message.supported:
                self._send(wire.SupportedOperations(call, status))
            case wire.Statistics(call=call) if message.statistics is not None:
                self._send(wire.Statistics(call, status))
            case wire.Prepared(prepared=number) if message.signature is not None:
                self._preparations.release(number)
                self._send(wire.Prepared(number, status, reason))
            case _:
                # It would wait for this answer for ever.
                self._channel.abandon(reason)

    def _greets_too_late(self) -> None:
        self._send(wire.Refused("it has not greeted in time"))
        self._channel.abandon("the client has not greeted in time")

    def _count_descriptors(self) -> int:
        kept = self._pools, self._bursts, self._fenced, self._preparations
        return 1 + sum([part.descriptors for part in (*kept, self._channel)])

    def _may_hold(self, count: int) -> bool:
        """Return whether what came beside a message can be kept until it is decoded.

        Each connection may have such a message, and a process's take turns.
        """
        try:
            self._descriptors.check_room(count)
        except ResourceExhaustedTransientError as error:
            self._want = error.with_traceback(None)  # it keeps what frames refer to
            return False
        return True

    def _count_mappings(self) -> int:
        return self._pools.mappings + self._bursts.mappings

    def _receive_traced(self, message: FromClient, fds: list[int] | None) -> None:
        with span("receive", Layer.IPC, Phase.INPUTS_AND_OUTPUTS):
            self._receive(message, fds)

    def _receive(self, message: FromClient, fds: list[int] | None) -> None:
        if not self._greeted and type(message) is not wire.Hello:
            raise InvalidArgumentError("a message before the greeting")
        if isinstance(message, Unread):
            self._decline(message.message, message.error)
        elif fds is None or fds:
            if type(message) not in _WITH_DESCRIPTORS:
                raise InvalidArgumentError("descriptors beside a message that has none")
            self._receive_with_fds(message, fds)
        # The ones that come most often are looked for first.
        elif type(message) is wire.ExecuteBound or type(message) is wire.Execute:
            self._executions.execute(message)
        else:
            self._dispatch(message, ())

    def _receive_with_fds(
        self, message: wire.ToDriver, fds: Sequence[int] | None
    ) -> None:
        try:
            try:
                self._check_room(message, fds)
            except ResourceExhaustedTransientError as error:
                self._decline(message, error)
            else:
                self._dispatch(message, fds or ())
        finally:  # the process's other connections are to know what this one has
            self._descriptors.update()
            self._mappings.update()

    def _dispatch(self, message: wire.ToDriver, fds: Sequence[int]) -> None:
        if type(message) is wire.ExecuteFenced:
            self._fenced.execute(message, fds)
        elif type(message) is wire.Several:
            for each in message.messages:
                self._fenced.execute(each, ())
        else:
            self._handle(message, fds)

    def _check_room(self, message: wire.ToDriver, fds: Sequence[int] | None) -> None:
        """Check that the driver can keep what has come beside a message."""
        if fds is not None:
            self._descriptors.check_room(len(fds))
            if type(message) is wire.AnnouncePools:
                self._mappings.check_room(len(message.pools))
            # What came in the place of the reserve must not stay there.
            if not any(map(self._resources.reserve.has, fds)):
                return
        want, self._want = self._want, None
        raise want or ResourceExhaustedTransientError(NO_DESCRIPTOR)

    def _decline(
        self,
        message: wire.ToDriver | wire.WithSlices,
        error: ResourceExhaustedTransientError,
    ) -> None:
        explained(error)
        match message:
            case wire.AnnouncePools():
                self._pools.decline(message.pools, error)
            case wire.ConfigureBurst():
                self._send(wire.BurstConfigured(message.burst, error.status))
            case wire.ExecuteFenced():
                self._fenced.execute(message, (), error)
            case wire.PrepareModel() | wire.PrepareModelFromCache():
                self._preparations.decline(message.prepared, error)
            case wire.GetSupportedOperations():
                self._send(wire.SupportedOperations(message.call, error.status))
            case wire.SaveModel():
                self._send(wire.ModelSaved(message.call, error.status))
            case _:
                pass  # nobody waits for an answer

    def _handle(self, message: wire.ToDriver, fds: Sequence[int]) -> None:
        """Do what a message asks for."""
        if DRIVER.is_on:
            DRIVER("asked", client=self.client_name, call=type(message).__name__)
        match message:
            case wire.AnnouncePools():
                self._pools.announce(message.pools, fds)
            case wire.BindRequest():
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
                self._executions.forget(message.numbers)
            case wire.Allocate():
                self._buffers.allocate(message)
            case wire.CopyBufferTo() | wire.CopyBufferFrom():
                self._buffers.copy(message)
            case wire.Memories():
                self._calls.answered(message)
            case wire.PrepareModel():
                self._preparations.prepare(message, fds)
            case wire.PrepareModelFromCache():
                self._preparations.prepare_from_cache(message, fds)
            case wire.SaveModel():
                self._preparations.save(message, fds)
            case wire.ReleasePreparedModel():
                self._executions.forget_model(message.prepared)
                self._preparations.release(message.prepared)
            case wire.GetSupportedOperations():
                self._queries.supported_operations(message)
            case wire.GetStatistics():
                self._queries.statistics(message.call)
            case wire.Hello():
                self._greet(message)

    def _greet(self, message: wire.Hello) -> None:
        device = self._device
        if self._greeted:
            raise InvalidArgumentError("a second greeting")
        self._greeted = True
        self._greeting.cancel()
        _, model_files, data_files = device.get_number_of_cache_files_needed()
        facts = DeviceFacts.of(device)
        extensions = tuple(
            extension
            for extension in facts.extensions
            if self._may_run_regions or extension.name not in DECLARED
        )
        self._send(
            wire.Welcome(
                version=wire.PROTOCOL_VERSION,
                device_name=str(getattr(device, "name", "")),
                model_cache_files=model_files,
                data_cache_files=data_files,
                max_bound_requests=self._limits.max_bound_requests,
                max_pools=self._limits.max_pools,
                max_pool_bytes=self._limits.max_pool_bytes,
                seals_caches=seals_caches(device),
                **asdict(replace(facts, extensions=extensions)),
            )
        )
        if message.version != wire.PROTOCOL_VERSION:
            raise InvalidArgumentError(
                f"the client speaks version {message.version} of the protocol, "
                f"the driver {wire.PROTOCOL_VERSION}"
            )
        if isinstance(device, IWatched):
            self._status_changed(device.get_status())
            self._unwatch = device.watch_status(self._status_changed)

    def _status_changed(self, status: DeviceStatus) -> None:
        if status is not self._sent_status:
            self._sent_status = status
            self._send(wire.StatusChanged(status))


def _apart(
    isolated: "Isolation", limits: ServiceLimits, processes: Quota
) -> "Isolated":
    # A driver that runs regions itself has no use for it.
    from asyncnn.service.driver.isolating import Isolated

    return Isolated(isolated, limits.max_bursts, processes)
