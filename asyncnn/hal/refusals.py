"""Refusals, and base classes of what does not do everything by itself.

What one does not offer is refused as the HAL demands it, unless it is overridden. What
one that wraps another leaves to that is passed on.
"""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import msgspec

from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    failure_of,
)
from asyncnn.hal.interfaces import (
    IBuffer,
    IBurstCallback,
    IBurstContext,
    IDevice,
    IExecutionCallback,
    IFencedExecutionCallback,
    IPreparedModel,
    IPreparedModelCallback,
    ISyncFence,
    OneShot,
    error_of,
    hal_hints,
    has_measured_capabilities,
)
from asyncnn.hal.performance import kernel_capabilities
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    NO_TIMING,
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Handle,
    MeasureTiming,
    Model,
    Priority,
    Request,
)
from asyncnn.hal.validate import (
    validate_execution_preference,
    validate_model,
    validate_priority,
)

logger = logging.getLogger(__name__)

_NO_BUFFER = "the device has allocated no buffer"


def status_of_launch(error: AsyncnnError) -> ErrorStatus:
    """Return the status of a call whose callback is notified of ``error``.

    A deadline that has passed is an outcome, not an error of the call.
    """
    missed = isinstance(error, MissedDeadlinePersistentError)
    return ErrorStatus.NONE if missed else error.status


def refuse_preparation(
    callback: IPreparedModelCallback, error: AsyncnnError
) -> ErrorStatus:
    """Notify of an error of the launch; return the status that the call returns."""
    callback.reason = str(error)
    OneShot(callback.notify_1_3)(error.status, None)
    return status_of_launch(error)


def refuse_execution(callback: IExecutionCallback, error: AsyncnnError) -> ErrorStatus:
    """Notify of an error of the launch, likewise."""
    callback.reason = str(error)
    OneShot(callback.notify_1_3)(error.status, (), NO_TIMING)
    return status_of_launch(error)


P = ParamSpec("P")
T = TypeVar("T")


def forwarding(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """Return ``method`` of an interface as one that calls ``_inner()``'s."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return getattr(self._inner(), method.__name__)(*args, **kwargs)

    @wraps(method)
    async def call_and_wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await call(self, *args, **kwargs)

    is_awaited = inspect.iscoroutinefunction(method)
    return call_and_wait if is_awaited else call  # type: ignore[return-value]


class ForwardingDevice(ABC):
    """The part of an `IDevice` that says what another device is."""

    @abstractmethod
    def _inner(self) -> IDevice:
        """Return the device that is asked."""

    get_version_string = forwarding(IDevice.get_version_string)
    get_type = forwarding(IDevice.get_type)
    get_capabilities_1_3 = forwarding(IDevice.get_capabilities_1_3)
    get_supported_extensions = forwarding(IDevice.get_supported_extensions)
    get_number_of_cache_files_needed = forwarding(
        IDevice.get_number_of_cache_files_needed
    )


class DeviceFacts(msgspec.Struct, frozen=True):
    """What a device says of itself, which does not change while it lives."""

    driver_version: str
    device_type: DeviceType
    capabilities: Capabilities
    extensions: tuple[Extension, ...]
    hal_hints: dict[str, str]
    has_measured_capabilities: bool
    kernel_capabilities: Capabilities | None

    @classmethod
    def of(cls, device: IDevice) -> Self:
        """Ask a device."""
        return cls(
            device.get_version_string()[1],
            device.get_type()[1],
            device.get_capabilities_1_3()[1],
            device.get_supported_extensions()[1],
            hal_hints(device),
            has_measured_capabilities(device),
            kernel_capabilities(device),
        )


class FactualDevice(ABC):
    """The part of an `IDevice` that says what another one has once said."""

    @abstractmethod
    def _facts(self) -> DeviceFacts:
        """Return what that was."""

    @property
    def hal_hints(self) -> dict[str, str]:
        """What the other device makes of hints of the HAL, in words."""
        return self._facts().hal_hints

    @property
    def has_measured_capabilities(self) -> bool:
        """Whether the other device's capabilities were measured."""
        return self._facts().has_measured_capabilities

    @property
    def kernel_capabilities(self) -> Capabilities | None:
        """What the other device has measured of its kernels."""
        return self._facts().kernel_capabilities

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the other device's version."""
        return ErrorStatus.NONE, self._facts().driver_version

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of the other device's hardware."""
        return ErrorStatus.NONE, self._facts().device_type

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the other device's capabilities."""
        return ErrorStatus.NONE, self._facts().capabilities

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the other device's extensions."""
        return ErrorStatus.NONE, self._facts().extensions


class CacheArguments(NamedTuple):
    """Cache files as a call gives them; they are the caller's to close."""

    model_cache: Sequence[Handle] = ()
    data_cache: Sequence[Handle] = ()
    token: bytes = bytes(BYTE_SIZE_OF_CACHE_TOKEN)


_NO_CACHE = CacheArguments()


class LoadArguments(NamedTuple):
    """The arguments of `IDevice.prepare_model_from_cache_1_3`, but for the callback."""

    deadline: int | None
    cache: CacheArguments

    def by(self, device: IDevice, callback: IPreparedModelCallback) -> ErrorStatus:
        """Have ``device`` launch the preparation."""
        return device.prepare_model_from_cache_1_3(self.deadline, *self.cache, callback)


class PrepareArguments(NamedTuple):
    """The arguments of `IDevice.prepare_model_1_3`, but for the callback."""

    model: Model
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    deadline: int | None = None
    cache: CacheArguments = _NO_CACHE

    def by(self, device: IDevice, callback: IPreparedModelCallback) -> ErrorStatus:
        """Have ``device`` launch the preparation."""
        model, preference, priority, deadline, cache = self
        return device.prepare_model_1_3(
            model, preference, priority, deadline, *cache, callback
        )

    def validate(self, *, runtime_only_features: bool = False) -> None:
        """Check all but the deadline; see `validate_model`.

        :raises InvalidArgumentError: if a rule is broken.
        """
        validate_execution_preference(self.preference)
        validate_priority(self.priority)
        validate_model(self.model, runtime_only_features=runtime_only_features)


class AllocateArguments(NamedTuple):
    """The arguments of `IDevice.allocate`."""

    desc: BufferDesc
    prepared_models: Sequence[IPreparedModel | None]
    input_roles: Sequence[BufferRole]
    output_roles: Sequence[BufferRole]

    async def by(self, device: IDevice) -> tuple[IBuffer, int]:
        """Have ``device`` allocate the buffer.

        :raises AsyncnnError: of its status, if it does not.
        """
        status, buffer, token = await device.allocate(*self)
        if status is not ErrorStatus.NONE:
            raise error_of(device, status, f"{_NO_BUFFER}: {status.name}")
        if buffer is None:
            raise GeneralFailureError(_NO_BUFFER)
        return buffer, token


class BurstArguments(NamedTuple):
    """The arguments of `IPreparedModel.configure_execution_burst`."""

    callback: IBurstCallback | None
    request_channel: Handle
    result_channel: Handle


def checked_descriptors(cache: CacheArguments, needed: tuple[int, int]) -> list[int]:
    """Return the descriptors of a call: so many models', then so many of data.

    :raises InvalidArgumentError: if they are others, none can be, or the token is none.
    """
    model_cache, data_cache, token = cache
    handles = (*model_cache, *data_cache)
    counts = len(model_cache), len(data_cache)
    if counts != needed or any(len(handle.fds) != 1 for handle in handles):
        raise InvalidArgumentError(
            f"{counts[0]} model and {counts[1]} data cache files, but {needed[0]} and "
            f"{needed[1]} with one descriptor each are needed"
        )
    if len(token) != BYTE_SIZE_OF_CACHE_TOKEN:
        raise InvalidArgumentError(f"a cache token of {len(token)} bytes")
    fds = [handle.fds[0] for handle in handles]
    if any(fd < 0 for fd in fds):
        raise InvalidArgumentError("a cache file's descriptor is negative")
    return fds


class BaseDevice:
    """The part of an `IDevice` that takes models and buffers, or says why it does not.

    The callback is notified of what `_prepare` and `_load` raise. The call returns its
    status, as it does of what `_supported` and `_allocate` raise. A device has these,
    or calls of its own in place of those that use them.
    """

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        """Launch a preparation, and return what the call does."""
        raise GeneralFailureError("the device does not prepare models")

    def _load(
        self, asked: LoadArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        """Launch a preparation from a cache; likewise."""
        raise GeneralFailureError("the device does not cache models")

    async def _supported(self, model: Model) -> tuple[bool, ...]:
        """Return, for each operation of the main subgraph, whether it would run."""
        raise GeneralFailureError("the device does not prepare models")

    async def _allocate(self, asked: AllocateArguments) -> tuple[IBuffer, int]:
        """Allocate a buffer, and return it with its token."""
        raise GeneralFailureError("the device has no memory domains")

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return which would run; see `IDevice.get_supported_operations_1_3`."""
        try:
            return ErrorStatus.NONE, await self._supported(model)
        except AsyncnnError as error:
            logger.info("supported operations not known: %s", error)
            return error.status, ()

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[IPreparedModel | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, IBuffer | None, int]:
        """Allocate a buffer; see `IDevice.allocate`."""
        asked = AllocateArguments(desc, prepared_models, input_roles, output_roles)
        try:
            buffer, token = await self._allocate(asked)
        except AsyncnnError as error:
            logger.info("no buffer allocated: %s", error)
            return error.status, None, 0
        return ErrorStatus.NONE, buffer, token

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
        """Launch the preparation of ``model``; see `IDevice.prepare_model_1_3`."""
        cache = CacheArguments(model_cache, data_cache, token)
        asked = PrepareArguments(model, preference, priority, deadline, cache)
        return _launched(self._prepare, asked, callback)

    def prepare_model_from_cache_1_3(
        self,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the loading; see `IDevice.prepare_model_from_cache_1_3`."""
        cache = CacheArguments(model_cache, data_cache, token)
        return _launched(self._load, LoadArguments(deadline, cache), callback)


def _launched(
    launch: Callable[[T, IPreparedModelCallback], ErrorStatus],
    asked: T,
    callback: IPreparedModelCallback | None,
) -> ErrorStatus:
    if callback is None:
        return ErrorStatus.INVALID_ARGUMENT
    try:
        return launch(asked, callback)
    except (AsyncnnError, MemoryError) as error:
        return refuse_preparation(callback, failure_of(error))


class NoCachesNorDomains(BaseDevice):
    """The part of an `IDevice` that caches no models and has no memory domains."""

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return 0 and 0: models are not cached."""
        return ErrorStatus.NONE, 0, 0


class NoFencesNorBursts:
    """The part of an `IPreparedModel` that has no fences and no message queues."""

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, ISyncFence | None, IFencedExecutionCallback | None]:
        """Refuse: this device has no fences."""
        return ErrorStatus.GENERAL_FAILURE, None, None

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Refuse: this device has no message queues."""
        return ErrorStatus.GENERAL_FAILURE, None
