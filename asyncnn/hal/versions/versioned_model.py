"""A prepared model for callers of every version.

Source: 1.0, 1.2 and 1.3/IPreparedModel.hal.
"""

from typing import TypeAlias

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import (
    IDescribed,
    IExecutionCallback,
    IPreparedModel,
    ISavable,
)
from asyncnn.hal.refusals import forwarding, refuse_execution
from asyncnn.hal.types import (
    ErrorStatus,
    HalVersion,
    Handle,
    MeasureTiming,
    Model,
    OutputShapes,
    Request,
    Timing,
)
from asyncnn.hal.validate import RequestRules
from asyncnn.hal.versions import v1_0, v1_2
from asyncnn.hal.versions.convert import canonical_request, convert_status

_V1_2 = HalVersion.V1_2

OldCallback: TypeAlias = v1_0.IExecutionCallback | v1_2.IExecutionCallback
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

    def __init__(self, callback: OldCallback) -> None:
        super().__init__()
        self._callback = callback
        callback.link_to_death(self.die)

    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        """Pass on what such a callback understands."""
        callback = self._callback
        callback.unlink_to_death()
        callback.reason = self.reason
        told = convert_status(status, _V1_2)
        if isinstance(callback, v1_0.IExecutionCallback):
            callback.notify(told)
        else:
            callback.notify_1_2(told, output_shapes, timing)
