"""A model is planned and prepared: asked about, divided, and each partition prepared.

The CPU takes the part of a device that does not answer, refuses, or fails, unless that
is forbidden; the plan says why.

Source: the HAL's runtime (CompilationBuilder: finish).
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    MissedDeadlinePersistentError,
    error_for,
    failure_of,
)
from asyncnn.hal.routes import RouteStep
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.logs import COMPILATION
from asyncnn.offload import offload
from asyncnn.runtime.framework import Fallback, FrameworkSettings, Partitioning
from asyncnn.runtime.framework.fallback import Member, reason_of_error
from asyncnn.runtime.framework.partition import (
    Candidate,
    Division,
    Partition,
    Plan,
    divide,
)
from asyncnn.runtime.framework.stepping import LEFT_OUT
from asyncnn.runtime.framework.steps import OnCpu, Step, prepared_on
from asyncnn.runtime.framework.submodels import Kind, SubModels, build_submodels
from asyncnn.runtime.model_cache import PrepareArguments

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Seconds within which a device has to say what it supports."""

FEW_OPERATIONS = 60
"""Operations of a model that is divided faster than by another thread."""


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """All partitions of a model, prepared. ``submodels`` is None if there is one."""

    arguments: PrepareArguments
    plan: Plan
    submodels: SubModels | None
    steps: tuple[Step, ...]
    whole: Step


class Planner:
    """Plans and prepares models on ``members``, the last of which is the CPU."""

    def __init__(self, members: Sequence[Member], settings: FrameworkSettings) -> None:
        self._members = members
        self._settings = settings
        self._fallback = settings.effective_fallback

    @property
    def cpu(self) -> Member:
        """The last resort."""
        return self._members[-1]

    async def plan(self, model: Model, preference: int) -> Plan:
        """Ask all devices about a validated model, and divide it among them.

        :raises GeneralFailureError: if no device supports some operation.
        """
        members = self._members
        if self._settings.partition is Partitioning.NO:
            members = members[-1:]
        answers = await asyncio.gather(*(self._ask(each, model) for each in members))
        candidates: list[Candidate] = []
        refusals: dict[str, str] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, str):
                refusals[member.name] = answer
            else:
                candidates.append(answer)
        if not candidates:
            reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
            raise GeneralFailureError(f"no device takes the model: {reasons}")
        weight = self._settings.moving_weight
        if len(model.main.operations) <= FEW_OPERATIONS:
            division = divide(model, candidates, preference, weight)
        else:
            division = await offload(divide, model, candidates, preference, weight)
        return Plan(division, tuple(each.name for each in candidates), refusals)

    async def prepare(self, arguments: PrepareArguments) -> Prepared:
        """Plan a validated model and prepare its partitions.

        :raises AsyncnnError: if that fails, and no fallback is allowed or left.
        """
        model = arguments.model
        try:
            plan = await self.plan(model, arguments.preference)
        except AsyncnnError as error:
            if self._fallback is Fallback.FORBID:
                raise
            return await self._all_on_cpu(arguments, reason_of_error(error), {})
        parts = [each.operations for each in plan.division.partitions]
        submodels = None
        if len(parts) > 1:
            submodels = await offload(build_submodels, model, parts)
        steps: list[Step] = []
        for number, partition in enumerate(plan.division.partitions):
            member = self._named(plan.devices[partition.device])
            try:
                step = await self._step(arguments, member, partition, submodels, number)
            except AsyncnnError as error:
                _check_time(arguments)
                whole = len(parts) == 1 and member.is_cpu
                if self._fallback is Fallback.FORBID or whole:
                    raise
                reason = reason_of_error(error)
                return await self._all_on_cpu(arguments, reason, plan.refusals)
            steps.append(step)
        if COMPILATION.is_on:
            devices = "+".join(step.usual.device for step in steps)
            COMPILATION("divided", partitions=len(steps), devices=devices)
        return Prepared(
            arguments, plan, submodels, tuple(steps), self._whole(arguments, steps)
        )

    async def _step(
        self,
        arguments: PrepareArguments,
        member: Member,
        partition: Partition,
        submodels: SubModels | None,
        number: int,
    ) -> Step:
        """Prepare one partition, on the CPU if its device fails and that is allowed.

        :raises AsyncnnError: if it is prepared nowhere.
        """
        outputs = tuple(range(len(arguments.model.main.output_indexes)))
        if submodels is not None:
            sub = submodels.steps[number]
            arguments = replace(arguments, model=sub.model)
            outputs = tuple(
                each.position if each.kind is Kind.OUTPUT else -1
                for each in sub.outputs
            )
        cpu = OnCpu(self.cpu, arguments)
        usual = RouteStep(member.name, partition.operations)
        try:
            prepared = await prepared_on(member, arguments)
        except AsyncnnError as error:
            if member.is_cpu or self._fallback is not Fallback.PARTIAL:
                if not member.is_cpu:
                    member.fell_back(error.status, reason_of_error(error))
                raise
            _check_time(arguments)
            reason = reason_of_error(error)
            prepared = await cpu.prepare()
            member.fell_back(error.status, reason)
            member = self.cpu
            usual = RouteStep(member.name, usual.operations, usual.device, reason)
        return Step(member, prepared, usual, outputs, cpu)

    async def _all_on_cpu(
        self, arguments: PrepareArguments, reason: str, refusals: dict[str, str]
    ) -> Prepared:
        """Prepare all of the model on the CPU, for ``reason``.

        :raises AsyncnnError: if the CPU cannot compute it.
        """
        logger.warning("the CPU takes a whole model: %s", reason)
        cpu = OnCpu(self.cpu, arguments)
        prepared = await cpu.prepare()
        every = tuple(range(len(arguments.model.main.operations)))
        others = "+".join(each.name for each in self._members[:-1])
        usual = RouteStep(self.cpu.name, every, others, reason)
        outputs = tuple(range(len(arguments.model.main.output_indexes)))
        step = Step(self.cpu, prepared, usual, outputs, cpu)
        division = Division((Partition(0, every, 0.0),), (reason,) * len(every), 0.0)
        plan = Plan(division, (self.cpu.name,), refusals)
        return Prepared(arguments, plan, None, (step,), step)

    def _whole(self, arguments: PrepareArguments, steps: Sequence[Step]) -> Step:
        """Return all of the model as one partition, which is for the CPU."""
        first = steps[0]
        if len(steps) == 1:
            return first
        every = tuple(range(len(arguments.model.main.operations)))
        usual = RouteStep("+".join(step.usual.device for step in steps), every)
        outputs = tuple(range(len(arguments.model.main.output_indexes)))
        cpu = OnCpu(self.cpu, arguments)
        other = next((s.member for s in steps if not s.member.is_cpu), first.member)
        return Step(other, first.prepared, usual, outputs, cpu)

    async def _ask(self, member: Member, model: Model) -> Candidate | str:
        """Return what a device supports, or why it has no part."""
        health = member.health
        if not member.is_cpu and health.has_failed and not health.allows():
            return LEFT_OUT
        try:
            async with asyncio.timeout(ANSWER_S):
                status, supports = await member.hal.get_supported_operations_1_3(model)
            told, capabilities = member.hal.get_capabilities_1_3()
        except TimeoutError:
            return f"it has not answered for {ANSWER_S:g} s"
        except Exception as error:
            return reason_of_error(failure_of(error))
        for each in (status, told):
            if each is not ErrorStatus.NONE:
                return reason_of_error(error_for(each))
        if len(supports) != len(model.main.operations):
            return "it has not answered for each operation"
        return Candidate(
            member.name,
            supports,
            capabilities,
            member.is_cpu,
            member.is_remote,
            member.tells_shapes,
        )

    def _named(self, name: str) -> Member:
        return next(member for member in self._members if member.name == name)


def _check_time(arguments: PrepareArguments) -> None:
    """Check that there is time left for another attempt.

    :raises MissedDeadlinePersistentError: if there is not.
    """
    deadline = arguments.deadline
    if deadline is not None and time.monotonic_ns() >= deadline:
        raise MissedDeadlinePersistentError("the deadline has passed")
