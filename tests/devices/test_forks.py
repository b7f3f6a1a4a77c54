"""Devices in a process that forks, and in the child."""

import asyncio
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.releasing import ModelReleaser
from asyncnn.engine import Program
from asyncnn.fences import SyncFence
from asyncnn.qos.alarms import loop_alarms
from tests.forks import in_child, in_child_blocking
from tests.networks import addition, chain
from tests.waits import until

X = np.arange(4, dtype=np.float32)
INPUTS = {"x": X, "y": X}
ON_LANES = asyncnn.DeviceSettings(inline_below_us=0, idle_after_s=0.05)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def on_a_loop(run: Callable[[], Any]) -> str:
    """Run a coroutine on another loop, in a thread that has none, for 5 s at most."""
    told: list[str] = []

    async def limited() -> None:
        async with asyncio.timeout(20):
            try:
                told.append(str(await run()))
            except BaseException as error:
                told.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=lambda: asyncio.run(limited()))
    thread.start()
    thread.join(10)
    return told[0] if told else "hangs"


@pytest.mark.parametrize("settings", [ON_LANES, asyncnn.DeviceSettings()])
@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_the_childs_copy_of_a_device_refuses_at_once(
    settings: asyncnn.DeviceSettings, path: Any
) -> None:
    async with asyncnn.open_device(settings=settings) as device:
        prepared = await device.prepare(addition(4))
        for _ in range(3):
            await prepared.run(INPUTS)
        told = in_child_blocking(
            lambda: on_a_loop(lambda: prepared.run(INPUTS, path=path))
        )
        assert told.startswith("ForkedError: the model belongs to the process that")
        told = in_child_blocking(lambda: on_a_loop(lambda: device.prepare(addition(4))))
        assert told.startswith("ForkedError: the device belongs")
        outputs = await prepared.run(INPUTS)
        np.testing.assert_array_equal(outputs["z"], X + X)


async def test_leaving_the_childs_copy_ends_at_once_and_the_parents_goes_on() -> None:
    opening = asyncnn.open_device(settings=ON_LANES)
    device = await opening.__aenter__()
    prepared = await device.prepare(addition(4))
    await prepared.run(INPUTS)

    async def leave() -> str:
        await opening.__aexit__(None, None, None)
        return "left"

    assert in_child_blocking(lambda: on_a_loop(leave)) == "left"
    await prepared.run(INPUTS)
    await opening.__aexit__(None, None, None)


async def test_the_childs_copy_of_a_framework_waits_for_nothing() -> None:
    opening = asyncnn.open_devices(
        "sample-minimal",
        settings=ON_LANES,
        framework=asyncnn.FrameworkSettings(moving_weight=0.0),
    )
    device = await opening.__aenter__()
    prepared = await device.prepare(chain(300, 100_000))
    x = np.zeros(100_000, np.float32)
    gate, source = SyncFence.pair()  # what waits for it is there when the child begins
    fenced = [prepared.run_fenced(x, wait_for=[gate]) for _ in range(2)]
    running = asyncio.create_task(prepared.run(x))
    await until(lambda: len(device.hal._host.active) >= 2)

    async def leave() -> int:
        fenced[0].cancel()
        await opening.__aexit__(None, None, None)
        return len(device.hal._host.active)

    assert in_child_blocking(lambda: on_a_loop(leave)) in ("2", "3")
    source.signal()
    for run in (running, *fenced):
        assert (await run)["z"][0] == 300
    await opening.__aexit__(None, None, None)


async def use_a_new_device() -> str:
    async with asyncnn.open_device(settings=ON_LANES) as device:
        prepared = await device.prepare(addition(4))
        outputs = await prepared.run(INPUTS)
        fired = asyncio.Event()
        loop_alarms().call_at(time.monotonic_ns(), fired.set)
        await fired.wait()
        while (await device.statistics()).threads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # until it is idle
        await prepared.run(INPUTS, timeout=1.0)
    return str(outputs["z"].tolist())


async def test_a_device_of_the_childs_own_works_with_its_timers() -> None:
    async with asyncnn.open_device(settings=ON_LANES) as device:
        prepared = await device.prepare(addition(4))
        await prepared.run(INPUTS)  # there are lanes and timers now
        told = in_child_blocking(lambda: on_a_loop(use_a_new_device))
        assert told == str((X + X).tolist())
        await prepared.run(INPUTS)


def report(prepared: asyncnn.PreparedModel, pipe: "Connection[Any, Any]") -> None:
    pipe.send(on_a_loop(lambda: prepared.run(INPUTS)))
    pipe.send(on_a_loop(use_a_new_device))


async def test_multiprocessing_by_fork_disturbs_nothing() -> None:
    context = multiprocessing.get_context("fork")
    async with asyncnn.open_device(settings=ON_LANES) as device:
        prepared = await device.prepare(addition(4))
        await prepared.run(INPUTS)
        ours, theirs = context.Pipe()
        process = context.Process(target=report, args=(prepared, theirs))
        process.start()
        assert ours.poll(10)
        assert ours.recv().startswith("ForkedError")
        assert ours.poll(10)
        assert ours.recv() == str((X + X).tolist())
        process.join()
        assert process.exitcode == 0
        running = [asyncio.create_task(prepared.run(INPUTS)) for _ in range(20)]
        for outputs in await asyncio.gather(*running):
            np.testing.assert_array_equal(outputs["z"], X + X)
    for end in (ours, theirs):
        end.close()


async def test_a_child_frees_what_it_drops_without_its_parents_loop() -> None:
    class Prepared:
        pass

    program, releaser = Program(chain(600, 2).model), ModelReleaser()
    assert program.is_large
    held = [Prepared()]
    releaser.watch(held[0], program)
    freed = weakref.ref(program)
    del program

    def drop() -> str:
        held.clear()
        return "freed" if freed() is None else "kept"

    assert await in_child(drop) == "freed"
    assert freed() is not None
