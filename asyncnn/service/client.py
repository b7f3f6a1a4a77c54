"""A driver in another process, as an `IDevice`."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.errors import AsyncnnError, DeviceUnavailableError, InvalidArgumentError
from asyncnn.hal.interfaces import IBuffer, IPreparedModel
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Handle,
    Model,
    Priority,
)
from asyncnn.hal.validate import (
    validate_execution_preference,
    validate_model,
    validate_priority,
)
from asyncnn.service import wire
from asyncnn.service.connection import Connection
from asyncnn.service.remote import RemotePreparedModel

logger = logging.getLogger(__name__)


class RemoteDevice:
    """The device that a `Server` publishes at ``path``. Use as a context manager.

    When the driver dies, everything that is pending ends with DEVICE_UNAVAILABLE, and
    so does every later call.

    :raises DeviceUnavailableError: on entering, if no driver serves ``path``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._connection: Connection | None = None
        self._welcome: wire.Welcome | None = None

    async def __aenter__(self) -> Self:
        connection = Connection(await _connect(self._path))
        try:
            self._welcome = await connection.greet()
        except BaseException:
            connection.close("the greeting failed")
            raise
        self._connection = connection
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open().close("the device is closed")

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return self._connection

    def _facts(self) -> wire.Welcome:
        if self._welcome is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return self._welcome

    def get_status(self) -> DeviceStatus:
        """Return AVAILABLE while the driver lives."""
        is_open = self._connection is not None and not self._connection.is_closed
        return DeviceStatus.AVAILABLE if is_open else DeviceStatus.OFFLINE

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the driver's version."""
        return ErrorStatus.NONE, self._facts().driver_version

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of the driver's hardware."""
        return ErrorStatus.NONE, self._facts().device_type

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the driver's capabilities."""
        return ErrorStatus.NONE, self._facts().capabilities

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the driver's extensions."""
        return ErrorStatus.NONE, self._facts().extensions

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return the driver's numbers."""
        facts = self._facts()
        return ErrorStatus.NONE, facts.model_cache_files, facts.data_cache_files

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Ask the driver; see `IDevice.get_supported_operations_1_3`."""
        try:
            validate_model(model)
            return await self._open().supported_operations(model)
        except AsyncnnError as error:
            logger.info("supported operations not known: %s", error)
            return error.status, ()

    def prepare_model_1_3(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of ``model``; see `IDevice.prepare_model_1_3`.

        The model is validated here, so that the call returns what the HAL demands, and
        again by the driver, which does not trust us.
        """
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        connection = self._open()
        try:
            validate_execution_preference(preference)
            validate_priority(priority)
            validate_model(model)
            connection.prepare(
                model, preference, priority, deadline, _Preparation(callback, model)
            )
        except AsyncnnError as error:
            callback.reason = str(error)
            OneShot(callback.notify_1_3)(error.status, None)
            return error.status
        return ErrorStatus.NONE

    def prepare_model_from_cache_1_3(
        self,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Fail with GENERAL_FAILURE: models are not cached."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        callback.reason = "the device does not cache models"
        OneShot(callback.notify_1_3)(ErrorStatus.GENERAL_FAILURE, None)
        return ErrorStatus.GENERAL_FAILURE

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[IPreparedModel | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, IBuffer | None, int]:
        """Fail with GENERAL_FAILURE: the device has no memory domains."""
        return ErrorStatus.GENERAL_FAILURE, None, 0


class _Preparation:
    """What happens when the driver has prepared a model, or has not."""

    def __init__(self, callback: IPreparedModelCallback, model: Model) -> None:
        self._notify = OneShot(callback.notify_1_3)
        self._callback = callback
        self._model = model

    def link_to_death(self, connection: Connection, number: int) -> None:
        """Release the model in the driver if nobody waits for it any more."""
        self._callback.link_to_death(lambda: connection.cancel_preparation(number))

    def done(
        self, connection: Connection, number: int, status: ErrorStatus, reason: str
    ) -> None:
        """Notify the callback."""
        callback = self._callback
        callback.unlink_to_death()
        if status is not ErrorStatus.NONE:
            callback.reason = reason
            self._notify(status, None)
        elif callback.is_dead:
            connection.release_prepared(number)
        else:
            self._notify(status, RemotePreparedModel(connection, number, self._model))


async def _connect(path: str) -> socket.socket:
    """Connect to the socket at ``path``.

    :raises DeviceUnavailableError: if no driver listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        with contextlib.suppress(BlockingIOError):
            await asyncio.get_running_loop().sock_connect(connection, path)
    except OSError as error:
        connection.close()
        raise DeviceUnavailableError(
            f"no driver at {path}: {error.strerror or error}",
            hint="start one with: asyncnn serve --socket PATH",
        ) from error
    except BaseException:
        connection.close()
        raise
    if not path:
        raise InvalidArgumentError("the path of the socket is empty")
    return connection
