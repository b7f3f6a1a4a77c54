"""Partitions of two driver processes that follow each other without this one."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings
from asyncnn.execution import Outputs
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.service.process import running_driver
from tests.measuring import best_of
from tests.runtime.framework.crippled import CrippledDevice, Fault
from tests.runtime.framework.mixed import FLOATS, WHEREVER_BETTER, assert_same, expected
from tests.runtime.framework.test_omitted_outputs import argument
from tests.waits import cancelled, until

T = asyncnn.OperationType
CHAINED = replace(WHEREVER_BETTER, chains_drivers=True)


def alternating(shape: tuple[int, int], count: int = 4) -> asyncnn.NamedModel:
    """Return a model of as many partitions, half of them for each driver."""
    builder = asyncnn.ModelBuilder()
    real = asyncnn.hal.Operand(FLOATS, shape)
    x = builder.input("x", FLOATS, shape)
    for number in range(count):
        x = builder.operation((T.SIN, T.EXP)[number % 2], [x], real)
    builder.output(x, "y")
    return builder.build()


def shared(shape: tuple[int, int]) -> np.ndarray:
    x = asyncnn.shared_array(shape)
    x[...] = np.linspace(-1, 1, x.size).reshape(shape)
    return x


@asynccontextmanager
async def chained(
    settings: FrameworkSettings = CHAINED, **options
) -> AsyncIterator[tuple[Device, list[CrippledDevice], int]]:
    """Open a framework of two drivers; yield them, and the second one's process."""
    async with (
        asyncnn.connect() as one,
        running_driver() as driver,
        asyncnn.connect(driver.path) as other,
    ):
        devices = [
            CrippledDevice(one.hal, {T.EXP}),  # type: ignore[arg-type]
            CrippledDevice(other.hal, {T.SIN}, **options),  # type: ignore[arg-type]
        ]
        given = [
            OpenDevice(name, each, is_remote=True)
            for name, each in zip(("one", "other"), devices, strict=True)
        ]
        async with open_framework(
            DeviceSettings(), devices=given, framework=settings
        ) as hal:
            device = Device("framework", hal, make_array=asyncnn.shared_array)
            yield device, devices, driver.pid
            assert not hal._host.active


async def until_launched(devices: list[CrippledDevice], count: int = 1) -> None:
    """Wait until each of the drivers was given so many executions, counted for ever."""
    await until(lambda: all(each.fenced >= count for each in devices))


@pytest.mark.alone
@pytest.mark.parametrize("path", ["async", "sync"])
async def test_they_go_on_while_the_loop_is_busy(path: str) -> None:
    shape = (2000, 2000)
    model, x = alternating(shape), shared(shape)
    wanted = await expected({"x": x}, model)
    async with chained() as (device, devices, _):
        prepared = await device.prepare(model)
        out = {"y": asyncnn.shared_array(shape)}
        await prepared.run({"x": x}, out=out, path=path)

        async def rest() -> float:
            """Return the part of a run that is left when the loop goes on."""
            began = time.monotonic()
            await prepared.run({"x": x}, out=out, path=path)
            usual_s = time.monotonic() - began
            out["y"][...] = 0
            launched = devices[0].fenced
            task = asyncio.create_task(prepared.run({"x": x}, out=out, path=path))
            await until_launched(devices, launched + 2)
            await asyncio.sleep(0.003)  # the fences are handed out
            time.sleep(5 * usual_s + 0.2)  # noqa: ASYNC251 - the loop is to be busy
            began = time.monotonic()
            outputs = await task
            rest_s = time.monotonic() - began
            assert not outputs.route.fell_back
            assert_same(dict(outputs), wanted)
            return rest_s / usual_s

        await best_of(4, rest, 0.4999)


@pytest.mark.parametrize("path", ["async", "sync"])
async def test_results_timings_and_routes_are_the_same(path: str) -> None:
    shape = (16, 16)
    model, x = alternating(shape), shared(shape)
    async with chained() as (device, devices, _):
        prepared = await device.prepare(model)
        for _ in range(3):
            outputs = await prepared.run({"x": x}, path=path, measure=True)
            assert_same(dict(outputs), await expected({"x": x}, model))
            assert outputs.route.devices == ("one", "other") * 2
            assert outputs.timing.on_device_ns <= outputs.timing.in_driver_ns
        assert [each.fenced for each in devices] == [6, 6]


@pytest.mark.parametrize(
    "fault", [Fault.EXECUTING, Fault.EXECUTING_LATER, Fault.RAISES_AT_EXECUTING]
)
async def test_what_fails_falls_back(fault: Fault) -> None:
    shape = (16, 16)
    model, x = alternating(shape), shared(shape)
    async with chained(fault=fault, healthy=1) as (device, _, _):
        prepared = await device.prepare(model)
        for _ in range(3):
            outputs = await prepared.run({"x": x})
            assert_same(dict(outputs), await expected({"x": x}, model))
            assert outputs.route.fell_back


async def killed_meanwhile(length: int, *alternations: int) -> Outputs:
    """Kill the second driver while the first one computes; return what comes of it."""
    shape = (length, length)
    model, x = alternating(shape, *alternations), shared(shape)
    async with chained() as (device, devices, pid):
        prepared = await device.prepare(model)
        task = asyncio.create_task(prepared.run({"x": x}))
        await until_launched(devices)
        os.kill(pid, signal.SIGKILL)
        outputs = await task
        assert_same(dict(outputs), await expected({"x": x}, model))
        return outputs


async def test_a_driver_that_is_killed_is_made_up_for() -> None:
    assert (await killed_meanwhile(1000)).route.fell_back


async def test_the_one_that_died_is_named_though_the_other_is_at_work() -> None:
    route = (await killed_meanwhile(1500, 2)).route
    assert [step.instead_of for step in route.steps] == ["", "other"]


async def test_cancelling_and_deadlines_end_it() -> None:
    shape = (2000, 2000)
    model, x = alternating(shape, 12), shared(shape)
    forbidding = replace(CHAINED, fallback=Fallback.FORBID)
    async with chained(forbidding) as (device, devices, _):
        prepared = await device.prepare(model)
        task = asyncio.create_task(prepared.run({"x": x}))
        await until_launched(devices)
        await cancelled(task)
        with pytest.raises(asyncnn.MissedDeadlineError):
            await prepared.run({"x": x}, timeout=0.001)
        await until(lambda: not device.hal._host.active)


async def test_an_output_that_is_too_small_is_found_out() -> None:
    shape = (16, 16)
    x, y = shared(shape), asyncnn.shared_array((8, 16))
    request = Request(
        (argument(x, 0),), (argument(y, 1),), (place_of(x)[0], place_of(y)[0])
    )
    async with chained() as (device, devices, _):
        prepared = (await device.prepare(alternating(shape))).hal
        callback = ExecutionFuture()
        prepared.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        result = await callback
        assert result.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
        assert result.output_shapes[0].dimensions == shape
        assert not any(each.fenced for each in devices)


async def test_without_the_setting_they_are_handed_on_here() -> None:
    shape = (16, 16)
    async with chained(WHEREVER_BETTER) as (device, devices, _):
        prepared = await device.prepare(alternating(shape))
        await prepared.run({"x": shared(shape)})
        assert not any(each.fenced for each in devices)
