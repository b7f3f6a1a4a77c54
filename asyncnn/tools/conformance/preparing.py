"""Prepares the model of a case as a caller of any HAL version does, or from a cache.

Whatever the version, what comes back is an `IPreparedModel`, so that the ways of
executing need not know; its calls go through the methods of that version.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

from asyncnn import hal
from asyncnn.callbacks import PreparedModelFuture, launched_preparation
from asyncnn.hal.refusals import CacheArguments, LoadArguments, PrepareArguments
from asyncnn.hal.versions import (
    VersionedDevice,
    VersionedPreparedModel,
    compliant_with,
    convert_to,
    v1_0,
    v1_1,
    v1_2,
)
from asyncnn.runtime.framework.older_executions import on_answer_in
from asyncnn.tools.conformance.vectors import Case

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
        return lambda model: launched_preparation(device, PrepareArguments(model))
    versioned = VersionedDevice(device)
    return lambda model: _prepare_old(versioned, model, version)


def through_cache(device: hal.IDevice) -> hal.IDevice:
    """Return ``device``, but with models that were saved and loaded again.

    A model that cannot be loaded is refused.
    """
    return cast("hal.IDevice", _CachingDevice(device))


async def _prepare_old(
    device: VersionedDevice, model: hal.Model, version: hal.HalVersion
) -> hal.IPreparedModel:
    future = PreparedModelFuture()

    def take(status: hal.ErrorStatus, prepared: VersionedPreparedModel | None) -> None:
        future.reason = answer.reason
        old = None if prepared is None else _OldPreparedModel(prepared, version)
        future.notify_1_3(status, old)

    answer: Any = on_answer_in(version, take)
    match convert_to(model, version):
        case v1_0.Model() as converted:
            device.prepare_model(converted, answer)
        case v1_1.Model() as converted:
            device.prepare_model_1_1(converted, _PREFERENCE, answer)
        case v1_2.Model() as converted:
            device.prepare_model_1_2(converted, _PREFERENCE, (), (), _NO_TOKEN, answer)
    return await future


class _OldPreparedModel(VersionedPreparedModel):
    """A prepared model whose canonical calls take the way of an older version."""

    def __init__(
        self, prepared: VersionedPreparedModel, version: hal.HalVersion
    ) -> None:
        super().__init__(prepared.canonical, None)
        self._prepared = prepared
        self._version = version

    def execute_1_3(self, request: hal.Request, *call: Any) -> hal.ErrorStatus:
        """Execute by `execute` or `execute_1_2`."""
        measure, _, _, callback = call

        def take(
            status: hal.ErrorStatus,
            shapes: tuple[hal.OutputShape, ...] = (),
            timing: hal.Timing = hal.NO_TIMING,
        ) -> None:
            callback.reason = answer.reason
            callback.notify_1_3(status, shapes, timing)

        answer: Any = on_answer_in(self._version, take)
        old = _old_request(request, self._version)
        if self._version < hal.HalVersion.V1_2:
            return self._prepared.execute(old, answer)
        return self._prepared.execute_1_2(old, measure, answer)

    async def execute_synchronously_1_3(
        self, request: hal.Request, measure: hal.MeasureTiming, *limits: int | None
    ) -> tuple[hal.ErrorStatus, tuple[hal.OutputShape, ...], hal.Timing]:
        """Execute by `execute_synchronously`."""
        old = _old_request(request, self._version)
        return await self._prepared.execute_synchronously(old, measure)


def _old_request(request: hal.Request, version: hal.HalVersion) -> v1_0.Request:
    old = convert_to(request, version)
    assert isinstance(old, v1_0.Request)
    return old


class _CachingDevice:
    def __init__(self, device: hal.IDevice) -> None:
        self._device = device
        self._running: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def prepare_model_1_3(self, model: hal.Model, *call: Any) -> hal.ErrorStatus:
        """Save the model, then load it; what is given to save it in is not used."""
        *asked, _, _, _, callback = call
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        task = asyncio.create_task(
            self._load(PrepareArguments(model, *asked), callback)
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return hal.ErrorStatus.NONE

    async def _load(
        self, asked: PrepareArguments, callback: hal.IPreparedModelCallback
    ) -> None:
        prepared, status = None, hal.ErrorStatus.NONE
        _, *counts = self._device.get_number_of_cache_files_needed()
        with ExitStack() as files:
            models, data = (_cache_files(files, count) for count in counts)
            cache = CacheArguments(models, data, _TOKEN)
            try:
                await launched_preparation(self._device, asked._replace(cache=cache))
                loading = LoadArguments(asked.deadline, cache)
                prepared = await launched_preparation(self._device, loading)
            except hal.AsyncnnError as error:
                callback.reason, status = str(error), error.status
        callback.notify_1_3(status, prepared)


def _cache_files(files: ExitStack, count: int) -> list[hal.Handle]:
    """Return files that nobody else has, to be closed with ``files``."""
    fds = [os.memfd_create("asyncnn-cache", os.MFD_CLOEXEC) for _ in range(count)]
    for fd in fds:
        files.callback(os.close, fd)
    return [hal.Handle((fd,)) for fd in fds]
