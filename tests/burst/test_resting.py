"""What idle bursts give back."""

import asyncio
import gc

import numpy as np

from asyncnn.callbacks import ExecutionResult
from asyncnn.devices import DeviceSettings
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, MeasureTiming
from asyncnn.runtime.device import Device
from tests.burst.ends import (
    ADDITION,
    Ends,
    KnownPools,
    ScriptedModel,
    addition_pools,
    served,
)
from tests.mappings import mapped_pools
from tests.networks import addition
from tests.places import PLACES, device_at
from tests.waits import until

IDLE_S = 0.05
SETTINGS = DeviceSettings(idle_after_s=IDLE_S)
PACKET = ADDITION.encode((1, 2), MeasureTiming.NO)


device = device_at(*PLACES, settings=SETTINGS)


def known_pools() -> KnownPools:
    return KnownPools(dict(enumerate(addition_pools(), 1)))


async def rest() -> None:
    """Wait until the device rests."""
    await asyncio.sleep(3 * IDLE_S)


async def ask(ends: Ends) -> ExecutionResult:
    result = await ends(PACKET)
    assert result.status is ErrorStatus.NONE
    return result


async def test_memories_are_asked_for_again_after_a_rest(device: Device) -> None:
    callback = known_pools()
    prepared = await device.prepare(addition(4))
    async with served(prepared.hal, callback) as ends, asyncio.timeout(20):
        await ask(ends)
        for rests in (1, 2, 3):
            assert callback.asked == [[1, 2]] * rests
            while len(callback.asked) == rests:  # it may not have rested yet
                await rest()
                await ask(ends)


async def test_a_burst_of_a_model_for_sustained_speed_keeps_its_memories(
    device: Device,
) -> None:
    callback = known_pools()
    prepared = await device.prepare(
        addition(4), preference=ExecutionPreference.SUSTAINED_SPEED
    )
    async with served(prepared.hal, callback) as ends:
        await ask(ends)
        await rest()
        await ask(ends)
    assert callback.asked == [[1, 2]]


# A driver unmaps what was forgotten after two seconds.
async def test_pools_that_the_application_has_dropped_are_unmapped(
    device: Device,
) -> None:
    gc.collect()
    before = mapped_pools()
    callback = known_pools()
    prepared = await device.prepare(addition(4))
    async with served(prepared.hal, callback) as ends:
        await ask(ends)
        callback.pools.clear()  # but it does not free their slots
        gc.collect()
        assert mapped_pools() == before + 2
        await until(lambda: mapped_pools() == before)
        assert (await ends(PACKET)).status is ErrorStatus.INVALID_ARGUMENT


async def test_runs_go_on_as_if_nothing_had_been(device: Device) -> None:
    x = np.arange(4, dtype=np.float32)
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        for k in range(4):
            outputs = await burst.run([x, x + k])
            assert np.array_equal(outputs["z"], 2 * x + k)
            await rest()
        assert burst.statistics().sent == 4


async def test_a_request_under_way_keeps_its_memories(scripted: ScriptedModel) -> None:
    callback = known_pools()
    scripted.outcome = None
    async with served(scripted, callback) as ends:
        for _ in range(2):
            ends.requests.write_nowait(PACKET)
            await scripted.launched()
            scripted.bursts.rest([scripted])
            scripted.end()
            assert (await ends.receive()).status is ErrorStatus.NONE
    assert callback.asked == [[1, 2]]


async def test_bursts_of_other_models_keep_their_memories(
    scripted: ScriptedModel,
) -> None:
    callback = known_pools()
    async with served(scripted, callback) as ends:
        await ask(ends)
        for models, asked in (([ScriptedModel()], 1), ([], 1), ([scripted], 2)):
            scripted.bursts.rest(models)
            await ask(ends)
            assert len(callback.asked) == asked
