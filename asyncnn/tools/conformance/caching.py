"""A device whose models all come from a cache, for the cases to run on."""

import os
import weakref
from collections.abc import Sequence
from typing import cast

from asyncnn.callbacks import IPreparedModelCallback
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    Handle,
    Model,
    Priority,
)

_TOKEN = bytes(range(32))


def through_cache(device: IDevice) -> IDevice:
    """Return ``device``, but with models that were saved and loaded again.

    A model that cannot be loaded is refused.
    """
    return cast("IDevice", _CachingDevice(device))


class _CachingDevice:
    def __init__(self, device: IDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

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
        """Save the model, then load it; what is given to save it in is not used."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        saving = _Saving(self._device, deadline, callback)
        return self._device.prepare_model_1_3(
            model, preference, priority, deadline, *saving.caches, _TOKEN, saving
        )


class _Saving(IPreparedModelCallback):
    """Waits for a model to be saved in files that nobody else has."""

    __slots__ = ("__weakref__", "_callback", "_deadline", "_device", "caches")

    def __init__(
        self, device: IDevice, deadline: int | None, callback: IPreparedModelCallback
    ) -> None:
        super().__init__()
        _, models, data = device.get_number_of_cache_files_needed()
        self._device = device
        self._deadline = deadline
        self._callback = callback
        self.caches = self._files(models), self._files(data)

    def _files(self, count: int) -> list[Handle]:
        fds = [os.memfd_create("asyncnn-cache", os.MFD_CLOEXEC) for _ in range(count)]
        for fd in fds:
            weakref.finalize(self, os.close, fd)
        return [Handle((fd,)) for fd in fds]

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        """Load what was saved, or pass on why there is nothing."""
        if status is not ErrorStatus.NONE:
            self._callback.reason = self.reason
            self._callback.notify_1_3(status, None)
            return
        loading = _Loading(self, self._callback)
        self._device.prepare_model_from_cache_1_3(
            self._deadline, *self.caches, _TOKEN, loading
        )


class _Loading(IPreparedModelCallback):
    """Passes on what was loaded; until then it keeps the files open."""

    __slots__ = ("_callback", "_saving")

    def __init__(self, saving: _Saving, callback: IPreparedModelCallback) -> None:
        super().__init__()
        self._saving: _Saving | None = saving
        self._callback = callback

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        """Notify the one who waits for the model."""
        self._saving = None
        self._callback.reason = self.reason
        self._callback.notify_1_3(status, prepared_model)
