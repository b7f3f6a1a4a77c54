"""What an idle device gives back, and what it keeps."""

import asyncio
import gc
import sys
import threading
import time

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.process_wide import return_free_memory
from asyncnn.devices.reference import SUSTAINED_IDLE
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, MeasureTiming
from tests.devices.test_execution import request_for
from tests.devices.test_quality_of_service import prepare
from tests.mappings import resident_bytes
from tests.measuring import best_of
from tests.networks import chain
from tests.processes import executed
from tests.waits import until

pytestmark = pytest.mark.alone

IDLE_S = 0.05
SETTINGS = DeviceSettings(inline_below_us=0, idle_after_s=IDLE_S)
SIDE = 1024


def lane_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("asyncnn")]


async def execute(prepared: IPreparedModel, side: int) -> None:
    x = np.zeros((side, side), np.float32)
    callback = ExecutionFuture()
    request = request_for([x], [np.empty_like(x)])
    prepared.execute_1_3(request, MeasureTiming.NO, None, None, callback)
    assert (await callback).status is ErrorStatus.NONE


async def test_what_runs_again_and_again_keeps_its_memory() -> None:
    """Though nothing was prepared for long."""
    idle_s = 0.5
    settings = DeviceSettings(inline_below_us=0, idle_after_s=idle_s)
    async with ReferenceDevice(settings) as device:
        prepared = await prepare(device, chain(3, 8, 8))
        await execute(prepared, 8)
        ends_s = time.monotonic() + 3 * idle_s
        while time.monotonic() < ends_s:
            assert device.statistics().models[0].idle_bytes
            await execute(prepared, 8)
            await asyncio.sleep(idle_s / 50)
        await until(lambda: not device.statistics().models[0].idle_bytes)


async def test_threads_end_and_start_again() -> None:
    async with ReferenceDevice(SETTINGS) as device:
        prepared = await prepare(device, chain(3, 8, 8))
        for _ in range(2):
            await execute(prepared, 8)
            assert lane_threads()
            await until(lambda: lane_threads() == [])
            await until(lambda: device.statistics().threads == 0)


async def test_buffers_are_given_back() -> None:
    async with ReferenceDevice(SETTINGS) as device:
        prepared = await prepare(device, chain(3, 8, 8))
        await execute(prepared, 8)
        assert device.statistics().models[0].idle_bytes > 0
        await until(lambda: device.statistics().models[0].idle_bytes == 0)


async def test_inline_executions_keep_a_device_busy() -> None:
    settings = DeviceSettings(inline_below_us=1e9, idle_after_s=2 * IDLE_S)
    async with ReferenceDevice(settings) as device:
        prepared = await prepare(device, chain(3, 8, 8))
        for _ in range(8):
            await execute(prepared, 8)
            await asyncio.sleep(IDLE_S / 2)
        assert device.statistics().models[0].idle_bytes > 0
        await until(lambda: device.statistics().models[0].idle_bytes == 0)


async def test_a_model_for_sustained_speed_stays_ready_for_longer() -> None:
    async with ReferenceDevice(SETTINGS) as device:
        preference = ExecutionPreference.SUSTAINED_SPEED
        prepared = await prepare(device, chain(3, 8, 8), preference=preference)
        other = await prepare(device, chain(4, 8, 8))
        await execute(prepared, 8)
        await execute(other, 8)
        await until(lambda: device.statistics().models[1].idle_bytes == 0)
        await asyncio.sleep(2 * IDLE_S)
        assert device.statistics().models[0].idle_bytes > 0
        assert lane_threads() == ["asyncnn-lane"]


async def test_what_is_for_sustained_speed_is_given_back_in_the_end() -> None:
    settings = replace(SETTINGS, idle_after_s=IDLE_S / 10)
    async with ReferenceDevice(settings) as device:
        preference = ExecutionPreference.SUSTAINED_SPEED
        prepared = await prepare(device, chain(3, 8, 8), preference=preference)
        for _ in range(2):
            began = time.monotonic()
            await execute(prepared, 8)
            await until(lambda: not device.statistics().models[0].idle_bytes)
            assert time.monotonic() - began >= SUSTAINED_IDLE * settings.idle_after_s
            await until(lambda: lane_threads() == [])


async def resident_around_executions() -> tuple[int, int, int]:
    """Return the bytes after preparation, after executions, and when idle again."""
    async with ReferenceDevice(SETTINGS) as device:
        prepared = await prepare(device, chain(40, SIDE, SIDE))
        await until(lambda: lane_threads() == [])
        gc.collect()
        return_free_memory()
        prepared_bytes = resident_bytes()
        for _ in range(3):
            await asyncio.gather(*(execute(prepared, SIDE) for _ in range(8)))
        executed_bytes = resident_bytes()
        gc.collect()
        await until(lambda: lane_threads() == [])
        await asyncio.sleep(2 * IDLE_S)  # what the system is given back comes last
        return prepared_bytes, executed_bytes, resident_bytes()


def test_memory_returns_to_what_it_was_after_preparation() -> None:
    # In a new process: what others have left in the heap lies between the arrays.
    run = [sys.executable, "-m", "tests.devices.test_idle"]
    told = executed(*run, check=True)
    prepared, ran, idle = map(int, told.stdout.split())
    assert ran > prepared
    assert idle < 1.05 * prepared


async def test_an_idle_device_uses_no_processor_time() -> None:
    async with ReferenceDevice(SETTINGS) as device:
        prepared = await prepare(device, chain(3, 8, 8))
        await execute(prepared, 8)
        await until(lambda: lane_threads() == [])

        async def spent_ns() -> float:
            before = time.process_time_ns()
            await asyncio.sleep(0.5)
            return time.process_time_ns() - before

        # Of 10 ms in 10 s, the share of half a second.
        await best_of(4, spent_ns, 0.499e6)


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, asyncio.run(resident_around_executions()))))
