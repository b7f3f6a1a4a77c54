"""The device that runs every operation with the NumPy kernels, in this process."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from asyncnn._version import __version__
from asyncnn.burst import OpenBursts
from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.devices import process_wide
from asyncnn.devices.buffers import Buffers
from asyncnn.devices.cache import (
    DATA_FILES,
    MODEL_FILES,
    Compiled,
    ModelCaches,
    Prepare,
)
from asyncnn.devices.capabilities import known_capabilities
from asyncnn.devices.fenced import FencedExecutions
from asyncnn.devices.prepared import ReferencePreparedModel
from asyncnn.devices.resting import return_free_memory
from asyncnn.devices.settings import DeviceSettings
from asyncnn.devices.statistics import (
    ClientStatistics,
    DeviceStatistics,
    resident_bytes,
)
from asyncnn.devices.support import supported_by_kernels
from asyncnn.devices.work import PrepareWork
from asyncnn.errors import AsyncnnError, MissedDeadlinePersistentError
from asyncnn.extensions import Extensions
from asyncnn.hal.interfaces import IBuffer, IPreparedModel
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
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
from asyncnn.qos import Scheduler, calling_client
from asyncnn.tracing import Layer, Phase, span
from asyncnn.vlog import MODEL

logger = logging.getLogger(__name__)


class ReferenceDevice:
    """An `IDevice` for every operation that has a kernel. Use as a context manager.

    Plans run on one worker thread, preparations on another; callbacks fire on the
    event loop in which the context was entered. Leaving the context ends whatever is
    pending with DEVICE_UNAVAILABLE.
    """

    name = "asyncnn-reference"

    def __init__(self, settings: DeviceSettings | None = None) -> None:
        self._settings = settings or DeviceSettings()
        self._executions: Scheduler | None = None
        self._preparations: Scheduler | None = None
        self._fenced: FencedExecutions | None = None
        self._extensions = Extensions(self._settings.extensions)
        self._capabilities = known_capabilities(self._settings.capabilities_file)
        self._bursts = OpenBursts(self._settings.max_bursts)
        self._buffers = Buffers(self._settings.max_buffer_bytes)
        self._caches = ModelCaches(
            self._settings.cache_key_file,
            may_map=self._settings.maps_cache_files,
            extensions=self._extensions,
        )
        self._models: WeakValueDictionary[int, ReferencePreparedModel] = (
            WeakValueDictionary()
        )
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._executions = Scheduler(
            "asyncnn-lane",
            max_pending=settings.max_pending,
            policy=settings.policy,
            stuck_after_s=settings.stuck_after_s,
        )
        self._preparations = Scheduler(
            "asyncnn-prepare", max_pending=settings.max_pending, policy=settings.policy
        )
        self._executions.rest_after(settings.idle_after_s, self._rest)
        self._preparations.rest_after(settings.idle_after_s, self._rest)
        self._fenced = FencedExecutions(
            self._executions, max_waiting=settings.max_waiting
        )
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
        assert self._fenced is not None
        try:
            await self._preparations.aclose()
            self._fenced.close()
            await self._executions.aclose()
            self._bursts.close()
            self._buffers.close()
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
        """Return what was measured of this machine, or else the CPU's capabilities."""
        return ErrorStatus.NONE, self._capabilities

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return those of its settings."""
        return ErrorStatus.NONE, self._extensions.described()

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation of the main subgraph, whether it has a kernel."""
        try:
            validate_model(model)
        except AsyncnnError as error:
            logger.info("model refused: %s", error)
            return error.status, ()
        return ErrorStatus.NONE, supported_by_kernels(self._extensions.resolved(model))

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return 1 and 1."""
        return ErrorStatus.NONE, MODEL_FILES, DATA_FILES

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

        def order() -> Prepare:
            validate_execution_preference(preference)
            validate_priority(priority)
            with span("validate", Layer.DRIVER, Phase.PREPARATION):
                validate_model(model)
            MODEL("prepare", operations=len(model.main.operations), priority=priority)
            settings = ExecutionPreference(preference), Priority(priority)
            return self._caches.preparation(
                model, *settings, model_cache, data_cache, token
            )

        return self._launch_preparation(order, priority, deadline, callback)

    def prepare_model_from_cache_1_3(
        self,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the loading; see `IDevice.prepare_model_from_cache_1_3`.

        The model gets the preference and the priority that it was saved with.
        """
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        order = partial(self._caches.loading, model_cache, data_cache, token)
        return self._launch_preparation(order, Priority.MEDIUM, deadline, callback)

    def _launch_preparation(
        self,
        order: Callable[[], Prepare],
        priority: Priority,
        deadline: int | None,
        callback: IPreparedModelCallback,
    ) -> ErrorStatus:
        report = partial(
            self._prepared,
            OneShot(callback.notify_1_3),
            callback,
            calling_client.get().number,
        )
        try:
            work = PrepareWork(order(), Priority(priority), deadline, report)
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

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[IPreparedModel | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, IBuffer | None, int]:
        """Allocate a buffer; see `IDevice.allocate`."""
        models = [
            model.buffers if type(model) is ReferencePreparedModel else None
            for model in prepared_models
        ]
        try:
            buffer, token = self._buffers.allocate(
                desc, models, input_roles, output_roles
            )
        except AsyncnnError as error:
            logger.info("no buffer allocated: %s", error)
            return error.status, None, 0
        return ErrorStatus.NONE, buffer, token

    def statistics(self) -> DeviceStatistics:
        """Return what the device does and has done since its context was entered.

        Executions that were refused before they were scheduled are not counted.
        """
        executions = self._scheduler(self._executions)
        preparations = self._scheduler(self._preparations)
        survey = executions.survey()
        clients = {*executions.clients(), *preparations.clients()}
        return DeviceStatistics(
            device=self.name,
            threads=executions.threads + preparations.threads,
            resident_bytes=resident_bytes(),
            preparations=preparations.statistics(),
            executions=survey.of_all(),
            models=tuple(
                model.statistics(number, survey)
                for number, model in sorted(self._models.items())
            ),
            clients=tuple(
                ClientStatistics(
                    number=client.number,
                    name=client.name,
                    weight=client.weight,
                    executions=survey.of_client(client),
                    buffer_bytes=self._buffers.used_bytes(client),
                )
                for client in sorted(clients, key=lambda client: client.number)
            ),
        )

    async def get_statistics(self) -> DeviceStatistics:
        """Return `statistics`; see `IMeasured`."""
        return self.statistics()

    def _rest(self) -> None:
        """Give back what is held for work that does not come."""
        assert self._executions is not None
        assert self._preparations is not None
        self._preparations.retire()
        models = tuple(self._models.values())
        resting = [model for model in models if not model.stays_ready]
        if len(resting) == len(models):
            self._executions.retire()
        for model in resting:
            model.trim()
        self._bursts.rest(resting)
        self._buffers.rest()
        return_free_memory()

    def _scheduler(self, scheduler: Scheduler | None) -> Scheduler:
        if scheduler is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return scheduler

    def _prepared(
        self,
        notify: OneShot[[ErrorStatus, IPreparedModel | None]],
        callback: IPreparedModelCallback,
        client: int,
        outcome: Compiled | AsyncnnError,
    ) -> None:
        callback.unlink_to_death()
        if isinstance(outcome, AsyncnnError):
            logger.info("preparation failed: %s: %s", outcome.status.name, outcome)
            callback.reason = str(outcome)
            notify(outcome.status, None)
            return
        assert self._fenced is not None
        prepared = ReferencePreparedModel(
            outcome.program,
            self._scheduler(self._executions),
            self._fenced,
            self._bursts,
            self._buffers,
            outcome.priority,
            self._settings,
            client=client,
            stays_ready=outcome.preference is ExecutionPreference.SUSTAINED_SPEED,
        )
        self._models[next(self._numbers)] = prepared
        notify(ErrorStatus.NONE, prepared)
