"""Caching as the first draft of HAL 1.2 had it, on top of what was released.

The draft had one file of each kind, and saved models that were prepared before.
"""

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.errors import AsyncnnError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    Handle,
    Model,
    Priority,
)


def is_caching_supported(device: IDevice) -> tuple[ErrorStatus, bool]:
    """Return whether the device saves models in one file of each kind."""
    status, *counts = device.get_number_of_cache_files_needed()
    return status, status is ErrorStatus.NONE and counts == [1, 1]


async def save_to_cache(
    device: IDevice,
    model: Model,
    model_cache: Handle,
    data_cache: Handle,
    token: bytes,
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
    priority: Priority = Priority.MEDIUM,
) -> ErrorStatus:
    """Prepare a model, save it, and return NONE once it can be loaded."""
    caches = (model_cache,), (data_cache,)
    saving = PreparedModelFuture()
    device.prepare_model_1_3(model, preference, priority, None, *caches, token, saving)
    try:
        await saving
        loading = PreparedModelFuture()
        device.prepare_model_from_cache_1_3(None, *caches, token, loading)
        await loading
    except AsyncnnError as error:
        return error.status
    return ErrorStatus.NONE
