"""Bursts as applications use them."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from asyncnn import Burst, Device, DeviceUnavailableError, Priority
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory.slabs import allocate_in_slab
from asyncnn.qos import Policy
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import RemoteDevice, Server
from tests.held import Held
from tests.networks import AT_ONCE, FOREVER, addition, chain, counting_up
from tests.places import PLACES, REGIONS, device_at
from tests.waits import cancelled, until

device = device_at(*PLACES, *REGIONS)


@pytest.fixture
async def burst(device: Device) -> AsyncIterator[Burst]:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        yield burst


def ramp(start: float = 0.0) -> np.ndarray:
    return start + np.arange(4, dtype=np.float32)


async def test_runs_follow_one_another(burst: Burst) -> None:
    results = [await burst.run({"x": ramp(k), "y": ramp()}) for k in range(5)]
    for k, outputs in enumerate(results):
        assert np.array_equal(outputs["z"], ramp() + ramp(k)), "outputs are copies"
    assert burst.statistics().sent == 5


async def test_arrays_are_written_and_read_in_place(burst: Burst) -> None:
    burst.input(0)[...] = ramp(1)
    burst.input("y")[...] = 10
    outputs = await burst.run_in_place()
    assert outputs["z"] is burst.output(0) is burst.output("z")
    assert np.array_equal(burst.output(), ramp(11))
    burst.input("x")[0] = 100
    assert await burst.run_in_place() is outputs
    assert burst.output()[0] == 110


async def test_inputs_stay_in_place_after_a_run(burst: Burst) -> None:
    place = burst.input("x")
    await burst.run([ramp(1), ramp(2)])
    assert burst.input("x") is place
    assert np.array_equal(place, ramp(1))


async def test_its_model_goes_with_the_last_reference() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        hal = weakref.ref(prepared.hal)
        gc.disable()
        try:
            async with prepared.burst() as burst:
                await burst.run([ramp(), ramp()])
            del burst, prepared
            await until(lambda: hal() is None)
        finally:
            gc.enable()


async def test_its_arrays_go_with_the_last_reference(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gc.disable()
    try:
        async with prepared.burst() as burst:
            await burst.run([ramp(), ramp()])
            array = weakref.ref(burst.input(0))
        del burst
        assert array() is None
    finally:
        gc.enable()


async def test_timing_is_measured_on_request(burst: Burst) -> None:
    outputs = await burst.run([ramp(), ramp()], measure=True)
    assert outputs.timing.on_device_ns <= outputs.timing.in_driver_ns < 10**10
    outputs = await burst.run([ramp(), ramp()])
    assert outputs.timing is None


@pytest.mark.parametrize(
    "inputs", [{"x": ramp()}, {"x": ramp(), "y": np.zeros(5, np.float32)}, [1, 2]]
)
async def test_wrong_inputs_are_refused_before_anything_is_sent(
    burst: Burst, inputs: object
) -> None:
    with pytest.raises(InvalidArgumentError):
        await burst.run(inputs)
    assert burst.statistics().sent == 0


@pytest.mark.parametrize("which", ["w", 2, -1])
async def test_there_are_no_arrays_but_the_models(
    burst: Burst, which: str | int
) -> None:
    with pytest.raises(InvalidArgumentError, match="no input"):
        burst.input(which)
    with pytest.raises(InvalidArgumentError, match="no output"):
        burst.output(which)


async def test_a_second_run_at_a_time_is_refused_and_leaves_the_inputs_alone(
    device: Device,
) -> None:
    prepared = await device.prepare(chain(2000, 64, 64))
    async with prepared.burst() as burst:
        first = asyncio.ensure_future(burst.run(np.zeros((64, 64), np.float32)))
        await asyncio.sleep(0)
        for second in (burst.run(np.ones((64, 64), np.float32)), burst.run_in_place()):
            with pytest.raises(GeneralFailureError, match="has not returned"):
                await second
        assert ((await first)["z"] == 2000).all()


async def test_cancelling_a_run_stops_it_and_the_burst_goes_on(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    async with prepared.burst() as burst:
        for _ in range(2):
            burst.input()[:] = FOREVER
            task = asyncio.ensure_future(burst.run_in_place())
            await asyncio.sleep(0.002)
            await cancelled(task)
        assert (await burst.run(AT_ONCE - 5))["z"] == 0


async def test_a_run_ends_at_its_deadline_and_the_burst_goes_on(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    async with prepared.burst() as burst:
        burst.input()[:] = FOREVER
        for run in (partial(burst.run, burst.input()), burst.run_in_place):
            with pytest.raises(MissedDeadlineTransientError, match="deadline"):
                await run(timeout=0.1)
            with pytest.raises(MissedDeadlinePersistentError):
                await run(timeout=0)
        assert (await burst.run(AT_ONCE - 5, timeout=60))["z"] == 0


def queued_in(driver: ReferenceDevice) -> int:
    return driver.statistics().executions.queued


class TestDeadlinesInADriver:
    """Its scheduler knows those of bursts, as it knows all others."""

    @pytest.fixture
    async def held(
        self, tmp_path: Path
    ) -> AsyncIterator[tuple[Held, ReferenceDevice, PreparedModel]]:
        """A driver with one lane, and its client."""
        held = Held()
        settings = DeviceSettings(
            extensions=(held.extension,), lanes=1, policy=Policy(horizon_ns=10**12)
        )
        async with (
            ReferenceDevice(settings) as driver,
            Server(driver, tmp_path / "socket"),
            connect(tmp_path / "socket") as device,
        ):
            yield held, driver, await device.prepare(held.model(1))

    async def test_they_order_what_waits(
        self, held: tuple[Held, ReferenceDevice, PreparedModel]
    ) -> None:
        gate, driver, prepared = held
        async with AsyncExitStack() as stack:
            bursts = [
                await stack.enter_async_context(prepared.burst()) for _ in range(3)
            ]
            with gate.holding():
                runs = [asyncio.ensure_future(prepared.run(np.float32([0])))]
                await asyncio.to_thread(gate.wait_reached)
                for run, timeout in (
                    (prepared.run, None),
                    (bursts[0].run, None),
                    (bursts[1].run, 400),
                    (bursts[2].run, 300),
                    (prepared.run, 200),
                ):
                    x = np.float32([len(runs)])
                    runs.append(asyncio.ensure_future(run(x, timeout=timeout)))
                    await until(lambda: queued_in(driver) == len(runs) - 1)
            await asyncio.gather(*runs)
        assert [int(x[0]) for x in gate.copied] == [0, 5, 4, 3, 1, 2]

    async def test_the_driver_ends_what_has_missed_its_own(
        self, held: tuple[Held, ReferenceDevice, PreparedModel]
    ) -> None:
        gate, driver, prepared = held
        async with prepared.burst() as burst:
            with gate.holding():
                first = asyncio.ensure_future(prepared.run(np.float32([0])))
                await asyncio.to_thread(gate.wait_reached)
                with pytest.raises(MissedDeadlineTransientError, match="missed by"):
                    await burst.run(np.float32([1]), timeout=0.05)
            await first
            assert driver.statistics().executions.deadline_misses == 1
            assert (await burst.run(np.float32([2]), timeout=60))["y"] == 2


class TestAfterACancelledRun:
    """In this process, where nothing is computed apart for an answer at once."""

    @pytest.fixture
    async def cancelled(self) -> AsyncIterator[tuple[Burst, ExitStack]]:
        held = Held()
        async with open_device(extensions=(held.extension,)) as device:
            prepared = await device.prepare(held.model(4))
            async with prepared.burst() as burst:
                with ExitStack() as holding:
                    holding.enter_context(held.holding())
                    running = asyncio.ensure_future(burst.run([ramp(1)]))
                    await asyncio.to_thread(held.wait_reached)
                    await cancelled(running)
                    yield burst, holding

    async def test_the_next_one_waits_until_it_uses_the_arrays_no_more(
        self, cancelled: tuple[Burst, ExitStack]
    ) -> None:
        burst, holding = cancelled
        burst.input()[...] = ramp(2)
        following = asyncio.ensure_future(burst.run_in_place())
        await asyncio.sleep(0)
        assert burst.statistics().sent == 1
        holding.close()
        np.testing.assert_array_equal((await following)["y"], ramp(2))
        assert burst.statistics().sent == 2

    async def test_the_next_one_does_so_until_its_deadline(
        self, cancelled: tuple[Burst, ExitStack]
    ) -> None:
        burst, _ = cancelled
        for _ in range(2):
            with pytest.raises(MissedDeadlineTransientError, match="was cancelled"):
                await burst.run_in_place(timeout=0.01)

    async def test_the_next_one_may_be_cancelled_as_well(
        self, cancelled: tuple[Burst, ExitStack]
    ) -> None:
        burst, _ = cancelled
        following = asyncio.ensure_future(burst.run_in_place())
        await asyncio.sleep(0)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert burst.statistics().sent == 1


async def test_closing_the_burst_ends_the_run_under_way(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    async with prepared.burst() as burst:
        burst.input()[:] = FOREVER
        running = asyncio.ensure_future(burst.run_in_place())
        await until(lambda: burst.statistics().sent == 1)
    with pytest.raises(DeviceUnavailableError, match="the burst is closed"):
        await running


async def test_shapes_may_change_from_run_to_run(device: Device) -> None:
    prepared = await device.prepare(addition(0, 3))
    async with prepared.burst() as burst:
        with pytest.raises(InvalidArgumentError, match="no fixed shape"):
            burst.input("x")
        with pytest.raises(InvalidArgumentError, match="run first"):
            burst.output("z")
        for rows in (2, 2, 700, 1):
            x = np.full((rows, 3), rows, np.float32)
            outputs = await burst.run([x, x])
            assert np.array_equal(outputs["z"], 2 * x)
            assert burst.output("z").shape == burst.input("x").shape == (rows, 3)


async def test_leaving_the_block_closes_the_burst(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        await burst.run_in_place()
    with pytest.raises(DeviceUnavailableError, match="closed"):
        await burst.run_in_place()


async def test_bursts_of_one_model_run_side_by_side(device: Device) -> None:
    prepared = await device.prepare(addition(4))

    async def use(number: int) -> bool:
        async with prepared.burst() as burst:
            outputs = [await burst.run([ramp(number), ramp(k)]) for k in range(50)]
        return all(
            np.array_equal(o["z"], ramp(number) + ramp(k))
            for k, o in enumerate(outputs)
        )

    assert all(await asyncio.gather(*(use(number) for number in range(8))))


async def test_arrays_are_filled_while_the_driver_works_on_others(
    device: Device,
) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        sets = [burst.reusable() for _ in range(2)]
        for k in range(20):
            now, following = sets[k % 2], sets[1 - k % 2]
            running = asyncio.ensure_future(now.run())
            following.input("x")[...] = k + 1
            outputs = await running
            assert (outputs["z"] == k).all()
        assert burst.statistics().sent == 20
        # Arrays of one size lie in one slab; what is not sent needs no slot.
        is_remote = isinstance(device.hal, RemoteDevice)
        assert burst.statistics().slots == is_remote


async def test_a_run_that_finds_no_memory_changes_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(count: int) -> np.ndarray:
        return np.full((count, 3), count, np.float32)

    def make_one(size: int) -> Memory:
        monkeypatch.setattr("asyncnn.memory.slabs.allocate_in_slab", fail)
        return allocate_in_slab(size)

    def fail(_: int) -> Memory:
        raise ResourceExhaustedTransientError("no memory")

    prepared = await device.prepare(addition(0, 3))
    async with prepared.burst() as burst:
        await burst.run([rows(2), rows(1)])
        monkeypatch.setattr("asyncnn.memory.slabs.allocate_in_slab", make_one)
        with pytest.raises(ResourceExhaustedTransientError):
            await burst.run([rows(4), rows(2)])
        monkeypatch.undo()
        outputs = await burst.run([rows(4), rows(1)])
        assert np.array_equal(outputs["z"], rows(4) + 1)


async def test_pools_of_shapes_that_have_changed_lose_their_slots(
    device: Device,
) -> None:
    prepared = await device.prepare(addition(0, 6000))
    async with prepared.burst() as burst:
        for rows in range(3, 20):
            x = np.ones((rows, 6000), np.float32)
            await burst.run([x, x])
        assert burst.statistics().slots <= 4  # one is a slab, of small arrays


async def test_a_run_of_higher_priority_overtakes_one_of_a_burst(
    device: Device,
) -> None:
    x = np.zeros((64, 64), np.float32)
    patient = await device.prepare(counting_up(), priority=Priority.LOW)
    urgent = await device.prepare(chain(100, 64, 64), priority=Priority.HIGH)
    async with patient.burst() as burst:
        for rounds in (3_000, 6_000, *[12_000] * 5):  # until they last long enough
            overtaken = asyncio.ensure_future(burst.run(AT_ONCE - rounds))
            await asyncio.sleep(0.005)
            assert ((await urgent.run(x))["z"] == 100).all()
            is_overtaken = not overtaken.done()
            assert (await overtaken)["z"] == 0
            if is_overtaken:
                return
    pytest.fail("it waited for one of lower priority")


async def test_bursts_that_never_pause_let_others_run(device: Device) -> None:
    tiny = await device.prepare(addition(4), priority=Priority.LOW)
    urgent = await device.prepare(chain(100, 64, 64), priority=Priority.HIGH)
    x = np.zeros((64, 64), np.float32)
    is_over = False

    async def never_pause() -> int:
        async with tiny.burst() as burst:
            while not is_over:
                await burst.run_in_place()
            return burst.statistics().sent

    async with asyncio.timeout(30):
        bursts = [asyncio.ensure_future(never_pause()) for _ in range(4)]
        for _ in range(20):
            await urgent.run(x)
        is_over = True
        assert all(await asyncio.gather(*bursts))
