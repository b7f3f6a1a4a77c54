"""Fenced runs as applications see them."""

import asyncio
import gc
import random
import tracemalloc
import weakref

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.fenced import FencedExecution
from asyncnn.fences import SyncFence, merge
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, FusedActivationFunc, Operand, OperationType
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import open_device
from tests.networks import AT_ONCE, F32, FOREVER, addition, counting_up
from tests.places import PLACES, REGIONS, device_at
from tests.waits import cancelled, until

ONE = np.ones(4, np.float32)


device = device_at(*PLACES, *REGIONS)


async def test_awaiting_it_gives_the_outputs(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    for _ in range(5):
        outputs = await prepared.run_fenced([ONE, ONE])
        np.testing.assert_array_equal(outputs["z"], 2 * ONE)
        assert outputs.timing is None


@pytest.mark.parametrize("waits", [True, False])
async def test_whoever_awaits_it_goes_on_in_the_turn_that_ends_it(
    device: Device, waits: bool
) -> None:
    loop, turns = asyncio.get_running_loop(), [0]
    prepared = await device.prepare(addition(4))

    def turn() -> None:
        turns[0] += 1
        if len(turns) < 5:
            loop.call_soon(turn)

    async def awaits(run: asyncnn.FencedRun) -> None:
        await run
        turns.append(turns[0])

    fence, source = SyncFence.pair()
    run = prepared.run_fenced([ONE, ONE], wait_for=[fence])
    tasks = [asyncio.create_task(awaits(run)) for _ in range(2)]
    await asyncio.sleep(0)
    last = run
    if waits:  # it is ended by another one's end
        last = prepared.run_fenced([ONE, ONE], wait_for=[run])
    last.add_done_callback(lambda _: turns.append(turns[0]))
    tasks.append(asyncio.create_task(awaits(last)))
    await asyncio.sleep(0)
    source.signal()
    turn()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    first, second, third, fourth = turns[1:]
    if waits:
        assert first == second <= third == fourth
    else:
        assert first == second == third == fourth


async def test_outputs_of_one_run_are_inputs_of_the_next(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    run = prepared.run_fenced([ONE, ONE])
    for _ in range(50):
        run = prepared.run_fenced([run.outputs["z"], ONE], wait_for=[run])
    outputs = await run
    np.testing.assert_array_equal(outputs["z"], 52 * ONE)
    assert await run is outputs


async def test_inputs_are_read_when_the_fences_have_signalled(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    x = asyncnn.shared_array(4)
    run = prepared.run_fenced([x, ONE], wait_for=[gate])
    x[:] = 7
    source.signal()
    np.testing.assert_array_equal((await run)["z"], 8 * ONE)


async def test_it_writes_to_arrays_of_the_caller(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    z = np.empty(4, np.float32)
    outputs = await prepared.run_fenced([ONE, ONE], out=z)
    assert outputs["z"] is z
    np.testing.assert_array_equal(z, 2 * ONE)


async def test_runs_can_be_merged_and_awaited_by_many(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    runs = [prepared.run_fenced([ONE, ONE], wait_for=[gate]) for _ in range(3)]
    last = prepared.run_fenced(
        [ONE, ONE], wait_for=[merge(*(run.fence for run in runs))]
    )
    asyncio.get_running_loop().call_later(0.002, source.signal)
    many = await asyncio.gather(*(_await(last) for _ in range(3)))
    assert all(outputs is last.outputs for outputs in many)
    assert all(run.status is ErrorStatus.NONE for run in runs)


async def test_a_run_waits_for_runs_of_another_device(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    async with open_device() as other:
        first = (await other.prepare(addition(4))).run_fenced(
            [ONE, ONE], wait_for=[gate], out=asyncnn.shared_array(4)
        )
        second = prepared.run_fenced([first.outputs["z"], ONE], wait_for=[first])
        source.signal()
        np.testing.assert_array_equal((await second)["z"], 3 * ONE)


async def test_outputs_that_another_process_cannot_see_are_refused_as_inputs(
    device: Device,
) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    async with open_device() as other:
        first = (await other.prepare(addition(4))).run_fenced(
            [ONE, ONE], wait_for=[gate]
        )
        x = first.outputs["z"]
        if device.name.startswith("remote"):
            with pytest.raises(InvalidArgumentError, match="shared_array"):
                prepared.run_fenced([x, ONE], wait_for=[first])
        source.signal()
        await first
        second = await prepared.run_fenced([x, ONE], wait_for=[first])
        np.testing.assert_array_equal(second["z"], 3 * ONE)


async def test_timing_tells_waiting_from_running(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    run = prepared.run_fenced([ONE, ONE], wait_for=[gate], measure=True)
    assert run.timing is None
    await asyncio.sleep(0.05)  # a driver may be told of it late
    source.signal()
    outputs = await run
    assert outputs.timing == run.timing.launched
    assert run.timing.launched.in_driver_ns >= 2_000_000
    assert run.timing.fenced.in_driver_ns < run.timing.launched.in_driver_ns


async def test_the_fenced_path_of_run_gives_the_same(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    outputs = await prepared.run([ONE, ONE], path="fenced", measure=True)
    np.testing.assert_array_equal(outputs["z"], 2 * ONE)
    assert outputs.timing is not None


async def test_cancelling_the_fenced_path_of_run_ends_the_execution(
    device: Device,
) -> None:
    prepared = await device.prepare(counting_up())
    task = asyncio.create_task(_await(prepared.run([FOREVER], path="fenced")))
    await asyncio.sleep(0.005)
    await cancelled(task)
    follower = prepared.run_fenced([AT_ONCE], timeout=20)
    await follower


class TestFailure:
    async def test_the_cause_goes_down_the_chain(self, device: Device) -> None:
        prepared = await device.prepare(addition(4))
        gate, source = SyncFence.pair()
        late = prepared.run_fenced([ONE, ONE], wait_for=[gate], timeout=0.1)
        middle = prepared.run_fenced([ONE, ONE], wait_for=[late])
        last = prepared.run_fenced([ONE, ONE], wait_for=[middle])
        with pytest.raises(GeneralFailureError, match="it was waiting for fences"):
            await last
        with pytest.raises(MissedDeadlineTransientError):
            await late
        source.signal()

    async def test_what_has_failed_before_is_no_error_of_the_call(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(addition(4))
        failed = SyncFence.failed(ErrorStatus.DEVICE_UNAVAILABLE, "unplugged")
        run = prepared.run_fenced([ONE, ONE], wait_for=[failed])
        follower = prepared.run_fenced([ONE, ONE], wait_for=[run])
        run.cancel()
        for one in (run, follower):
            with pytest.raises(GeneralFailureError, match=r"failed: unplugged$"):
                await one

    async def test_arrays_go_with_the_last_reference_to_them(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(addition(4))
        x = asyncnn.shared_array(4)
        place = place_of(x)
        assert place is not None
        memory = weakref.ref(place[0])
        gate, source = SyncFence.pair()
        gc.disable()
        try:
            run = prepared.run_fenced([x, x], wait_for=[gate])
            source.fail(ErrorStatus.GENERAL_FAILURE, "the camera is gone")
            with pytest.raises(GeneralFailureError):
                await run
            del x, place, run
            await until(lambda: memory() is None)
        finally:
            gc.enable()

    async def test_cancel_ends_it_and_what_follows(self, device: Device) -> None:
        prepared = await device.prepare(addition(4))
        gate, source = SyncFence.pair()
        run = prepared.run_fenced([ONE, ONE], wait_for=[gate])
        follower = prepared.run_fenced([ONE, ONE], wait_for=[run])
        run.cancel()
        with pytest.raises(ResourceExhaustedTransientError, match="cancelled"):
            await run
        with pytest.raises(GeneralFailureError, match="cancelled"):
            await follower
        source.signal()

    async def test_cancelling_a_task_that_awaits_leaves_the_run_alone(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(addition(4))
        gate, source = SyncFence.pair()
        run = prepared.run_fenced([ONE, ONE], wait_for=[gate])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(run), 0.002)
        source.signal()
        await run

    async def test_a_duration_of_nothing_is_missed(self, device: Device) -> None:
        prepared = await device.prepare(addition(4))
        run = prepared.run_fenced([ONE, ONE], duration=0)
        with pytest.raises(
            (MissedDeadlinePersistentError, MissedDeadlineTransientError)
        ):
            await run

    async def test_launch_errors_are_raised_by_the_call(self, device: Device) -> None:
        prepared = await device.prepare(addition(4))
        with pytest.raises(InvalidArgumentError):
            prepared.run_fenced([ONE])
        with pytest.raises(MissedDeadlinePersistentError):
            prepared.run_fenced([ONE, ONE], timeout=0)

    async def test_a_closed_device_raises(self) -> None:
        async with open_device() as device:
            prepared = await device.prepare(addition(4))
        with pytest.raises(DeviceUnavailableError):
            prepared.run_fenced([ONE, ONE])

    async def test_an_output_of_open_shape_is_refused_by_name(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(addition(0))
        with pytest.raises(InvalidArgumentError, match="output z has no fixed shape"):
            prepared.run_fenced([ONE, ONE])


async def _await(awaitable) -> object:
    return await awaitable


def longest_path() -> NamedModel:
    """``z = max(x, y) + 1``."""
    builder = ModelBuilder()
    x, y = builder.input("x", F32, (1,)), builder.input("y", F32, (1,))
    larger = builder.operation(OperationType.MAXIMUM, [x, y], Operand(F32, (1,)))
    one = builder.constant(np.ones(1, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    z = builder.operation(OperationType.ADD, [larger, one, none], Operand(F32, (1,)))
    builder.output(z, "z")
    return builder.build()


@pytest.mark.parametrize("inline_below_us", [0.0, 50.0])
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(2_000, id="some"),
        pytest.param(10_000, id="many", marks=pytest.mark.exhaustive),
    ],
)
async def test_runs_respect_every_edge(count: int, inline_below_us: float) -> None:
    rng = random.Random(5)
    settings = asyncnn.DeviceSettings(inline_below_us=inline_below_us)
    async with open_device(settings=settings) as device:
        models = [
            await device.prepare(longest_path(), priority=priority)
            for priority in asyncnn.Priority
        ]
        zero = np.zeros(1, np.float32)
        gate, source = SyncFence.pair()
        runs = [models[0].run_fenced([zero, zero], wait_for=[gate])]
        depths = [1]
        for number in range(1, count):
            a = rng.randrange(max(0, number - rng.choice((2, 20, 2000))), number)
            b = rng.randrange(number)
            runs.append(
                rng.choice(models).run_fenced(
                    [runs[a].outputs["z"], runs[b].outputs["z"]],
                    wait_for=[runs[a], runs[b]],
                )
            )
            depths.append(max(depths[a], depths[b]) + 1)
        source.signal()
        await merge(*(run.fence for run in runs))
        assert [int(run.outputs["z"][0]) for run in runs] == depths
    del runs
    gc.collect()
    assert not any(isinstance(item, FencedExecution) for item in gc.get_objects())


async def test_a_waiting_run_takes_a_few_kilobytes(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, _source = SyncFence.pair()
    run = prepared.run_fenced([ONE, ONE], wait_for=[gate])
    tracemalloc.start()
    try:
        for _ in range(500):
            run = prepared.run_fenced([run.outputs["z"], ONE], wait_for=[run])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 500 < 6_000
    run.cancel()
    with pytest.raises(AsyncnnError):
        await run
