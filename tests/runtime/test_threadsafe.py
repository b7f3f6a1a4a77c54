"""Executions that threads launch: told once, in time, and by whom."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn import Device, ReusableExecution
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    DeviceClosedError,
    DeviceUnavailableError,
    MissedDeadlineError,
    ResourceExhaustedTransientError,
    WrongLoopError,
)
from asyncnn.memory.slabs import place_of
from asyncnn.runtime import reusable
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.threadsafe import ThreadsafeRun
from asyncnn.service import Server
from asyncnn.service.process import driver_process
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.places import PLACES, device_at
from tests.waits import until

ONE = np.ones(4, np.float32)


device = device_at(*PLACES)


class Told:
    """Notes how an execution ended, and on which thread it was told."""

    def __init__(self) -> None:
        self.errors: list[AsyncnnError | None] = []
        self.threads: list[int] = []
        self.event = threading.Event()

    def __call__(self, error: AsyncnnError | None) -> None:
        self.errors.append(error)
        self.threads.append(threading.get_ident())
        self.event.set()

    async def ended(self) -> AsyncnnError | None:
        assert await asyncio.to_thread(self.event.wait, 30)
        assert len(self.errors) == 1
        return self.errors[0]


@pytest.mark.parametrize("path", ["async", "fenced", "burst"])
async def test_any_thread_launches_and_is_told_once(device: Device, path: str) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        execution = (
            burst.reusable() if path == "burst" else prepared.reusable(path=path)  # type: ignore[arg-type]
        )
        for number in range(3):
            execution.input(0)[:] = number
            execution.input(1)[:] = 1
            told = Told()
            run = await asyncio.to_thread(execution.launch_threadsafe, told)
            assert await told.ended() is None
            assert run.is_done
            np.testing.assert_array_equal(execution.output(), number + 1)
        assert (await execution.run())["z"][0] == 3


async def test_a_lane_of_this_process_tells_itself() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        told = Told()
        prepared.reusable([ONE, ONE]).launch_threadsafe(told)
        assert await told.ended() is None
        assert told.threads != [threading.get_ident()]
        statistics = device.hal.statistics()
        assert statistics.executions.ended == statistics.models[0].executions.ended == 1


async def test_one_at_a_time_on_the_same_arrays(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    execution, told = prepared.reusable(), Told()
    execution.input()[:] = FOREVER
    run = execution.launch_threadsafe(told)
    with pytest.raises(BusyError):
        execution.launch_threadsafe(told)
    run.cancel()
    assert isinstance(await told.ended(), ResourceExhaustedTransientError)
    execution.input()[:] = AT_ONCE
    await execution.run()


async def test_one_of_two_threads_launches(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = await device.prepare(counting_up())  # still runs when it is asked
    execution, first, second = prepared.reusable([FOREVER]), Told(), Told()
    runs: list[ThreadsafeRun] = []

    def preempted(*args: Any) -> ThreadsafeRun:
        with monkeypatch.context() as usual:
            usual.setattr(reusable, "ThreadsafeRun", ThreadsafeRun)
            runs.append(execution.launch_threadsafe(second))
        return ThreadsafeRun(*args)

    monkeypatch.setattr(reusable, "ThreadsafeRun", preempted)
    with pytest.raises(BusyError):
        execution.launch_threadsafe(first)
    runs[0].cancel()
    assert isinstance(await second.ended(), ResourceExhaustedTransientError)
    assert not first.errors


async def test_one_that_is_told_late_leaves_the_arrays_to_the_next(
    tmp_path: Path,
) -> None:
    async with (
        open_device() as device,
        Server(device.hal, tmp_path / "driver.sock"),
        connect(tmp_path / "driver.sock") as remote,
    ):
        prepared = await remote.prepare(addition(4))
        execution, first, second = prepared.reusable([ONE, ONE]), Told(), Told()
        execution.launch_threadsafe(first)
        while not execution._result:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not first.errors
        execution.launch_threadsafe(second)
        while not first.errors:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(BusyError):
            execution.launch_threadsafe(first)
        assert await second.ended() is None


async def test_the_callback_may_launch_the_next(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    execution, count = prepared.reusable([ONE, ONE]), [0]
    ended = threading.Event()

    def again(error: AsyncnnError | None) -> None:
        assert error is None
        count[0] += 1
        if count[0] == 50:
            ended.set()
        else:
            execution.launch_threadsafe(again)

    await asyncio.to_thread(execution.launch_threadsafe, again)
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_callback_that_raises_harms_nobody(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = await device.prepare(addition(4))
    execution = prepared.reusable([ONE, ONE])
    called = threading.Event()

    def fail(error: AsyncnnError | None) -> None:
        called.set()
        raise ValueError("a mistake of the application")

    await asyncio.to_thread(execution.launch_threadsafe, fail)
    assert await asyncio.to_thread(called.wait, 20)
    told = Told()
    while True:
        try:
            await asyncio.to_thread(execution.launch_threadsafe, told)
        except BusyError:
            continue
        break
    assert await told.ended() is None
    assert "a mistake of the application" in caplog.text


async def test_cancelling_ends_it_early_and_once(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    executions = [prepared.reusable() for _ in range(3)]
    for each in executions:
        each.input()[:] = FOREVER
    told = [Told() for _ in executions]

    def launch_and_cancel() -> None:
        runs = [
            each.launch_threadsafe(done)
            for each, done in zip(executions, told, strict=True)
        ]
        for run in runs:
            run.cancel()
            run.cancel()

    await asyncio.to_thread(launch_and_cancel)
    for done in told:
        assert isinstance(await done.ended(), ResourceExhaustedTransientError)
    for each in executions:
        each.input()[:] = AT_ONCE
        await each.run(timeout=60)


async def test_deadlines_hold(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    execution, told = prepared.reusable(), Told()
    execution.input()[:] = FOREVER
    await asyncio.to_thread(execution.launch_threadsafe, told, timeout=0.005)
    assert isinstance(await told.ended(), MissedDeadlineError)


async def test_closing_the_device_ends_all_once() -> None:
    async with open_device() as device:
        prepared = await device.prepare(counting_up())
        executions = [prepared.reusable([FOREVER]) for _ in range(4)]
        told = [Told() for _ in executions]
        for execution, done in zip(executions, told, strict=True):
            await asyncio.to_thread(execution.launch_threadsafe, done)
    for done in told:
        assert isinstance(await done.ended(), DeviceUnavailableError)
    late = Told()
    await asyncio.to_thread(executions[0].launch_threadsafe, late)
    assert isinstance(await late.ended(), DeviceUnavailableError)


def test_a_loop_that_is_closed_is_told_at_once(tmp_path: Path) -> None:
    async def made() -> ReusableExecution:
        async with open_device() as device:
            prepared = await device.prepare(addition(4))
            return prepared.reusable(path="fenced")

    execution = asyncio.run(made())
    with pytest.raises(DeviceClosedError):
        execution.launch_threadsafe(Told())


@pytest.mark.parametrize("turns", [0, 1], ids=["before", "as a task"])
def test_a_loop_that_closes_tells_what_it_has_not_begun(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def made() -> ReusableExecution:
        async with open_device() as device:
            prepared = await device.prepare(addition(4))
            return prepared.reusable(path="fenced")

    loop, told = asyncio.new_event_loop(), Told()
    try:
        execution = loop.run_until_complete(made())
        run = execution.launch_threadsafe(told)
        for _ in range(turns):
            loop.call_soon(loop.stop)
            loop.run_forever()
    finally:
        loop.close()
    gc.collect()
    (error,) = told.errors
    assert isinstance(error, DeviceClosedError)
    assert run.is_done
    execution.check_free()
    assert not caplog.text


async def test_memory_goes_with_its_execution() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        execution = prepared.reusable()
        place = place_of(execution.input(0))
        assert place is not None
        memory = weakref.ref(place[0])
        del place
        for path in ("threadsafe", "async", "threadsafe"):
            execution.input(0)[:] += 1
            if path == "threadsafe":
                told = Told()
                execution.launch_threadsafe(told)
                assert await told.ended() is None
            else:
                await execution.run()
            np.testing.assert_array_equal(execution.output(), execution.input(0))
        assert memory() is not None
        del execution, told
        await until(lambda: memory() is None)


async def test_each_execution_uses_its_own_arrays() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        executions = [prepared.reusable() for _ in range(50)]
        for number, execution in enumerate(executions):
            execution.input(0)[:] = number
        for turn in range(3):
            for number, execution in enumerate(executions):
                execution.input(1)[:] = turn
                told = Told()
                execution.launch_threadsafe(told)
                assert await told.ended() is None
                np.testing.assert_array_equal(execution.output(), number + turn)


async def test_a_burst_runs_on_a_thread_that_blocks(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        burst.input(0)[:] = 1
        burst.input(1)[:] = 2
        outputs = await asyncio.to_thread(burst.run_in_place_blocking)
        np.testing.assert_array_equal(outputs["z"], 3)
        burst.input(0)[:] = 5
        await burst.run_in_place()
        outputs = await asyncio.to_thread(burst.run_in_place_blocking, measure=True)
        np.testing.assert_array_equal(outputs["z"], 7)
        assert outputs.timing is not None
        assert burst.statistics().sent == 3
    with pytest.raises(DeviceClosedError):
        await asyncio.to_thread(burst.run_in_place_blocking)


class Owner:
    def release(self) -> None: ...

    def take(self, result: ExecutionResult) -> AsyncnnError | None: ...


def test_one_under_way_when_its_loop_closes_ends_once_it_is_cancelled() -> None:
    loop, told = asyncio.new_event_loop(), Told()
    kept = [loop.create_future()]  # as by a device that still computes

    async def answered() -> None:
        await kept[0]

    run = ThreadsafeRun(Owner(), told)
    run.go_by(loop, answered)
    for _ in range(2):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gc.collect()
    assert not told.errors
    for _ in range(2):
        run.cancel()
        (error,) = told.errors
        assert isinstance(error, DeviceClosedError)
    kept.clear()
    gc.collect()
    assert len(told.errors) == 1


async def test_a_thread_that_blocks_is_told_who_has_ended_the_burst() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        burst = await prepared.burst()
    for _ in range(2):
        with pytest.raises(DeviceClosedError, match="the device is closed"):
            await asyncio.to_thread(burst.run_in_place_blocking)
    await burst.aclose()


async def test_a_loop_that_closed_while_a_thread_blocked_does_not_hide_the_end() -> (
    None
):
    closed = asyncio.new_event_loop()
    closed.close()
    with driver_process() as driver:
        async with connect(driver.path) as device:
            prepared = await device.prepare(addition(4))
            async with prepared.burst() as burst:
                link = burst._controller._link
                assert link is not None
                link._loop = closed
                link._requests.close()
                with pytest.raises(DeviceUnavailableError):
                    await asyncio.to_thread(burst.run_in_place_blocking)


async def test_a_burst_does_not_block_its_own_event_loop(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    async with prepared.burst() as burst:
        with pytest.raises(WrongLoopError, match="await run_in_place"):
            burst.run_in_place_blocking()
        await burst.run_in_place()


async def test_a_thread_that_blocks_is_told_that_the_loop_is_closed() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    with driver_process() as driver:
        async with connect(driver.path) as device:
            prepared = await device.prepare(counting_up())
            async with prepared.burst() as burst:
                burst.input()[:] = FOREVER
                link = burst._controller._link
                assert link is not None
                link._loop = closed  # as if it had ended without closing the burst
                with pytest.raises(DeviceClosedError, match="loop of the burst"):
                    await asyncio.to_thread(burst.run_in_place_blocking)


async def test_a_driver_that_dies_ends_a_thread_that_blocks() -> None:
    with driver_process() as driver:
        async with connect(driver.path) as device:
            prepared = await device.prepare(counting_up())
            async with prepared.burst() as burst:
                burst.input()[:] = FOREVER
                blocked = asyncio.create_task(
                    asyncio.to_thread(burst.run_in_place_blocking)
                )
                await until(lambda: burst.statistics().sent > 0)
                driver.process.kill()
                with pytest.raises(DeviceUnavailableError):
                    await blocked
