"""A device for callers of every version.

Source: 1.0 to 1.3/IDevice.hal.
"""

from collections.abc import Sequence
from typing import TypeAlias, cast

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import (
    IBuffer,
    IDevice,
    IPreparedModel,
    IPreparedModelCallback,
)
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    CacheArguments,
    ForwardingDevice,
    PrepareArguments,
    forwarding,
    refuse_preparation,
)
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    Handle,
    Model,
    Priority,
)
from asyncnn.hal.validate import validate_model
from asyncnn.hal.versions import v1_0, v1_1, v1_2
from asyncnn.hal.versions.convert import (
    AnyModel,
    canonical_model,
    convert_capabilities,
    convert_status,
)
from asyncnn.hal.versions.versioned_model import VersionedPreparedModel

_NO_CACHE = CacheArguments()

OldCallback: TypeAlias = v1_0.IPreparedModelCallback | v1_2.IPreparedModelCallback
"""A callback that knows no status of HAL 1.3."""


class VersionedDevice(BaseDevice, ForwardingDevice):
    """Offers every method of HAL 1.0 to 1.3; ``canonical`` does the work.

    Models that come through an older method have to be valid in its version, and their
    callbacks get a `VersionedPreparedModel` and the statuses of that version.
    """

    def __init__(self, canonical: IDevice) -> None:
        self.canonical = canonical

    def _inner(self) -> IDevice:
        return self.canonical

    get_status = forwarding(IDevice.get_status)
    prepare_model_from_cache_1_3 = forwarding(IDevice.prepare_model_from_cache_1_3)

    def get_capabilities(self) -> tuple[ErrorStatus, v1_0.Capabilities]:
        """Return the performance for two kinds of data (1.0)."""
        status, capabilities = self._capabilities(HalVersion.V1_0)
        return status, cast("v1_0.Capabilities", capabilities)

    def get_capabilities_1_1(self) -> tuple[ErrorStatus, v1_1.Capabilities]:
        """Return the performance for three kinds of data."""
        status, capabilities = self._capabilities(HalVersion.V1_1)
        return status, cast("v1_1.Capabilities", capabilities)

    def get_capabilities_1_2(self) -> tuple[ErrorStatus, v1_2.Capabilities]:
        """Return the performance by operand type."""
        status, capabilities = self._capabilities(HalVersion.V1_2)
        return status, cast("v1_2.Capabilities", capabilities)

    def _capabilities(self, version: HalVersion) -> tuple[ErrorStatus, object]:
        status, capabilities = self.canonical.get_capabilities_1_3()
        return convert_status(status, version), convert_capabilities(
            capabilities, version
        )

    def is_caching_supported(self) -> tuple[ErrorStatus, bool]:
        """Return whether models can be saved in one file of each kind.

        Source: the first draft of HAL 1.2, which had no other caches.
        """
        status, *counts = self.get_number_of_cache_files_needed()
        return status, status is ErrorStatus.NONE and counts == [1, 1]

    async def get_supported_operations(
        self, model: v1_0.Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run (1.0)."""
        return await self._supported_operations(model, HalVersion.V1_0)

    async def get_supported_operations_1_1(
        self, model: v1_1.Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run."""
        return await self._supported_operations(model, HalVersion.V1_1)

    async def get_supported_operations_1_2(
        self, model: v1_2.Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run."""
        return await self._supported_operations(model, HalVersion.V1_2)

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation of the main subgraph, whether it would run."""
        return await self._supported_operations(model, HalVersion.V1_3)

    async def _supported_operations(
        self, model: AnyModel, version: HalVersion
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        newest = canonical_model(model)
        try:
            validate_model(newest, version)
        except AsyncnnError as error:
            return error.status, ()
        status, supported = await self.canonical.get_supported_operations_1_3(newest)
        return convert_status(status, version), supported

    def prepare_model(
        self, model: v1_0.Model, callback: v1_0.IPreparedModelCallback | None
    ) -> ErrorStatus:
        """Launch the preparation of a model for fast single answers (1.0)."""
        preference = ExecutionPreference.FAST_SINGLE_ANSWER
        return self._prepare_older(model, HalVersion.V1_0, preference, callback)

    def prepare_model_1_1(
        self,
        model: v1_1.Model,
        preference: ExecutionPreference,
        callback: v1_0.IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model."""
        return self._prepare_older(model, HalVersion.V1_1, preference, callback)

    def prepare_model_1_2(
        self,
        model: v1_2.Model,
        preference: ExecutionPreference,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: v1_2.IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model, and maybe write it to cache files."""
        cache = CacheArguments(model_cache, data_cache, token)
        return self._prepare_older(model, HalVersion.V1_2, preference, callback, cache)

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        """Launch it, unless an operation came after HAL 1.3."""
        validate_model(asked.model, HalVersion.V1_3)
        return asked.by(self.canonical, callback)

    def _prepare_older(
        self,
        model: AnyModel,
        version: HalVersion,
        preference: ExecutionPreference,
        callback: OldCallback | None,
        cache: CacheArguments = _NO_CACHE,
    ) -> ErrorStatus:
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        newest = canonical_model(model)
        adapted = _AdaptedPreparation(callback, newest)
        asked = PrepareArguments(newest, preference, Priority.MEDIUM, None, cache)
        try:
            validate_model(newest, version)
        except AsyncnnError as error:
            return refuse_preparation(adapted, error)
        return convert_status(asked.by(self.canonical, adapted), version)

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: v1_2.IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model from its cache files (1.2)."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        adapted = _AdaptedPreparation(callback, None)
        status = self.canonical.prepare_model_from_cache_1_3(
            None, model_cache, data_cache, token, adapted
        )
        return convert_status(status, HalVersion.V1_2)

    async def _allocate(self, asked: AllocateArguments) -> tuple[IBuffer, int]:
        models = [
            model.canonical if isinstance(model, VersionedPreparedModel) else model
            for model in asked.prepared_models
        ]
        return await asked._replace(prepared_models=models).by(self.canonical)


class _AdaptedPreparation(IPreparedModelCallback):
    """Stands for a callback of an older version; its death is that one's, too."""

    __slots__ = ("_callback", "_model")

    def __init__(self, callback: OldCallback, model: Model | None) -> None:
        super().__init__()
        self._callback = callback
        self._model = model
        callback.link_to_death(self.die)

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        """Pass on what such a callback understands."""
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = self.reason
        prepared = None
        if prepared_model is not None:
            prepared = VersionedPreparedModel(prepared_model, self._model)
        told = convert_status(status, HalVersion.V1_2)
        if isinstance(callback, v1_0.IPreparedModelCallback):
            callback.notify(told, prepared)
        else:
            callback.notify_1_2(told, prepared)
