"""A client that keeps the cache files of its models."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    ErrorStatus,
    ExecutionPreference,
    Handle,
    Model,
    Priority,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_cache import ModelCache
from asyncnn.runtime.prepared import PreparedModel

TOKEN = bytes(range(BYTE_SIZE_OF_CACHE_TOKEN))
OTHER_TOKEN = bytes(reversed(TOKEN))

Handles = tuple[Sequence[Handle], Sequence[Handle]]


class _Outcome(PreparedModelFuture):
    """Remembers the status that it was notified of."""

    __slots__ = ("status",)

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        assert (status is ErrorStatus.NONE) == (prepared_model is not None)
        self.status = status
        super().notify_1_3(status, prepared_model)


class CacheClient:
    """Prepares, saves and loads models through the HAL."""

    def __init__(self, device: IDevice, folder: Path) -> None:
        self.device = device
        self.folder = folder
        self.launched = ErrorStatus.NONE

    @property
    def model_file(self) -> Path:
        return self.folder / "model.cache"

    @property
    def data_file(self) -> Path:
        return self.folder / "data.cache"

    @contextmanager
    def opened(
        self, model_flags: int = os.O_RDWR, data_flags: int = os.O_RDWR
    ) -> Iterator[Handles]:
        fds = [
            os.open(path, flags | os.O_CREAT, 0o600)
            for path, flags in (
                (self.model_file, model_flags),
                (self.data_file, data_flags),
            )
        ]
        try:
            yield (Handle((fds[0],)),), (Handle((fds[1],)),)
        finally:
            for fd in fds:
                os.close(fd)

    async def prepare(
        self,
        model: Model,
        handles: Handles = ((), ()),
        token: bytes = TOKEN,
        priority: Priority = Priority.MEDIUM,
    ) -> IPreparedModel:
        """Prepare a model, which always has to work, and maybe save it."""
        callback = _Outcome()
        status = self.device.prepare_model_1_3(
            *(model, ExecutionPreference.FAST_SINGLE_ANSWER, priority, None),
            *(*handles, token, callback),
        )
        prepared = await callback
        assert status is ErrorStatus.NONE
        return prepared

    async def load(
        self, handles: Handles, token: bytes = TOKEN, deadline: int | None = None
    ) -> tuple[ErrorStatus, IPreparedModel | None]:
        """Load a model; return what the callback was told."""
        callback = _Outcome()
        launched = self.device.prepare_model_from_cache_1_3(
            deadline, *handles, token, callback
        )
        prepared = None
        with suppress(AsyncnnError):
            prepared = await callback
        assert launched in (ErrorStatus.NONE, callback.status)
        self.launched = launched
        return callback.status, prepared

    async def save_file(self, named: NamedModel, token: bytes = TOKEN) -> None:
        """Prepare a model and leave it in the files."""
        with self.opened() as handles:
            await self.prepare(named.model, handles, token)

    async def load_file(
        self, token: bytes = TOKEN
    ) -> tuple[ErrorStatus, IPreparedModel | None]:
        with self.opened() as handles:
            return await self.load(handles, token)


async def outputs_of(named: NamedModel, prepared: IPreparedModel, x: Array) -> Array:
    """Execute a prepared model whose input is ``x`` and whose output is ``y``."""
    model = PreparedModel(named, prepared, max_in_flight=1, make_array=np.empty)
    return (await model.run({"x": x}))["y"]


async def prepared_in(folder: Path, device: Device, named: NamedModel) -> PreparedModel:
    """Prepare any model in a cache, also one that `Device.prepare` keeps in none."""
    hal = await ModelCache(folder).prepare(device.hal, PrepareArguments(named.model))
    return PreparedModel(named, hal, max_in_flight=8)
