"""`FrameworkDevice`: several devices as one."""

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Self

from msgspec.structs import replace

from asyncnn import __version__
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import IPreparedModelCallback, OneShot
from asyncnn.devices import DeviceSettings, DeviceStatistics, IMeasured
from asyncnn.devices.cache_format import CacheKey
from asyncnn.devices.device_buffers import HAL_HINTS, RELAXED, Buffers
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    closed_error,
    error_for,
    failure_of,
)
from asyncnn.hal.interfaces import (
    IBuffer,
    IPreparedModel,
    cause_of_death,
    hal_hints,
    has_measured_capabilities,
)
from asyncnn.hal.performance import kernel_capabilities, performance_of, relative_to
from asyncnn.hal.refusals import (
    AllocateArguments,
    BaseDevice,
    LoadArguments,
    PrepareArguments,
)
from asyncnn.hal.routes import EngineShare, IEngineShares, Route
from asyncnn.hal.types import (
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Model,
    OperandPerformance,
    PerformanceInfo,
    Priority,
)
from asyncnn.hal.validate import validating
from asyncnn.logs import DRIVER
from asyncnn.offload import offload, offload_steps
from asyncnn.qos import acting_for, calling_client
from asyncnn.runtime.framework import FRAMEWORK, Fallback, FrameworkSettings
from asyncnn.runtime.framework.caching import CacheLayout
from asyncnn.runtime.framework.divided_model import FrameworkPreparedModel
from asyncnn.runtime.framework.fallback import Member
from asyncnn.runtime.framework.managed_memory import allocate_fixed
from asyncnn.runtime.framework.partition import DevicePlan
from asyncnn.runtime.framework.partition_preparing import Preparer
from asyncnn.runtime.framework.planning import Planner
from asyncnn.runtime.framework.steps import Host, PreparedSteps
from asyncnn.runtime.framework.submodels import build_submodels
from asyncnn.runtime.home import Home

logger = logging.getLogger(__name__)

CLOSING_S = 5.0
"""Seconds for which closing waits for devices that are closed by others."""


class FrameworkDevice(BaseDevice):
    """An `IDevice` over ``members``, the last of which is the CPU. A context manager.

    Models are divided among them; where a device fails, the CPU computes instead.
    Leaving the context ends what is pending with DEVICE_UNAVAILABLE, and waits until no
    member works for it. The members stay open: what has opened them closes them.

    :raises InvalidArgumentError: if there is no member, two have one name, or the last
        one is not the CPU.
    """

    name = f"asyncnn-{FRAMEWORK}"

    def __init__(
        self,
        members: Sequence[Member],
        settings: FrameworkSettings | None = None,
        device_settings: DeviceSettings | None = None,
    ) -> None:
        names = [member.name for member in members]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(
                    f"two devices of a framework have the name {name!r}",
                    hint="give each device once, by its name or opened",
                )
        if not members or not members[-1].is_cpu:
            raise InvalidArgumentError("the last device of a framework is the CPU")
        limits = device_settings or DeviceSettings()
        self.members = tuple(members)
        self.settings = settings or FrameworkSettings()
        self._planner = Planner(self.members, self.settings)
        self._key = CacheKey(limits.cache_key_file)
        self._preparer = Preparer(
            self._planner,
            self.settings.effective_fallback,
            self._key,
            limits.maps_cache_files,
        )
        self._caches = CacheLayout(self.members, self.settings)
        self._buffers = Buffers(limits.max_buffer_bytes, self._cause_of_end)
        bursts = OpenBursts(limits.max_bursts)
        self._host = Host(self._buffers, bursts, self.settings)
        self._own: weakref.WeakKeyDictionary[IPreparedModel, tuple[Member, Route]]
        self._own = weakref.WeakKeyDictionary()
        self._preparations: set[asyncio.Task[PreparedSteps]] = set()
        self._home = Home()

    async def __aenter__(self) -> Self:
        await self._key.read_at_opening()
        return self

    seals_caches: bool = True

    @property
    def hal_hints(self) -> dict[str, str]:
        """What is made of hints of the HAL, for relaxed models by each device."""
        hints = {each.name: hal_hints(each.hal).get(RELAXED) for each in self.members}
        of_each = "; ".join(f"{each} ({name})" for name, each in hints.items() if each)
        return {**HAL_HINTS, RELAXED: of_each or HAL_HINTS[RELAXED]}

    @property
    def has_measured_capabilities(self) -> bool:
        """Whether all its devices' were measured."""
        return all(has_measured_capabilities(each.hal) for each in self.members)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what is pending, and wait until devices have let go of it."""
        if self._home.is_inherited:
            return  # it is the parent's to close
        host = self._host
        host.is_closed = True
        host.bursts.close()
        self._buffers.close()
        for task in tuple(self._preparations):
            task.cancel()
        for active in tuple(host.active):
            active.close()
        if self._preparations:
            await asyncio.wait(self._preparations)
        await host.wait_idle(CLOSING_S)
        await self._buffers.wait_ended()

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why a model could not be prepared; see `IMortal`.

        Others may be, without the device that has died.
        """
        members = (member.hal for member in self.members)
        return self._cause_of_end() or cause_of_death(*members)

    def _cause_of_end(self) -> DeviceUnavailableError | None:
        return closed_error() if self._host.is_closed else None

    def get_status(self) -> DeviceStatus:
        """Return AVAILABLE if any device is; else BUSY if one is; OFFLINE if closed."""
        if self._host.is_closed:
            return DeviceStatus.OFFLINE
        statuses = {member.hal.get_status() for member in self.members}
        for status in (DeviceStatus.AVAILABLE, DeviceStatus.BUSY):
            if status in statuses:
                return status
        return DeviceStatus.OFFLINE

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the versions of asyncnn and of all devices."""
        versions = [
            f"{member.kind}={member.hal.get_version_string()[1]}"
            for member in self.members
        ]
        return ErrorStatus.NONE, f"{__version__} ({', '.join(versions)})"

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return CPU if there is nothing else, and OTHER for a mixture."""
        types = {member.hal.get_type()[1] for member in self.members}
        return ErrorStatus.NONE, types.pop() if len(types) == 1 else DeviceType.OTHER

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the best that any device declares, for each type."""
        found = [member.hal.get_capabilities_1_3() for member in self.members]
        known = [each for status, each in found if status is ErrorStatus.NONE]
        if not known:
            return found[-1]
        tables = [each.operand_performance for each in known]
        types = sorted({entry.type for table in tables for entry in table})
        return ErrorStatus.NONE, Capabilities(
            _best([c.relaxed_float32_to_float16_performance_scalar for c in known]),
            _best([c.relaxed_float32_to_float16_performance_tensor for c in known]),
            tuple(
                OperandPerformance(
                    type_, _best([performance_of(table, type_) for table in tables])
                )
                for type_ in types
            ),
            _best([each.if_performance for each in known]),
            _best([each.while_performance for each in known]),
        )

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return all devices' extensions; the first one's description counts."""
        extensions: dict[str, Extension] = {}
        for member in self.members:
            for extension in member.hal.get_supported_extensions()[1]:
                extensions.setdefault(extension.name, extension)
        return ErrorStatus.NONE, tuple(extensions.values())

    async def _supported(self, model: Model) -> tuple[bool, ...]:
        if self._host.is_closed:
            raise closed_error()
        answers = await asyncio.gather(
            *(
                member.hal.get_supported_operations_1_3(model)
                for member in self.members
            ),
            return_exceptions=True,
        )
        supports: list[tuple[bool, ...]] = []
        status = ErrorStatus.GENERAL_FAILURE
        for answer in answers:
            if isinstance(answer, BaseException):
                continue
            status = answer[0]  # in the end, the CPU's
            if status is ErrorStatus.NONE:
                supports.append(answer[1])
        if not supports:
            raise error_for(status, "no device says which operations it supports")
        return tuple(map(any, zip(*supports, strict=True)))

    async def plan(self, model: Model, preference: int) -> DevicePlan:
        """Return how a model would be divided.

        :raises AsyncnnError: if it breaks a rule, or no device supports some operation.
        """
        await offload_steps(validating(model, runtime_only_features=True))
        return await self._planner.plan(model, preference)

    async def engine_shares_of(
        self, model: Model, plan: DevicePlan
    ) -> list[tuple[Capabilities, EngineShare]]:
        """Return which engines of the devices compute what of a model that is planned.

        Beside each, what its device declares. There is nothing of devices that have
        none.

        :raises AsyncnnError: if a partition cannot be prepared.
        """
        partitions = plan.division.partitions
        parts = [each.operations for each in partitions]
        models = [model]
        if len(parts) > 1:
            submodels = await offload(build_submodels, model, parts)
            models = [step.model for step in submodels.steps]
        shares: list[tuple[Capabilities, EngineShare]] = []
        for each, partition in zip(models, partitions, strict=True):
            hal = self._planner.named(plan.devices[partition.device]).hal
            declared = relative_to(
                hal.get_capabilities_1_3()[1], kernel_capabilities(hal)
            )
            if isinstance(hal, IEngineShares):
                for share in await hal.engine_shares(each):
                    positions = [partition.operations[k] for k in share.operations]
                    share = replace(share, operations=tuple(positions))
                    shares.append((declared, share))
        return shares

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        # Files that are not as needed do not fail it; nothing is saved then.
        model, preference, priority, deadline, cache = asked
        DRIVER("prepare_model", preference=preference, priority=priority)
        if self._host.is_closed:
            raise closed_error()
        asked.validate(runtime_only_features=True)
        opened = None
        if cache.model_cache or cache.data_cache:
            try:
                opened = self._caches.opened(cache)
            except AsyncnnError as error:
                logger.warning("a model is not cached: %s", error)
        arguments = PrepareArguments(
            model, ExecutionPreference(preference), Priority(priority), deadline
        )
        self._launch(self._preparer.prepare(arguments, opened), callback)
        return ErrorStatus.NONE

    def _load(
        self, asked: LoadArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        if self._host.is_closed:
            raise closed_error()
        opened = self._caches.opened(asked.cache)
        opened.check(self._key)
        self._launch(self._preparer.load(asked.deadline, opened), callback)
        return ErrorStatus.NONE

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return how many files the plan and the partitions of one model need."""
        return ErrorStatus.NONE, *self._caches.files

    def _launch(
        self,
        work: Coroutine[None, None, PreparedSteps],
        callback: IPreparedModelCallback,
    ) -> None:
        notify = OneShot(callback.notify_1_3)
        loop = asyncio.get_running_loop()
        with acting_for(calling_client.get()):
            task = loop.create_task(work)
        self._preparations.add(task)
        # Not in the task, which never begins if it is cancelled first.
        task.add_done_callback(partial(self._prepared, callback, notify))
        callback.link_to_death(partial(_cancel, task))

    def _prepared(
        self,
        callback: IPreparedModelCallback,
        notify: OneShot[[ErrorStatus, IPreparedModel | None]],
        task: asyncio.Task[PreparedSteps],
    ) -> None:
        self._preparations.discard(task)
        status, prepared, reason = ErrorStatus.GENERAL_FAILURE, None, "it was cancelled"
        try:
            prepared, status = self._given_out(task.result()), ErrorStatus.NONE
        except asyncio.CancelledError:
            status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            if self._host.is_closed:
                status = ErrorStatus.DEVICE_UNAVAILABLE
        except Exception as error:
            failure = failure_of(error)
            logger.info("preparation failed: %s: %s", failure.status.name, failure)
            status, reason = failure.status, str(failure)
        callback.unlink_to_death()
        if prepared is None:
            callback.reason = reason
        notify(status, prepared)

    def _given_out(self, done: PreparedSteps) -> IPreparedModel:
        """Return a device's own model, if executions need nothing else."""
        fallback = self.settings.effective_fallback
        step = done.steps[0]
        if len(done.steps) == 1 and (step.member.is_cpu or fallback is Fallback.FORBID):
            try:
                self._own[step.prepared] = step.member, Route((step.usual,))
            except TypeError:  # it cannot be referred to weakly
                pass
            else:
                return step.prepared
        return FrameworkPreparedModel(done, fallback, self._host)

    def usual_route(self, prepared: object) -> Route | None:
        """Return how executions of a prepared model go; see `IRouting`."""
        if isinstance(prepared, FrameworkPreparedModel):
            return prepared.usual_route
        try:
            known = self._own.get(prepared)  # type: ignore[call-overload]  # any object
        except TypeError:
            return None
        return None if known is None else known[1]

    async def _allocate(self, asked: AllocateArguments) -> tuple[IBuffer, int]:
        """Allocate a buffer; see `IDevice.allocate`.

        It is a device's own if that has all the models as they are. For models that are
        divided, or may fall back, it is memory of this process, of a known shape.
        """
        prepared_models = asked.prepared_models
        owners = {
            self._own[each][0]
            for each in prepared_models
            if each is not None and each in self._own
        }
        divided = [m for m in prepared_models if isinstance(m, FrameworkPreparedModel)]
        if owners and not divided and len(owners) == 1:
            return await asked.by(owners.pop().hal)
        if owners:
            raise GeneralFailureError("no buffer serves models of different devices")
        return allocate_fixed(self._buffers, asked, FrameworkPreparedModel)

    async def get_statistics(self) -> DeviceStatistics:
        """Return what the devices have done in all, and the fallbacks.

        A device that keeps no statistics, or does not return them, counts nothing. See
        `IMeasured`.
        """
        if self._host.is_closed:
            raise closed_error()
        found = await asyncio.gather(
            *(
                member.hal.get_statistics()
                for member in self.members
                if isinstance(member.hal, IMeasured)
            ),
            return_exceptions=True,
        )
        parts = [part for part in found if isinstance(part, DeviceStatistics)]
        counts = [count for member in self.members for count in member.fallbacks()]
        return DeviceStatistics.of_several(self.name, parts, tuple(counts))


def _cancel(task: asyncio.Task[PreparedSteps]) -> None:
    task.cancel()


def _best(infos: Sequence[PerformanceInfo]) -> PerformanceInfo:
    return PerformanceInfo(
        min(info.exec_time for info in infos), min(info.power_usage for info in infos)
    )
