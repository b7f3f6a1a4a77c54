"""A driver in another process, as an `IDevice`."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection
from typing import Self

import msgspec

from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.deadlines import DEADLINE_GRACE_S, check_grace
from asyncnn.devices.cache_files import check_unchanged
from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    NoDriverError,
)
from asyncnn.hal.interfaces import IBuffer
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    CacheArguments,
    DeviceFacts,
    FactualDevice,
    LoadArguments,
    PrepareArguments,
)
from asyncnn.hal.routes import Route
from asyncnn.hal.types import DeviceStatus, ErrorStatus, Model
from asyncnn.hal.validate import validate_model
from asyncnn.hal.validate.buffers import plan_buffer
from asyncnn.input_files import in_one, offload_abandonable
from asyncnn.memory.pages import os_errors
from asyncnn.offload import offload
from asyncnn.service import wire
from asyncnn.service.channel import inline_packet
from asyncnn.service.client.asking import NOTHING_SENT, SentCache, to_send
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import RemotePreparedModel
from asyncnn.service.client.sent_pools import allocate_remote
from asyncnn.service.limits import is_large
from asyncnn.service.process import is_abstract, peer_of, socket_address

logger = logging.getLogger(__name__)


GREETING_TIMEOUT_S = 10.0
"""How long a driver may take to accept a client and to greet it."""

_RETRY_S = 0.005

_TURNS = 8
"""Parts of the time to answer in: if this process was stopped, or its loop busy, one of
them has passed, and in the next ones it hears what was said meanwhile.
"""


class RemoteDevice(BaseDevice, FactualDevice):
    """The device that a `Server` publishes at ``path``. Use as a context manager.

    When the driver dies, everything that is pending ends with DEVICE_UNAVAILABLE, and
    so does every later call. Models and data are shown only to a driver of this user,
    of root, or of one of ``driver_uids``.

    A preparation or execution with a deadline ends ``deadline_grace`` seconds after
    that even if the driver does not answer, because it was stopped, say.

    :raises InvalidArgumentError: if ``deadline_grace`` is negative.
    :raises InvalidArgumentError: on entering, if ``path`` cannot be a socket's.
    :raises NoDriverError: on entering, if no driver that may be trusted serves
        ``path``, or it does not greet within ``greeting_timeout`` seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        driver_uids: Collection[int] = (),
        greeting_timeout: float = GREETING_TIMEOUT_S,
        deadline_grace: float = DEADLINE_GRACE_S,
    ) -> None:
        self._path = path
        self._driver_uids = frozenset({os.geteuid(), 0, *driver_uids})
        self._greeting_timeout = greeting_timeout
        self._deadline_grace = check_grace(deadline_grace)
        self._connection: Connection | None = None
        self.pid = 0
        self.hangs = False

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._greeting_timeout):
                await self._greet()
        except TimeoutError:
            raise NoDriverError(
                f"the driver at {os.fspath(self._path)} does not answer"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        connection = self._open()
        connection.close()
        await connection.wait_ended()

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why the device takes no work any more; see `IMortal`."""
        return None if self._connection is None else self._connection.cause_of_death()

    @property
    def is_lost(self) -> bool:
        """Whether the driver is gone or the device was closed."""
        return self._open().is_closed

    async def wait_lost(self) -> str:
        """Wait until the driver is gone or the device is closed; return why."""
        connection = self._open()
        await connection.wait_closed()
        return connection.reason

    @property
    def is_awaited(self) -> bool:
        """Whether a call waits for the driver, or may, as there is a burst."""
        return self._open().is_awaited

    async def answers(self, within_s: float) -> bool:
        """Return whether the driver answers a newcomer within so many seconds.

        What is before this client's own calls in its turn does not keep that waiting.
        One that cannot be asked, as its socket was removed, is taken to answer.
        """
        asking = asyncio.ensure_future(self._answers())
        try:
            for _ in range(_TURNS):
                await asyncio.wait({asking}, timeout=within_s / _TURNS)
                if asking.done():
                    return asking.result()
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        return False

    async def _answers(self) -> bool:
        loop = asyncio.get_running_loop()
        hello = wire.encode_flat(wire.Hello(wire.PROTOCOL_VERSION))
        try:
            with await _connect(self._path) as peer:
                if peer_of(peer).pid != self.pid:  # it has left its place
                    return False
                peer.send(inline_packet(hello))
                await loop.sock_recv(peer, 1)
        except (AsyncnnError, OSError):
            pass
        return True

    def give_up(self, reason: str) -> None:
        """Take the driver for lost: it ``hangs``."""
        self.hangs = True
        self._open().abandon(f"process {self.pid} {reason}")

    async def _greet(self) -> None:
        peer = await _connect(self._path)
        self.pid, uid = peer_of(peer)
        if uid not in self._driver_uids:
            peer.close()
            raise NoDriverError(
                f"the driver at {os.fspath(self._path)} belongs to user {uid}",
                hint="driver_uids says which users' drivers may be trusted",
            )
        connection = Connection(
            peer,
            # Drivers of these users can read all memory of this process anyway.
            may_see_slabs=uid in (os.geteuid(), 0),
            deadline_grace=self._deadline_grace,
        )
        try:
            await connection.greet()
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return self._connection

    @property
    def label(self) -> str:
        """What distinguishes the driver from others: its device, and its process.

        The process's number is 0 if it is in another namespace than this one.
        """
        return f"{self.published}-{self.pid}"

    @property
    def published(self) -> str:
        """The name of the device that the driver publishes."""
        return self._open().facts.device_name.removeprefix("asyncnn-")

    @property
    def seals_caches(self) -> bool:
        """Whether model caches of the driver show that they were changed."""
        return self._open().facts.seals_caches

    def _facts(self) -> DeviceFacts:
        """Return what the driver's device has said."""
        return msgspec.convert(self._open().facts, DeviceFacts, from_attributes=True)

    def usual_route(self, prepared: object) -> Route | None:
        """Return how executions of a prepared model go; see `IRouting`."""
        if isinstance(prepared, RemotePreparedModel):
            return prepared.usual_route
        return None

    def get_status(self) -> DeviceStatus:
        """Return OFFLINE if the driver is gone, and what it last reported otherwise."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return DeviceStatus.OFFLINE
        return DeviceStatus.BUSY if connection.is_busy else DeviceStatus.AVAILABLE

    async def get_statistics(self) -> DeviceStatistics:
        """Ask the driver, which shows others only to its own user; see `IMeasured`.

        :raises GeneralFailureError: if its device keeps no statistics.
        :raises DeviceUnavailableError: if the driver is gone.
        """
        return await self._open().queries.statistics()

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return the driver's numbers."""
        return ErrorStatus.NONE, *self._open().cache_files

    async def _supported(self, model: Model) -> tuple[bool, ...]:
        connection = self._open()
        connection.check_open()
        if is_large(model):
            await offload(validate_model, model)
        else:
            validate_model(model)
        return await connection.queries.supported_operations(model)

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        # Validated here, so that the call returns what the HAL demands. The driver does
        # not trust its clients, and validates the model again.
        connection = self._open()
        asked.validate()
        connection.check_open()
        preparation = _PreparationEnd(connection, callback, asked.model)
        sent = self._cache_to_write(asked.cache)
        connection.preparations.prepare(asked, preparation, sent)
        return ErrorStatus.NONE

    def _cache_to_write(self, cache: CacheArguments) -> SentCache:
        if not cache.model_cache and not cache.data_cache:
            return NOTHING_SENT
        try:
            return to_send(*cache, self._open().cache_files)
        except AsyncnnError as error:
            logger.warning("a model is not cached: %s", error)
            return NOTHING_SENT

    def _load(
        self, asked: LoadArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        connection = self._open()
        connection.check_open()
        sent = to_send(*asked.cache, connection.cache_files)
        if connection.facts.seals_caches:
            # The driver does as well, but its answer comes after this returns.
            check_unchanged(sent.fds[0], sent.info.token)
        preparation = _PreparationEnd(connection, callback, None)
        connection.preparations.prepare_from_cache(asked.deadline, sent, preparation)
        return ErrorStatus.NONE

    async def _allocate(self, asked: AllocateArguments) -> tuple[IBuffer, int]:
        # The driver checks once more.
        connection, (desc, prepared_models, *roles) = self._open(), asked
        own = [
            model
            for model in prepared_models
            if type(model) is RemotePreparedModel and model.is_on(connection)
        ]
        connection.check_open()
        if len(own) < len(prepared_models):
            raise InvalidArgumentError("a prepared model is not of this device")
        plan_buffer(desc, [(model, model.signature) for model in own], *roles)
        numbers = [model.number for model in own]
        of = connection, connection.known, desc, numbers
        return await allocate_remote(*of, *roles)


class _PreparationEnd(msgspec.Struct, frozen=True, eq=False):
    """What happens when the driver has prepared a model, or has not."""

    _connection: Connection
    _callback: IPreparedModelCallback
    _model: Model | None

    def link_to_death(self, cancel: Callable[[], None]) -> None:
        self._callback.link_to_death(cancel)

    def done(self, outcome: wire.Prepared) -> None:
        connection, callback = self._connection, self._callback
        callback.unlink_to_death()
        notify = OneShot(callback.notify_1_3)
        status, reason = wire.status_of(outcome.status), outcome.reason
        number, model = outcome.prepared, self._model or outcome.signature
        if status is ErrorStatus.NONE and model is not None:
            prepared = RemotePreparedModel(connection, number, model, outcome.route)
            notify(status, prepared)
            return
        if status is ErrorStatus.NONE:
            connection.release_prepared(number)
            status, reason = ErrorStatus.GENERAL_FAILURE, "the model has no signature"
        callback.reason = reason
        notify(status, None)


async def _connect(path: str | os.PathLike[str]) -> socket.socket:
    address = socket_address(path)
    with os_errors("no driver can be reached"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        while True:
            try:
                if is_abstract(path):
                    connection.connect(address)
                else:
                    connecting = in_one(connection.connect, address)
                    await offload_abandonable(f"connecting to {address}", connecting)
            except BlockingIOError:
                # Its backlog is full; a socket of this family cannot be waited for.
                await asyncio.sleep(_RETRY_S)
            else:
                return connection
    except OSError as error:
        connection.close()
        raise NoDriverError(
            f"no driver at {address}: {error.strerror or error}",
            hint="start one with: asyncnn serve --socket PATH",
        ) from error
    except BaseException:
        connection.close()
        raise
