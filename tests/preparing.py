"""Preparations by the HAL's own call, where most of its arguments are as usual."""

from collections.abc import Sequence
from typing import Any

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Model, Priority


def launch_preparation(
    device: Any,
    model: Model,
    callback: Any,
    preference: Any = ExecutionPreference.FAST_SINGLE_ANSWER,
    priority: Any = Priority.MEDIUM,
    deadline: int | None = None,
    handles: Sequence[Any] = ((), ()),
    token: bytes = bytes(32),
) -> ErrorStatus:
    """Launch a preparation; return what the call itself does."""
    options = preference, priority, deadline
    status: ErrorStatus = device.prepare_model_1_3(
        model, *options, *handles, token, callback
    )
    return status


async def prepared_by(device: Any, model: Model, **options: Any) -> IPreparedModel:
    """Prepare a model; ``options`` are those of `launch_preparation`."""
    callback = PreparedModelFuture()
    launch_preparation(device, model, callback, **options)
    return await callback
