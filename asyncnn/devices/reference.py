"""Devices that run models in this process, and the one that has only NumPy kernels."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

from asyncnn import __version__, pacing
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.devices import process_wide
from asyncnn.devices.cache_files import DATA_FILES, MODEL_FILES
from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.caching import ModelCaches, Prepare
from asyncnn.devices.device_buffers import HAL_HINTS, Buffers
from asyncnn.devices.device_settings import FOR_ENGINES, DeviceSettings, warn_of_unused
from asyncnn.devices.fenced import FencedExecutions
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    known_capabilities,
    measurement_at_opening,
)
from asyncnn.devices.preparations import NewShapes, PrepareWork
from asyncnn.devices.prepared import DeviceParts, InProcessPreparedModel
from asyncnn.devices.releasing import ModelReleaser
from asyncnn.devices.statistics import (
    ClientStatistics,
    DeviceStatistics,
    StatusListeners,
    resident_bytes,
)
from asyncnn.devices.support import supporting
from asyncnn.engine.delegation import Delegate
from asyncnn.engine.job import LanePort
from asyncnn.extensions import Extensions
from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError, ForkedError
from asyncnn.hal.interfaces import IBuffer, IPreparedModel
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    LoadArguments,
    PrepareArguments,
    status_of_launch,
)
from asyncnn.hal.types import (
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Model,
    Priority,
)
from asyncnn.hal.validate import validating
from asyncnn.logs import COMPILATION, DRIVER, MEMORY, MODEL
from asyncnn.offload import offload_steps
from asyncnn.pacing import Steps
from asyncnn.qos import Scheduler, calling_client
from asyncnn.qos.watching import IdleTimer
from asyncnn.tracing import Layer, Phase, span

if TYPE_CHECKING:
    from asyncnn.devices.batching import BatchPreparations

logger = logging.getLogger(__name__)

SUSTAINED_IDLE = 30
"""Models for SUSTAINED_SPEED are ready for so many times longer than others."""


class InProcessDevice(BaseDevice):
    """An `IDevice` that runs models in this process. Use as a context manager.

    It has every operation that has a kernel; a delegate computes parts in place of the
    kernels. Plans run on `usual_lanes` threads; others make them for new shapes, and
    prepare models. Callbacks fire on the event loop that entered the context. Leaving
    it ends whatever is pending with DEVICE_UNAVAILABLE, and waits for what runs to come
    to a boundary, for ``stuck_after_s`` at most. Cancelling that leaves it to go on by
    itself.

    With ``runtime_only_features`` it also takes models that a driver need not: a
    framework's own device, which has to compute what no driver does. A model that was
    validated before is known again: validate large ones on a thread.
    """

    name: str
    unused_settings: tuple[str, ...] = ()
    """Fields of `DeviceSettings` that have no effect."""
    hal_hints: Mapping[str, str] = HAL_HINTS
    seals_caches: bool = True

    def __init__(
        self,
        settings: DeviceSettings | None = None,
        *,
        runtime_only_features: bool = False,
    ) -> None:
        self._settings = settings or DeviceSettings()
        self._runtime_only_features = runtime_only_features
        self._entered: DeviceParts | None = None
        self._extensions = Extensions(self._settings.extensions)
        self._measured: CapabilityMeasurement | None = None
        self.kernel_capabilities: Capabilities | None = None
        self._bursts = OpenBursts(self._settings.max_bursts)
        self._buffers = Buffers(self._settings.max_buffer_bytes, self.cause_of_death)
        self._models = WeakValueDictionary[int, InProcessPreparedModel]()
        self._numbers = count(1)
        self._status_listeners = StatusListeners(self.get_status)
        self._closing: asyncio.Task[None] | None = None
        self._batches: BatchPreparations | None = None
        if self._settings.batching > 1:
            from asyncnn.devices import batching

            limit = process_wide.blas_threads_limited(self._settings.blas_threads)
            self._batches = batching.BatchPreparations(
                self._settings.batching,
                self._settings.policy.slice_ns,
                self._settings.max_run_bytes,
                limit,
            )

    @property
    def has_measured_capabilities(self) -> bool:
        """Whether its capabilities were measured; else they are estimates."""
        return self._measured is not None

    @property
    def usual_lanes(self) -> int:
        """Threads that execute unless the settings say another number."""
        return 1

    async def load_delegate(self) -> Delegate | None:
        """Return what computes parts of plans in place of the kernels, if anything."""
        return None

    async def __aenter__(self) -> Self:
        # A framework's own device has the settings that are for the others.
        if not self._runtime_only_features:
            warn_of_unused(self.name, self._settings, self.unused_settings)
        self._measured = await measurement_at_opening(self._settings.capabilities_file)
        if self._measured is not None:
            self.kernel_capabilities = known_capabilities(self._measured)
        delegate = await self.load_delegate()
        caches = ModelCaches(
            self._settings.cache_key_file,
            may_map=self._settings.maps_cache_files,
            most_bytes=self._settings.max_run_bytes,
            extensions=self._extensions,
            delegate=delegate,
        )
        await caches.key.read_at_opening()
        self._closing = None
        lanes = self._settings.lanes or self.usual_lanes
        executions = self._new_scheduler("asyncnn-lane", lanes)
        plans = self._new_scheduler("asyncnn-plan", 1)
        shapes = NewShapes(executions, plans)
        self._entered = DeviceParts(
            self._settings,
            executions,
            self._new_scheduler("asyncnn-prepare", 1),
            plans,
            shapes,
            FencedExecutions(
                executions, shapes, max_waiting=self._settings.max_waiting
            ),
            self._bursts,
            self._buffers,
            caches,
            ModelReleaser(),
            IdleTimer(
                SUSTAINED_IDLE * self._settings.idle_after_s, self._release_sustained
            ),
            process_wide.apply_settings(self._settings),
        )
        pacing.watch(executions)
        pacing.watch(plans, are_awaited=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the device, or wait until it is, as leaving the context does.

        Any number of tasks may.
        """
        if isinstance(self._parts().executions.cause_of_death(), ForkedError):
            return  # it is the parent's to close
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Close each part, whatever happens to the others."""
        parts = self._parts()
        # The last one comes first: all work is aborted before anything waits for it.
        async with AsyncExitStack() as ends:
            ends.callback(parts.undo_process_wide)
            ends.push_async_callback(parts.releaser.wait_ended)
            ends.push_async_callback(self._buffers.wait_ended)
            ends.push_async_callback(parts.executions.aclose)
            ends.push_async_callback(parts.plans.aclose)
            ends.push_async_callback(parts.preparations.aclose)
            ends.callback(parts.sustained.close)
            ends.callback(self._buffers.close)
            ends.callback(self._bursts.close)
            ends.callback(self._status_listeners.close)
            ends.callback(parts.executions.begin_closing)
            ends.callback(parts.plans.begin_closing)
            ends.callback(parts.fenced.close)
            ends.callback(parts.preparations.begin_closing)

    def get_status(self) -> DeviceStatus:
        """Return AVAILABLE, BUSY while a queue is full, or OFFLINE if it is closed."""
        parts = self._entered
        if parts is None or parts.executions.is_closed:
            return DeviceStatus.OFFLINE
        is_busy = parts.executions.is_full or parts.preparations.is_full
        return DeviceStatus.BUSY if is_busy else DeviceStatus.AVAILABLE

    def watch_status(
        self, listener: Callable[[DeviceStatus], None]
    ) -> Callable[[], None]:
        """Have ``listener`` called when the device is busy or not; see `IWatched`."""
        return self._status_listeners.add(listener)

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why the device takes no work any more; see `IMortal`."""
        parts = self._entered
        return None if parts is None else parts.executions.cause_of_death()

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the version of asyncnn."""
        return ErrorStatus.NONE, __version__

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return CPU."""
        return ErrorStatus.NONE, DeviceType.CPU

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return what was measured of this machine, or else the CPU's capabilities."""
        return ErrorStatus.NONE, self.kernel_capabilities or known_capabilities(None)

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the extensions of its settings."""
        return ErrorStatus.NONE, self._extensions.described()

    async def _supported(self, model: Model) -> tuple[bool, ...]:
        cause = self.cause_of_death()
        if cause is not None:
            raise cause
        DRIVER("get_supported_operations")
        return await offload_steps(self._supporting(model))

    def _supporting(self, model: Model) -> Steps[tuple[bool, ...]]:
        yield from validating(model, runtime_only_features=self._runtime_only_features)
        most_bytes = self._settings.max_run_bytes
        return (yield from supporting(self._extensions.resolved(model), most_bytes))

    async def batching_of(self, model: Model) -> str:
        """Return how many runs of a model may be one; see `IBatches`."""
        if self._batches is None:
            return ""
        order = PrepareArguments(model)
        settings = ExecutionPreference(order.preference), Priority(order.priority)
        caches = self._parts().caches
        prepare = caches.preparation(model, *settings, order.cache)
        compiled = await offload_steps(self._batches.preparing(prepare), 0)
        return "" if compiled.batching is None else compiled.batching.words

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return 1 and 1."""
        return ErrorStatus.NONE, MODEL_FILES, DATA_FILES

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        model, preference, priority, deadline, cache = asked
        DRIVER("prepare_model", preference=preference, priority=priority)

        def order() -> Prepare:
            with span("validate", Layer.DRIVER, Phase.PREPARATION):
                asked.validate(runtime_only_features=self._runtime_only_features)
            if MODEL.is_on:
                MODEL("prepare", **_described(model))
            settings = ExecutionPreference(preference), Priority(priority)
            return self._batched(
                self._parts().caches.preparation(model, *settings, cache)
            )

        return self._launch_preparation(order, priority, deadline, callback)

    def _load(
        self, asked: LoadArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        # The model gets the preference and the priority that it was saved with.
        DRIVER("prepare_model_from_cache")

        def order() -> Prepare:
            return self._batched(self._parts().caches.loading(asked.cache))

        return self._launch_preparation(
            order, Priority.MEDIUM, asked.deadline, callback
        )

    def _batched(self, prepare: Prepare) -> Prepare:
        batches = self._batches
        return prepare if batches is None else partial(batches.preparing, prepare)

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
            limit = process_wide.blas_threads_limited(self._settings.blas_threads)
            work = PrepareWork(order(), Priority(priority), deadline, report, limit)
            preparations = self._parts().preparations
            preparations.submit(work)
        except AsyncnnError as error:
            report(error)
            return status_of_launch(error)
        callback.link_to_death(
            partial(preparations.cancel, work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        )
        return ErrorStatus.NONE

    async def _allocate(self, asked: AllocateArguments) -> tuple[IBuffer, int]:
        desc, prepared_models, *roles = asked
        DRIVER("allocate", models=len(prepared_models))
        models = [
            model.buffers if type(model) is InProcessPreparedModel else None
            for model in prepared_models
        ]
        buffer, token = self._buffers.allocate(desc, models, *roles)
        MEMORY("allocated", token=token, dimensions=desc.dimensions)
        return buffer, token

    def statistics(self) -> DeviceStatistics:
        """Return what the device does and has done since its context was entered.

        Executions that were refused before they were scheduled are not counted.
        """
        parts = self._parts()
        executions, preparations = parts.executions, parts.preparations
        snapshot = executions.snapshot()
        clients = {*executions.clients(), *preparations.clients()}
        return DeviceStatistics(
            device=self.name,
            threads=executions.threads + preparations.threads + parts.plans.threads,
            resident_bytes=resident_bytes(),
            preparations=preparations.statistics(),
            executions=snapshot.of_all(),
            models=tuple(
                model.statistics(number, snapshot)
                for number, model in sorted(self._models.items())
            ),
            clients=tuple(
                ClientStatistics(
                    number=client.number,
                    name=client.name,
                    weight=client.weight,
                    executions=snapshot.of_client(client),
                    buffer_bytes=self._buffers.used_bytes(client),
                )
                for client in sorted(clients, key=lambda client: client.number)
            ),
        )

    async def get_statistics(self) -> DeviceStatistics:
        """Return `statistics`; see `IMeasured`."""
        return self.statistics()

    def _new_scheduler(self, name: str, lanes: int) -> Scheduler:
        settings = self._settings
        scheduler = Scheduler(
            name,
            max_pending=settings.max_pending,
            lanes=lanes,
            policy=settings.policy,
            stuck_after_s=settings.stuck_after_s,
            filled_or_freed=self._status_listeners.notify_soon,
            make_port=LanePort,
            nice=settings.lane_nice,
        )
        scheduler.call_when_idle(settings.idle_after_s, self._release_idle)
        return scheduler

    def _parts(self) -> DeviceParts:
        if self._entered is None:
            raise RuntimeError("enter the device's context first: async with device:")
        return self._entered

    def _release_idle(self) -> None:
        """Give back what is held for work that does not come, of no kind."""
        parts = self._parts()
        if not self._has_rested:
            return
        parts.preparations.retire()
        parts.plans.retire()
        models = list(self._models.values())
        idle = [model for model in models if not model.stays_ready]
        self._buffers.trim()
        if len(idle) < len(models):
            parts.sustained.note_activity()
        self._release(idle, of_all=len(idle) == len(models))

    def _release_sustained(self) -> None:
        if self._has_rested:
            self._release(list(self._models.values()), of_all=True)

    @property
    def _has_rested(self) -> bool:
        parts = self._parts()
        schedulers = parts.executions, parts.preparations, parts.plans
        return all(scheduler.has_rested for scheduler in schedulers)

    def _release(self, models: list[InProcessPreparedModel], *, of_all: bool) -> None:
        parts = self._parts()
        if of_all:
            parts.executions.retire()
        self._bursts.rest(models)
        parts.releaser.free_on_thread(partial(_trim, models))

    def _prepared(
        self,
        notify: OneShot[[ErrorStatus, IPreparedModel | None]],
        callback: IPreparedModelCallback,
        client: int,
        outcome: Compiled | AsyncnnError,
    ) -> None:
        callback.unlink_to_death()
        if isinstance(outcome, AsyncnnError):
            COMPILATION("failed", status=outcome.status.name, reason=outcome)
            logger.info("preparation failed: %s: %s", outcome.status.name, outcome)
            callback.reason = str(outcome)
            notify(outcome.status, None)
            return
        parts = self._parts()
        prepared = InProcessPreparedModel(outcome, parts, client)
        self._models[next(self._numbers)] = prepared
        parts.releaser.watch(prepared, outcome.program)
        COMPILATION("prepared", priority=outcome.priority.name)
        notify(ErrorStatus.NONE, prepared)


class ReferenceDevice(InProcessDevice):
    """The `InProcessDevice` that computes every operation with the NumPy kernels."""

    name = "asyncnn-reference"
    unused_settings = FOR_ENGINES


def _described(model: Model) -> dict[str, int]:
    main = model.main
    return {
        "operations": len(main.operations),
        "operands": len(main.operands),
        "subgraphs": len(model.referenced),
        "pools": len(model.pools),
    }


def _trim(models: list[InProcessPreparedModel]) -> None:
    """Free what executions of ``models`` would use again, and return it."""
    while models:
        models.pop().trim()
    process_wide.return_free_memory()
