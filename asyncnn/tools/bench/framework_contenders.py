"""What ``asyncnn bench accelerated`` measures of a framework.

A model that needs no partition, and the same in two partitions, both beside the device
alone, which computes all of it in every case.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.tools.bench.accelerated_contenders import (
    AWAITED,
    Measured,
    Refusals,
    noted,
    opened,
    rounds_of,
)
from asyncnn.tools.bench.measured_models import Candidate
from asyncnn.tools.bench.rounds import measure, timed_await

WHOLE, HALVES = "whole", "halves"


class _Half:
    """The device ``hal``, but that it supports one half of each model's operations."""

    def __init__(self, hal: IDevice, *, is_later: bool) -> None:
        self._hal = hal
        self._is_later = is_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hal, name)

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return the device's answer, but no for the operations of the other half."""
        status, supports = await self._hal.get_supported_operations_1_3(model)
        middle = len(supports) // 2
        return status, tuple(
            can and (position >= middle) is self._is_later
            for position, can in enumerate(supports)
        )


@asynccontextmanager
async def _framework(*devices: Any) -> AsyncIterator[Device]:
    given = [OpenDevice(f"device-{k}", each) for k, each in enumerate(devices)]
    settings = FrameworkSettings(moving_weight=0)
    async with open_framework(OWN_PROCESS, devices=given, framework=settings) as hal:
        yield Device("framework", hal)


async def measure_framework(candidate: Candidate, rounds: int) -> Measured:
    """Measure a model on the device, through a framework, and in two partitions."""
    refusals: Refusals = {}
    inputs = candidate.inputs
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened())
        prepared = await device.prepare(candidate.named)
        whole = await stack.enter_async_context(_framework(device.hal))
        through = await whole.prepare(candidate.named)
        batches = [
            timed_await(AWAITED, lambda: prepared.run(inputs)),
            timed_await(WHOLE, lambda: through.run(inputs)),
        ]
        halves = (_Half(device.hal, is_later=later) for later in (False, True))
        parted = await stack.enter_async_context(_framework(*halves))
        with noted(refusals, HALVES):
            divided = await parted.prepare(candidate.named)
            batches.append(timed_await(HALVES, lambda: divided.run(inputs)))
        return rounds_of(await measure(batches, rounds=rounds)), refusals
