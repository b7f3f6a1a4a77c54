"""A model is planned: devices are asked about it, and it is divided among them.

One that does not answer, or refuses, has no part; the plan says why.

Source: the HAL's runtime (CompilationBuilder: finish).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext

import msgspec

from asyncnn.hal.errors import GeneralFailureError, error_for, failure_of
from asyncnn.hal.performance import kernel_capabilities, relative_to
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.interpreter_hooks import LARGE_OPERATIONS, building_large
from asyncnn.offload import offload
from asyncnn.runtime.framework import FrameworkSettings, Partitioning
from asyncnn.runtime.framework.fallback import Member, reason_of_error
from asyncnn.runtime.framework.partition import (
    DeviceCandidate,
    DevicePlan,
    Division,
    divide,
)
from asyncnn.runtime.framework.stepping import LEFT_OUT

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Seconds within which a device has to say what it supports."""

FEW_OPERATIONS = 60
"""Operations of a model that is divided faster than by another thread."""


class Planner(msgspec.Struct, frozen=True, eq=False):
    """Plans models for ``members``, the last of which is the CPU."""

    members: Sequence[Member]
    _settings: FrameworkSettings

    @property
    def cpu(self) -> Member:
        """The last resort."""
        return self.members[-1]

    def named(self, name: str) -> Member:
        """Return the device of a name."""
        return next(member for member in self.members if member.name == name)

    async def plan(self, model: Model, preference: int) -> DevicePlan:
        """Ask all devices about a validated model, and divide it among them.

        :raises GeneralFailureError: if no device supports some operation.
        """
        members = self.members
        if self._settings.partition is Partitioning.NO:
            members = members[-1:]
        answers = await asyncio.gather(*(self._ask(each, model) for each in members))
        candidates: list[DeviceCandidate] = []
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
            division = await offload(_divide, model, candidates, preference, weight)
        return DevicePlan(division, tuple(each.name for each in candidates), refusals)

    async def _ask(self, member: Member, model: Model) -> DeviceCandidate | str:
        # Not `allows`: an answer says nothing of how executions go.
        if not member.is_cpu and member.health.left_out_s:
            return LEFT_OUT
        try:
            async with asyncio.timeout(ANSWER_S):
                status, supports = await member.hal.get_supported_operations_1_3(model)
            other, declared = member.hal.get_capabilities_1_3()
            capabilities = relative_to(declared, kernel_capabilities(member.hal))
        except TimeoutError:
            return f"it has not answered for {ANSWER_S:g} s"
        except Exception as error:
            return reason_of_error(failure_of(error))
        for each in (status, other):
            if each is not ErrorStatus.NONE:
                return reason_of_error(error_for(each))
        if len(supports) != len(model.main.operations):
            return "it has not answered for each operation"
        return DeviceCandidate(
            member.name,
            supports,
            capabilities,
            member.is_cpu,
            member.is_remote,
            member.tells_shapes,
        )


def _divide(
    model: Model, candidates: Sequence[DeviceCandidate], preference: int, weight: float
) -> Division:
    """Divide a model that may have more parts than a collection looks at in time."""
    is_large = model.operation_count > LARGE_OPERATIONS
    with building_large() if is_large else nullcontext():
        return divide(model, candidates, preference, weight)
