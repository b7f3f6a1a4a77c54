"""Prepares the model of a case as a caller of any HAL version does, or from a cache.

Whatever the version, what comes back is an `IPreparedModel`, so that the ways of
executing need not know; its calls go through the methods of that version.
"""

import os
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

from asyncnn import hal
from asyncnn.callbacks import PreparedModelFuture
from asyncnn.hal.versions import (
    VersionedDevice,
    VersionedPreparedModel,
    compliant_with,
    convert_to,
    v1_0,
    v1_1,
    v1_2,
)
from asyncnn.tools.conformance.vectors import Case

Told = TypeVar("Told")

Prepare: TypeAlias = Callable[[hal.Model], Awaitable[hal.IPreparedModel]]
"""Prepares a model.

:raises AsyncnnError: if the device does not take it.
"""

PATHS_SINCE = {
    "async": hal.HalVersion.V1_0,
    "sync": hal.HalVersion.V1_2,
    "burst": hal.HalVersion.V1_2,
    "fenced": hal.HalVersion.V1_3,
}
"""The version that brought each way of executing."""

_NO_TOKEN = bytes(hal.BYTE_SIZE_OF_CACHE_TOKEN)
_TOKEN = bytes(range(hal.BYTE_SIZE_OF_CACHE_TOKEN))
_PREFERENCE = hal.ExecutionPreference.FAST_SINGLE_ANSWER


def oldest_version(case: Case, path: str) -> hal.HalVersion:
    """Return the oldest version that can carry ``case`` by ``path``.

    Where the suite promises too much, it is the first that has all the model uses.
    """
    since = max(case.hal, PATHS_SINCE[path])
    newest = hal.HalVersion.V1_3
    for version in hal.HalVersion:
        if since <= version < newest and compliant_with(case.model, version):
            return version
    return newest


def preparing(device: hal.IDevice, version: hal.HalVersion) -> Prepare:
    """Return how a caller of ``version`` has models prepared by ``device``."""
    if version >= hal.HalVersion.V1_3:
        return lambda model: _prepare(device, model)
    versioned = VersionedDevice(device)
    return lambda model: _prepare_old(versioned, model, version)


def through_cache(device: hal.IDevice) -> hal.IDevice:
    """Return ``device``, but with models that were saved and loaded again.

    A model that cannot be loaded is refused.
    """
    return cast("hal.IDevice", _CachingDevice(device))


async def _prepare(device: hal.IDevice, model: hal.Model) -> hal.IPreparedModel:
    callback = PreparedModelFuture()
    device.prepare_model_1_3(
        model, _PREFERENCE, hal.Priority.MEDIUM, None, (), (), _NO_TOKEN, callback
    )
    return await callback


async def _prepare_old(
    device: VersionedDevice, model: hal.Model, version: hal.HalVersion
) -> hal.IPreparedModel:
    told = PreparedModelFuture()
    old = convert_to(model, version)
    match old:
        case v1_0.Model():
            device.prepare_model(old, _Prepared1_0(told))
        case v1_1.Model():
            device.prepare_model_1_1(old, _PREFERENCE, _Prepared1_0(told))
        case v1_2.Model():
            callback = _Prepared1_2(told)
            device.prepare_model_1_2(old, _PREFERENCE, (), (), _NO_TOKEN, callback)
    return await told


class _OldPreparedModel(VersionedPreparedModel):
    """A prepared model whose canonical calls take the way of an older version."""

    def __init__(
        self, prepared: VersionedPreparedModel, version: hal.HalVersion
    ) -> None:
        super().__init__(prepared.canonical, None)
        self._prepared = prepared
        self._version = version

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: hal.IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Execute by `execute` or `execute_1_2`."""
        assert callback is not None
        old = _old_request(request, self._version)
        if self._version < hal.HalVersion.V1_2:
            return self._prepared.execute(old, _Executed1_0(callback))
        return self._prepared.execute_1_2(old, measure, _Executed1_2(callback))

    async def execute_synchronously_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
    ) -> tuple[hal.ErrorStatus, tuple[hal.OutputShape, ...], hal.Timing]:
        """Execute by `execute_synchronously`."""
        old = _old_request(request, self._version)
        return await self._prepared.execute_synchronously(old, measure)


def _old_request(request: hal.Request, version: hal.HalVersion) -> v1_0.Request:
    old = convert_to(request, version)
    assert isinstance(old, v1_0.Request)
    return old


class _Relay(hal.CallbackObject, Generic[Told]):
    """Passes on to a callback of HAL 1.3 what one of an older version is told."""

    __slots__ = ("_told",)

    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told = told


class _Prepared1_0(  # noqa: N801 - as in HAL 1.0
    _Relay[PreparedModelFuture], v1_0.IPreparedModelCallback
):
    def notify(
        self, status: hal.ErrorStatus, prepared_model: VersionedPreparedModel | None
    ) -> None:
        _deliver(self._told, self.reason, status, prepared_model, hal.HalVersion.V1_1)


class _Prepared1_2(_Relay[PreparedModelFuture], v1_2.IPreparedModelCallback):  # noqa: N801
    def notify_1_2(
        self, status: hal.ErrorStatus, prepared_model: VersionedPreparedModel | None
    ) -> None:
        _deliver(self._told, self.reason, status, prepared_model, hal.HalVersion.V1_2)


def _deliver(
    told: PreparedModelFuture,
    reason: str,
    status: hal.ErrorStatus,
    prepared: VersionedPreparedModel | None,
    version: hal.HalVersion,
) -> None:
    told.reason = reason
    old = None if prepared is None else _OldPreparedModel(prepared, version)
    told.notify_1_3(status, old)


class _Executed1_0(_Relay[hal.IExecutionCallback], v1_0.IExecutionCallback):  # noqa: N801
    def notify(self, status: hal.ErrorStatus) -> None:
        self._told.reason = self.reason
        self._told.notify_1_3(status, (), hal.NO_TIMING)


class _Executed1_2(_Relay[hal.IExecutionCallback], v1_2.IExecutionCallback):  # noqa: N801
    def notify_1_2(
        self,
        status: hal.ErrorStatus,
        output_shapes: tuple[hal.OutputShape, ...],
        timing: hal.Timing,
    ) -> None:
        self._told.reason = self.reason
        self._told.notify_1_3(status, output_shapes, timing)


class _CachingDevice:
    def __init__(self, device: hal.IDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def prepare_model_1_3(
        self,
        model: hal.Model,
        preference: hal.ExecutionPreference,
        priority: hal.Priority,
        deadline: int | None,
        *caches_and_callback: Any,
    ) -> hal.ErrorStatus:
        """Save the model, then load it; what is given to save it in is not used."""
        callback = caches_and_callback[-1]
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        saving = _Saving(self._device, deadline, callback)
        return self._device.prepare_model_1_3(
            model, preference, priority, deadline, *saving.caches, _TOKEN, saving
        )


class _Saving(hal.IPreparedModelCallback):
    """Waits for a model to be saved in files that nobody else has."""

    __slots__ = ("__weakref__", "_callback", "_deadline", "_device", "caches")

    def __init__(
        self,
        device: hal.IDevice,
        deadline: int | None,
        callback: hal.IPreparedModelCallback,
    ) -> None:
        super().__init__()
        _, models, data = device.get_number_of_cache_files_needed()
        self._device = device
        self._deadline = deadline
        self._callback = callback
        self.caches = self._files(models), self._files(data)

    def _files(self, count: int) -> list[hal.Handle]:
        fds = [os.memfd_create("asyncnn-cache", os.MFD_CLOEXEC) for _ in range(count)]
        for fd in fds:
            weakref.finalize(self, os.close, fd)
        return [hal.Handle((fd,)) for fd in fds]

    def notify_1_3(
        self, status: hal.ErrorStatus, prepared_model: hal.IPreparedModel | None
    ) -> None:
        """Load what was saved, or pass on why there is nothing."""
        if status is not hal.ErrorStatus.NONE:
            self._callback.reason = self.reason
            self._callback.notify_1_3(status, None)
            return
        loading = _Loading(self, self._callback)
        self._device.prepare_model_from_cache_1_3(
            self._deadline, *self.caches, _TOKEN, loading
        )


class _Loading(hal.IPreparedModelCallback):
    """Passes on what was loaded; until then it keeps the files open."""

    __slots__ = ("_callback", "_saving")

    def __init__(self, saving: _Saving, callback: hal.IPreparedModelCallback) -> None:
        super().__init__()
        self._saving: _Saving | None = saving
        self._callback = callback

    def notify_1_3(
        self, status: hal.ErrorStatus, prepared_model: hal.IPreparedModel | None
    ) -> None:
        """Notify the one who waits for the model."""
        self._saving = None
        self._callback.reason = self.reason
        self._callback.notify_1_3(status, prepared_model)
