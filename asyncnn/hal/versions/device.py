"""A device for callers of every version, and its prepared models.

Source: 1.0 to 1.3/IDevice.hal; 1.0, 1.2 and 1.3/IPreparedModel.hal.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import (
    IBuffer,
    IDescribed,
    IDevice,
    IExecutionCallback,
    IPreparedModel,
    IPreparedModelCallback,
    ISavable,
)
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    CacheArguments,
    ForwardingDevice,
    PrepareArguments,
    forwarding,
    refuse_execution,
    refuse_preparation,
)
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    Handle,
    MeasureTiming,
    Model,
    OutputShapes,
    Priority,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules, validate_model
from asyncnn.hal.versions import v1_0, v1_1, v1_2
from asyncnn.hal.versions.convert import (
    AnyModel,
    canonical_model,
    canonical_request,
    convert_capabilities,
    convert_status,
)

_V1_2 = HalVersion.V1_2

OldExecutionCallback: TypeAlias = v1_0.IExecutionCallback | v1_2.IExecutionCallback
"""A callback that knows no status of HAL 1.3."""


class VersionedPreparedModel:
    """Offers every method of HAL 1.0 to 1.3; ``canonical`` does the work.

    Before HAL 1.2 output dimensions have to be known from model and request, as there
    is no way to report them. A ``model`` that came from a cache is None, as nobody has
    seen it; then the signature of an `IDescribed` counts.
    """

    def __init__(self, canonical: IPreparedModel, model: Model | None) -> None:
        self.canonical = canonical
        if model is None and isinstance(canonical, IDescribed):
            model = canonical.signature
        self._rules_of_1_0 = None if model is None else RequestRules(model)

    def _inner(self) -> IPreparedModel:
        return self.canonical

    execute_1_3 = forwarding(IPreparedModel.execute_1_3)
    execute_synchronously_1_3 = forwarding(IPreparedModel.execute_synchronously_1_3)
    execute_fenced = forwarding(IPreparedModel.execute_fenced)
    configure_execution_burst = forwarding(IPreparedModel.configure_execution_burst)

    def execute(
        self, request: v1_0.Request, callback: v1_0.IExecutionCallback | None
    ) -> ErrorStatus:
        """Launch an execution through HAL 1.0, which reports nothing but its status."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        newest = canonical_request(request)
        adapted = _AdaptedExecution(callback)
        try:
            if self._rules_of_1_0 is not None:
                self._rules_of_1_0.check(newest, allow_unspecified_output=False)
        except AsyncnnError as error:
            return convert_status(refuse_execution(adapted, error), HalVersion.V1_0)
        return self._execute(newest, MeasureTiming.NO, adapted)

    def execute_1_2(
        self,
        request: v1_0.Request,
        measure: MeasureTiming,
        callback: v1_2.IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution through HAL 1.2."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        adapted = _AdaptedExecution(callback)
        return self._execute(canonical_request(request), measure, adapted)

    def _execute(
        self, request: Request, measure: MeasureTiming, callback: IExecutionCallback
    ) -> ErrorStatus:
        status = self.canonical.execute_1_3(request, measure, None, None, callback)
        return convert_status(status, _V1_2)

    async def execute_synchronously(
        self, request: v1_0.Request, measure: MeasureTiming
    ) -> tuple[ErrorStatus, OutputShapes, Timing]:
        """Execute through HAL 1.2 and return status, output shapes and timing."""
        newest = canonical_request(request)
        status, shapes, timing = await self.canonical.execute_synchronously_1_3(
            newest, measure, None, None
        )
        return convert_status(status, _V1_2), shapes, timing

    async def save_to_cache(
        self, model_cache: Handle, data_cache: Handle, token: bytes
    ) -> ErrorStatus:
        """Save the model; see `ISavable.save_to_cache` (first draft of 1.2)."""
        if not isinstance(self.canonical, ISavable):
            return ErrorStatus.GENERAL_FAILURE
        status = await self.canonical.save_to_cache(model_cache, data_cache, token)
        return convert_status(status, _V1_2)


class _AdaptedExecution(IExecutionCallback):
    """Stands for a callback of an older version."""

    __slots__ = ("_callback",)

    def __init__(self, callback: OldExecutionCallback) -> None:
        super().__init__()
        self._callback = callback
        callback.link_to_death(self.die)

    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = self.reason
        converted = convert_status(status, _V1_2)
        if isinstance(callback, v1_0.IExecutionCallback):
            callback.notify(converted)
        else:
            callback.notify_1_2(converted, output_shapes, timing)


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
        return self._capabilities(HalVersion.V1_0)

    def get_capabilities_1_1(self) -> tuple[ErrorStatus, v1_1.Capabilities]:
        """Return the performance for three kinds of data."""
        return self._capabilities(HalVersion.V1_1)

    def get_capabilities_1_2(self) -> tuple[ErrorStatus, v1_2.Capabilities]:
        """Return the performance by operand type."""
        return self._capabilities(HalVersion.V1_2)

    def _capabilities(self, version: HalVersion) -> tuple[ErrorStatus, Any]:
        status, newest = self.canonical.get_capabilities_1_3()
        return convert_status(status, version), convert_capabilities(newest, version)

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
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = self.reason
        prepared = None
        if prepared_model is not None:
            prepared = VersionedPreparedModel(prepared_model, self._model)
        converted = convert_status(status, HalVersion.V1_2)
        if isinstance(callback, v1_0.IPreparedModelCallback):
            callback.notify(converted, prepared)
        else:
            callback.notify_1_2(converted, prepared)
