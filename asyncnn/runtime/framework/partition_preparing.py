"""The partitions of a planned model are prepared, a few at a time, or loaded.

The first device that fails ends the others, and the CPU takes the whole model unless
that is forbidden.

Source: the HAL's runtime (ExecutionPlan: compile).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.devices.cache_format import CacheKey
from asyncnn.hal.errors import MISSED
from asyncnn.hal.refusals import CacheArguments, LoadArguments, PrepareArguments
from asyncnn.hal.routes import RouteStep
from asyncnn.logs import COMPILATION
from asyncnn.offload import offload, offload_steps
from asyncnn.runtime.framework import Fallback
from asyncnn.runtime.framework.caching import OpenCache
from asyncnn.runtime.framework.fallback import Member, reason_of_error
from asyncnn.runtime.framework.managed_memory import reserved
from asyncnn.runtime.framework.partition import DevicePlan, Division, Partition
from asyncnn.runtime.framework.planning import FEW_OPERATIONS, Planner
from asyncnn.runtime.framework.steps import (
    DeviceStep,
    OnCpu,
    PreparedSteps,
    prepared_on,
)
from asyncnn.runtime.framework.submodels import Kind, SubModels, build_submodels

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE = 4
"""Partitions of one model that are prepared at a time."""


class Preparer(msgspec.Struct, frozen=True, eq=False):
    """Prepares models on the devices of a planner, as far as a fallback allows.

    Plans are sealed by the key when they are cached; if it may map, cached weights of
    this user are mapped.
    """

    _planner: Planner
    _fallback: Fallback
    _key: CacheKey
    _may_map: bool

    @property
    def _cpu(self) -> Member:
        return self._planner.cpu

    async def prepare(
        self, arguments: PrepareArguments, cache: OpenCache | None = None
    ) -> PreparedSteps:
        """Plan a validated model and prepare its partitions; save it in ``cache``.

        A model that a device has refused to plan or to prepare is not saved.

        :raises AsyncnnError: if that fails, and no fallback is allowed or left.
        """
        try:
            plan = await self._planner.plan(arguments.model, arguments.preference)
        except hal.AsyncnnError as error:
            if self._fallback is Fallback.FORBID:
                raise
            return await self._all_on_cpu(arguments, reason_of_error(error), {})
        partitions = plan.division.partitions
        members = [self._planner.named(plan.devices[p.device]) for p in partitions]
        submodels, parts = await self._parts(arguments, plan, members, cache)
        failed: list[_Failure] = []
        works = [partial(self._step, n, part, failed) for n, part in enumerate(parts)]
        try:
            steps = await _together(works, arguments.deadline)
        except hal.AsyncnnError as error:
            _check_time(arguments.deadline, error)
            whole = len(works) == 1 and members[0].is_cpu
            if self._fallback is Fallback.FORBID or whole:
                for each in failed:  # nothing computes instead
                    each.member.failed(each.error.status, had_time=each.had_time)
                places = [each.place for each in failed if each.error is error]
                raise (error.at(places[0]) if places else error) from None
            reason = reason_of_error(error)
            done = await self._all_on_cpu(arguments, reason, plan.refusals)
            # Only now: what the CPU fails with as well, the model is the cause of.
            for each in failed:
                status, reason = each.error.status, reason_of_error(each.error)
                each.member.fell_back(status, reason, had_time=each.had_time)
            return done
        done = await self._done(arguments, plan, submodels, steps)
        if cache is not None:
            await self._save(done, cache)
        return done

    async def load(self, deadline: int | None, cache: OpenCache) -> PreparedSteps:
        """Prepare a model from its cache: the plan, and each partition by its device.

        A partition that its device has not saved is prepared from the model.

        :raises GeneralFailureError: if anything is not as it was saved.
        :raises AsyncnnError: if the deadline passes.
        """
        record, model = await offload_steps(
            cache.loading(self._key, may_map=self._may_map)
        )
        arguments = PrepareArguments(
            model, record.preference, record.priority, deadline
        )
        names = tuple(member.name for member in self._planner.members)
        plan = DevicePlan(record.division, names, {})
        members = [self._planner.members[device] for device in record.devices]
        submodels, parts = await self._parts(arguments, plan, members, cache)
        works = [
            partial(self._loaded_step, part, is_saved=is_saved)
            for part, is_saved in zip(parts, record.saved, strict=True)
        ]
        try:
            steps = await _together(works, deadline)
        except hal.AsyncnnError as error:
            if error.status in MISSED:
                raise
            # Of a device that is gone as well: the model is to be prepared anew.
            raise hal.GeneralFailureError(f"not loaded: {error}") from error
        return await self._done(arguments, plan, submodels, steps)

    async def _parts(
        self,
        arguments: PrepareArguments,
        plan: DevicePlan,
        members: Sequence[Member],
        cache: OpenCache | None,
    ) -> tuple[SubModels | None, list["_Part"]]:
        model, partitions = arguments.model, plan.division.partitions
        submodels = None
        if len(partitions) > 1:
            numbers = [each.operations for each in partitions]
            if len(model.main.operations) <= FEW_OPERATIONS:
                submodels = build_submodels(model, numbers)
            else:
                submodels = await offload(build_submodels, model, numbers)
        parts: list[_Part] = []
        for number, partition in enumerate(partitions):
            member, part, slot = members[number], arguments, CacheArguments()
            _, outputs = _all_of(model)
            if submodels is not None:
                sub = submodels.steps[number]
                part = arguments._replace(model=sub.model)
                outputs = tuple(
                    each.position if each.kind is Kind.OUTPUT else -1
                    for each in sub.outputs
                )
            if cache is not None:
                device = self._planner.members.index(member)
                slot = cache.layout.slot(cache, number, device, partition.operations)
            usual = RouteStep(member.name, partition.operations)
            parts.append(_Part(member, part, usual, outputs, slot))
        return submodels, parts

    async def _save(self, done: PreparedSteps, cache: OpenCache) -> None:
        """Save plan and model, or log why not: a preparation does not fail for it."""
        division, most = done.plan.division, cache.layout.slots
        if done.plan.refusals:
            return
        if len(division.partitions) > most:
            logger.info("a model of more than %d partitions is not cached", most)
            return
        # By the positions among all devices, not only those that have answered.
        members = self._planner.members
        devices = [members.index(step.member) for step in done.steps]
        partitions = tuple(
            replace(each, device=device)
            for each, device in zip(division.partitions, devices, strict=True)
        )
        arguments = done.arguments
        order = arguments.preference, arguments.priority
        division = replace(division, partitions=partitions)
        try:
            await offload_steps(
                cache.saving(arguments.model, order, division, devices, self._key)
            )
        except hal.AsyncnnError as error:
            logger.warning("a model is not cached: %s", error)

    async def _done(
        self,
        arguments: PrepareArguments,
        plan: DevicePlan,
        submodels: SubModels | None,
        steps: Sequence[DeviceStep],
    ) -> PreparedSteps:
        if COMPILATION.is_on:
            devices = "+".join(step.usual.device for step in steps)
            COMPILATION("divided", partitions=len(steps), devices=devices)
        whole = self._whole(arguments, steps)
        reservation = None
        if submodels is not None:
            reservation = await reserved(submodels, steps)
        return PreparedSteps(
            arguments, plan, submodels, tuple(steps), whole, reservation
        )

    async def _loaded_step(self, part: "_Part", *, is_saved: bool) -> DeviceStep:
        member, arguments, usual, outputs, slot = part
        saved = LoadArguments(arguments.deadline, slot)
        prepared = await prepared_on(member, saved if is_saved else arguments)
        return DeviceStep(member, prepared, usual, outputs, OnCpu(self._cpu, arguments))

    async def _step(
        self, number: int, part: "_Part", failed: list["_Failure"]
    ) -> DeviceStep:
        """Prepare one partition on its device, which is in ``failed`` if it fails."""
        member, arguments, usual, outputs, slot = part
        try:
            prepared = await prepared_on(member, arguments._replace(cache=slot))
        except hal.AsyncnnError as error:
            if not member.is_cpu:
                place = f"partition {number}, {usual}"
                had_time = arguments.deadline is None
                failed.append(_Failure(member, error, had_time, place))
            raise
        return DeviceStep(member, prepared, usual, outputs, OnCpu(self._cpu, arguments))

    async def _all_on_cpu(
        self, arguments: PrepareArguments, reason: str, refusals: dict[str, str]
    ) -> PreparedSteps:
        """Prepare all of the model on the CPU, for ``reason``."""
        logger.warning("the CPU takes a whole model: %s", reason)
        cpu = OnCpu(self._cpu, arguments)
        prepared = await _prepared_by(cpu)
        every, outputs = _all_of(arguments.model)
        others = "+".join(each.name for each in self._planner.members[:-1])
        usual = RouteStep(self._cpu.name, every, others, reason)
        step = DeviceStep(self._cpu, prepared, usual, outputs, cpu)
        division = Division((Partition(0, every, 0.0),), (reason,) * len(every), 0.0)
        plan = DevicePlan(division, (self._cpu.name,), refusals)
        return PreparedSteps(arguments, plan, None, (step,), step)

    def _whole(
        self, arguments: PrepareArguments, steps: Sequence[DeviceStep]
    ) -> DeviceStep:
        first = steps[0]
        if len(steps) == 1:
            return first
        every, outputs = _all_of(arguments.model)
        usual = RouteStep("+".join(step.usual.device for step in steps), every)
        cpu = OnCpu(self._cpu, arguments)
        other = next((s.member for s in steps if not s.member.is_cpu), first.member)
        return DeviceStep(other, first.prepared, usual, outputs, cpu)


class _Part(NamedTuple):
    """A partition to prepare; ``outputs`` as of `DeviceStep`, ``cache`` its files."""

    member: Member
    arguments: PrepareArguments
    usual: RouteStep
    outputs: tuple[int, ...]
    cache: CacheArguments


class _Failure(NamedTuple):
    """A device that failed to prepare a ``place``; had it all the time it needs?"""

    member: Member
    error: hal.AsyncnnError
    had_time: bool
    place: str


async def _together(
    works: Sequence[Callable[[], Awaitable[T]]], deadline: int | None
) -> list[T]:
    """Do all works, `MOST_AT_ONCE` at a time; the first that fails ends the others."""
    if len(works) == 1:
        return [await works[0]()]
    room = asyncio.Semaphore(MOST_AT_ONCE)

    async def do(work: Callable[[], Awaitable[T]]) -> T:
        async with room:
            _check_time(deadline)
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(work)) for work in works]
    except ExceptionGroup as failures:
        raise hal.failure_of(failures.exceptions[0]) from None
    return [task.result() for task in tasks]


async def _prepared_by(cpu: OnCpu) -> hal.IPreparedModel:
    """Prepare a model on the CPU, which stops if nobody waits for it."""
    try:
        return await cpu.prepare()
    except asyncio.CancelledError:
        cpu.close()
        raise


def _all_of(model: hal.Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    main = model.main
    return tuple(range(len(main.operations))), tuple(range(len(main.output_indexes)))


def _check_time(deadline: int | None, failed: hal.AsyncnnError | None = None) -> None:
    """Check that there is time left for another attempt, maybe after one failed."""
    if deadline is None or time.monotonic_ns() < deadline:
        return
    if isinstance(failed, hal.MissedDeadlineError):  # it knows what was missed
        raise hal.MissedDeadlinePersistentError(failed.message) from failed
    cause = "" if failed is None else f": {failed.message}"
    raise hal.MissedDeadlinePersistentError(f"the deadline has passed{cause}")
