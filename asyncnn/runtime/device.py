"""The awaitable face of a device."""

import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Model,
    Priority,
)
from asyncnn.runtime.deadlines import deadline_after
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import RemoteDevice, Supervision
from asyncnn.service.process import running_driver
from asyncnn.service.supervisor import supervised as supervise

DEFAULT_MAX_IN_FLIGHT = 256

_OPENERS: dict[
    str, Callable[[DeviceSettings], AbstractAsyncContextManager[IDevice]]
] = {"reference": ReferenceDevice}


def device_names() -> tuple[str, ...]:
    """Return the names that `open_device` knows, the default one first."""
    return tuple(_OPENERS)


@asynccontextmanager
async def open_device(
    name: str = "reference",
    *,
    settings: DeviceSettings | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
) -> AsyncIterator["Device"]:
    """Open a device in this process for the length of an ``async with`` block.

    Nothing is started but worker threads; no socket, no file. Leaving the block ends
    what is still pending with `DeviceUnavailableError`.

    :param max_in_flight: runs of one prepared model that hold memory at a time; more
        wait their turn.
    :raises InvalidArgumentError: if there is no device of that name.
    """
    try:
        opener = _OPENERS[name]
    except KeyError:
        raise InvalidArgumentError(
            f"there is no device {name!r}", hint=f"known: {', '.join(_OPENERS)}"
        ) from None
    async with opener(settings or DeviceSettings()) as hal_device:
        yield Device(name, hal_device, max_in_flight=max_in_flight)


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    supervised: bool | Supervision = False,
    driver_uids: Collection[int] = (),
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
) -> AsyncIterator["Device"]:
    """Connect to the driver process that serves ``path``, for an ``async with`` block.

    Without a path, a driver of one's own is started and ends with the block. The
    device is used like any other. If the driver dies, everything that is pending ends
    with `DeviceUnavailableError`. So does what is asked for later, unless the
    connection is supervised: then it is made again, after the driver was restarted if
    it is one's own, and prepared models go on working.

    :param supervised: settings of the supervision, or True for the usual ones.
    :param driver_uids: users besides this one and root whose drivers are trusted.
    :raises InvalidArgumentError: if ``path`` cannot be that of a socket.
    :raises DeviceUnavailableError: if no driver serves ``path``, or none starts.
    """
    link = partial(_remote, path, driver_uids)
    if supervised is False:
        opened: AbstractAsyncContextManager[IDevice] = link()
    else:
        usual = Supervision() if supervised is True else supervised
        opened = supervise(link, usual)
    async with opened as hal_device:
        yield Device(f"remote:{path or ''}", hal_device, max_in_flight=max_in_flight)


@asynccontextmanager
async def _remote(
    path: str | os.PathLike[str] | None, driver_uids: Collection[int]
) -> AsyncIterator[RemoteDevice]:
    if path is not None:
        async with RemoteDevice(path, driver_uids=driver_uids) as device:
            yield device
        return
    async with running_driver() as driver, RemoteDevice(driver.path) as device:
        yield device


class Device:
    """Wraps any `IDevice`; ``hal`` is the device itself."""

    def __init__(
        self, name: str, hal: IDevice, *, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    ) -> None:
        self.name = name
        self.hal = hal
        self._max_in_flight = max_in_flight

    @property
    def version(self) -> str:
        """Version string of the driver."""
        return self.hal.get_version_string()[1]

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self.hal.get_type()[1]

    @property
    def capabilities(self) -> Capabilities:
        """Performance relative to the CPU."""
        return self.hal.get_capabilities_1_3()[1]

    async def prepare(
        self,
        model: NamedModel | Model,
        *,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
    ) -> PreparedModel:
        """Prepare ``model`` for execution.

        Cancelling the call cancels the preparation. A bare `Model` gets the names
        ``input_0``, ``output_0`` and so on.

        :param timeout: seconds from now until the deadline of the preparation.
        :raises InvalidArgumentError: if the model breaks a rule of the HAL.
        :raises GeneralFailureError: if an operation is not supported.
        :raises AsyncnnError: for any other status of the driver.
        """
        named = model if isinstance(model, NamedModel) else _numbered(model)
        callback = PreparedModelFuture()
        self.hal.prepare_model_1_3(
            named.model,
            preference,
            priority,
            deadline_after(timeout),
            (),
            (),
            bytes(BYTE_SIZE_OF_CACHE_TOKEN),
            callback,
        )
        prepared = await callback
        return PreparedModel(named, prepared, max_in_flight=self._max_in_flight)

    def __repr__(self) -> str:
        return f"<Device {self.name} {self.hal.get_status().name}>"


def _numbered(model: Model) -> NamedModel:
    return NamedModel.of(
        model,
        [f"input_{k}" for k in range(len(model.main.input_indexes))],
        [f"output_{k}" for k in range(len(model.main.output_indexes))],
    )
