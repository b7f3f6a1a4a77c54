"""Partitions are prepared together: how many at a time, and what ends the others."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Model
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, planning
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.framework.partition import divide
from asyncnn.runtime.framework.partition_preparing import MOST_AT_ONCE
from asyncnn.tools.bench.made_models import long_model
from tests.runtime.framework.crippled import CrippledDevice
from tests.runtime.framework.mixed import (
    FLOATS,
    SHAPE,
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
)
from tests.waits import cancelled, until

T = asyncnn.OperationType
PARTS = MOST_AT_ONCE + 2
"""Partitions for the device for floats; as many are for the CPU, but for one."""


def alternating() -> asyncnn.NamedModel:
    builder = asyncnn.ModelBuilder()
    real = asyncnn.hal.Operand(FLOATS, SHAPE)
    x = builder.input("x", FLOATS, SHAPE)
    for number in range(PARTS):
        if number:
            x = builder.operation(T.ABS, [x], real)
        x = builder.operation(T.NEG, [x], real)
    builder.output(x, "y")
    return builder.build()


class HoldingDevice(CrippledDevice):
    """Prepares nothing before it is told to, and fails what it is told to."""

    def __init__(self, inner: ReferenceDevice) -> None:
        super().__init__(inner, {T.ABS})
        self.held: list[tuple] = []
        self.most = self.begun = 0

    def prepare_model_1_3(self, model: Model, *arguments) -> ErrorStatus:
        self.held.append((model, arguments))
        self.most = max(self.most, len(self.held))
        self.begun += 1
        return ErrorStatus.NONE

    def release(self) -> None:
        held, self.held = self.held, []
        for model, arguments in held:
            super().prepare_model_1_3(model, *arguments)

    def fail_one(self) -> None:
        _, arguments = self.held.pop()
        arguments[-1].reason = "no such luck"
        arguments[-1].notify_1_3(ErrorStatus.GENERAL_FAILURE, None)

    @property
    def awaited(self) -> int:
        return sum(not arguments[-1].is_dead for _, arguments in self.held)


@asynccontextmanager
async def preparing(
    fallback: Fallback, seconds: float | None = None
) -> AsyncIterator[tuple[HoldingDevice, asyncio.Task[asyncnn.PreparedModel]]]:
    """Begin to prepare; go on once the device has all that it is given."""
    async with ReferenceDevice() as inner:
        held = HoldingDevice(inner)
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("held", held)],
            framework=replace(WHEREVER_BETTER, fallback=fallback),
        ) as hal:
            device = Device("framework", hal)
            task = asyncio.create_task(device.prepare(alternating(), timeout=seconds))
            await until(lambda: len(held.held) >= 2)
            await asyncio.sleep(0.01)
            yield held, task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_several_are_prepared_at_a_time_and_no_more() -> None:
    async with preparing(Fallback.FORBID) as (held, task):
        while not task.done():
            held.release()
            await asyncio.sleep(0.001)
        prepared = await task
        assert 2 <= held.most <= MOST_AT_ONCE
        given = inputs()
        assert_same(await prepared.run(given), await expected(given, alternating()))
        assert prepared.hal.usual_route.devices.count("held") == PARTS


async def test_the_first_failure_ends_the_others() -> None:
    async with preparing(Fallback.FORBID) as (held, task):
        waiting = held.awaited
        held.fail_one()
        with pytest.raises(asyncnn.GeneralFailureError, match="no such luck"):
            await task
        assert waiting > 1
        assert not held.awaited, "a preparation goes on that is of no use"


@pytest.mark.parametrize("fallback", [Fallback.PARTIAL, Fallback.FULL])
async def test_the_cpu_takes_the_whole_model_after_the_first_failure(
    fallback: Fallback,
) -> None:
    async with preparing(fallback) as (held, task):
        held.fail_one()
        prepared = await task
        assert not held.awaited
        outputs = await prepared.run(inputs())
        assert outputs.route.devices == ("reference",)
        assert "no such luck" in outputs.route.steps[0].reason


@pytest.mark.parametrize("fallback", [Fallback.FORBID, Fallback.PARTIAL])
async def test_one_deadline_is_that_of_all(fallback: Fallback) -> None:
    async with preparing(fallback, 0.2) as (held, task):
        await asyncio.sleep(0.25)
        begun = held.begun
        while held.held:
            held.fail_one()
            await asyncio.sleep(0)
        began = time.monotonic()
        with pytest.raises(asyncnn.AsyncnnError) as caught:
            await task
        assert time.monotonic() - began < 1
        assert held.begun == begun, "one was begun after the deadline"
        assert caught.value.status is ErrorStatus.MISSED_DEADLINE_PERSISTENT


async def test_cancelling_ends_all() -> None:
    async with preparing(Fallback.PARTIAL) as (held, task):
        await cancelled(task)
        await until(lambda: not held.awaited)
        assert held.held


async def test_a_long_model_is_planned_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = long_model(3000, 0).model
    thresholds: list[tuple[int, int, int]] = []

    def noting(*arguments: Any) -> Any:
        thresholds.append(gc.get_threshold())
        return divide(*arguments)

    monkeypatch.setattr(planning, "divide", noting)
    usual = gc.get_threshold()
    async with asyncnn.open_device("framework") as device:
        on_loop, in_all = time.thread_time(), time.process_time()
        await device.hal.plan(model, ExecutionPreference.FAST_SINGLE_ANSWER)
        on_loop, in_all = time.thread_time() - on_loop, time.process_time() - in_all
    assert on_loop < in_all / 4
    assert thresholds[0][2] > 1000 * usual[2], "full collections while it is divided"
    assert gc.get_threshold() == usual
