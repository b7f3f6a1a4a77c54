"""The device that runs every operation with the NumPy kernels, in this process."""

import logging
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from asyncnn._version import __version__
from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.devices import process_wide
from asyncnn.devices.capabilities import reference_capabilities
from asyncnn.devices.prepared import ReferencePreparedModel
from asyncnn.devices.settings import DeviceSettings
from asyncnn.devices.support import supported_by_kernels
from asyncnn.devices.work import PrepareWork
from asyncnn.engine import Program
from asyncnn.errors import AsyncnnError, MissedDeadlinePersistentError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.refusals import NoCachesNorDomains
from asyncnn.hal.types import (
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Handle,
    Model,
    Priority,
)
from asyncnn.hal.validate import (
    validate_execution_preference,
    validate_model,
    validate_priority,
)
from asyncnn.qos import Scheduler

logger = logging.getLogger(__name__)


class ReferenceDevice(NoCachesNorDomains):
    """An `IDevice` for every operation that has a kernel. Use as a context manager.

    Plans run on one worker thread, preparations on another; callbacks fire on the
    event loop in which the context was entered. Leaving the context ends whatever is
    pending with DEVICE_UNAVAILABLE. Compilation caching and memory domains are not
    offered.
    """

    name = "asyncnn-reference"

    def __init__(self, settings: DeviceSettings | None = None) -> None:
        self._settings = settings or DeviceSettings()
        self._executions: Scheduler | None = None
        self._preparations: Scheduler | None = None

    async def __aenter__(self) -> Self:
        limit = self._settings.max_pending
        self._executions = Scheduler("asyncnn-lane", max_pending=limit)
        self._preparations = Scheduler("asyncnn-prepare", max_pending=limit)
        process_wide.hold(self._settings)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._executions is not None
        assert self._preparations is not None
        try:
            await self._preparations.aclose()
            await self._executions.aclose()
        finally:
            process_wide.release()

    def get_status(self) -> DeviceStatus:
        """Return AVAILABLE while the device is open."""
        is_open = self._executions is not None and not self._executions.is_closed
        return DeviceStatus.AVAILABLE if is_open else DeviceStatus.OFFLINE

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the version of asyncnn."""
        return ErrorStatus.NONE, __version__

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return CPU."""
        return ErrorStatus.NONE, DeviceType.CPU

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the same capabilities for every operand type."""
        return ErrorStatus.NONE, reference_capabilities()

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return none."""
        return ErrorStatus.NONE, ()

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation of the main subgraph, whether it has a kernel."""
        try:
            validate_model(model)
        except AsyncnnError as error:
            logger.info("model refused: %s", error)
            return error.status, ()
        return ErrorStatus.NONE, supported_by_kernels(model)

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return 0 and 0: models are not cached."""
        return ErrorStatus.NONE, 0, 0

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
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        report = partial(
            self._prepared, OneShot(callback.notify_1_3), callback, priority
        )
        try:
            validate_execution_preference(preference)
            validate_priority(priority)
            validate_model(model)
            work = PrepareWork(model, Priority(priority), deadline, report)
            self._scheduler(self._preparations).submit(work)
        except AsyncnnError as error:
            report(error)
            # A deadline that has passed is an outcome, not an error of the call.
            missed = isinstance(error, MissedDeadlinePersistentError)
            return ErrorStatus.NONE if missed else error.status
        cancel = self._scheduler(self._preparations).cancel
        callback.link_to_death(
            partial(cancel, work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        )
        return ErrorStatus.NONE

    def _scheduler(self, scheduler: Scheduler | None) -> Scheduler:
        if scheduler is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return scheduler

    def _prepared(
        self,
        notify: OneShot[[ErrorStatus, IPreparedModel | None]],
        callback: IPreparedModelCallback,
        priority: Priority,
        outcome: Program | AsyncnnError,
    ) -> None:
        callback.unlink_to_death()
        if isinstance(outcome, AsyncnnError):
            logger.info("preparation failed: %s: %s", outcome.status.name, outcome)
            callback.reason = str(outcome)
            notify(outcome.status, None)
            return
        prepared = ReferencePreparedModel(
            outcome,
            self._scheduler(self._executions),
            Priority(priority),
            self._settings.inline_below_us * 1000,
        )
        notify(ErrorStatus.NONE, prepared)
