"""What an engine computes alone runs on threads without an interpreter."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from asyncnn import logs
from asyncnn.devices import DeviceSettings
from asyncnn.devices.executable import MOST_LESSONS
from asyncnn.devices.run import Run
from asyncnn.engine.job import Job
from asyncnn.hal.types import Priority
from asyncnn.qos import Client, Policy
from asyncnn.qos.native_lanes import NICE
from asyncnn.qos.work import acting_for
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from tests.devices.test_accelerated import X, layers
from tests.networks import addition
from tests.processes import python
from tests.waits import until

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")

TASKS = Path("/proc/self/task")

pytestmark = [
    pytest.mark.skipif(Job is None, reason="there is no compiled job"),
    pytest.mark.skipif(not TASKS.exists(), reason="there is no /proc"),
]

LOW_NICE = min(NICE, 19 - os.nice(0))

SHORT = np.ones(4, np.float32)

PATIENT = Policy(starvation_limit_ns=10**12)
"""Leaves LOW work where it is, however busy the machine is with other programs."""
ON_LANES = DeviceSettings(inline_below_us=0, lanes=1, policy=PATIENT)


def native_lanes() -> int:
    """Count the threads that have the name of lanes and are not Python's."""
    return len(nice_values())


def nice_values() -> list[int]:
    """Return those of native lanes, by size."""
    own = {str(thread.native_id) for thread in threading.enumerate()}
    return sorted(
        int((task / "stat").read_text().rpartition(")")[2].split()[16]) - os.nice(0)
        for task in TASKS.iterdir()
        if task.name not in own and (task / "comm").read_text() == "asyncnn-lane\n"
    )


async def test_a_run_is_not_like_an_earlier_one_with_options() -> None:
    async with open_device("accelerated", settings=ON_LANES) as device:
        prepared = await device.prepare(addition(4))
        for measure in (False, True, False):
            run = await prepared.run([SHORT, SHORT], measure=measure)
            assert (run.timing is not None) is measure


async def runs_beside_a_held_interpreter(prepared: PreparedModel, x: object) -> bool:
    """Return whether a run ends though no other thread gets the interpreter."""
    interval_s = sys.getswitchinterval()
    running = asyncio.ensure_future(prepared.run(x))
    await asyncio.sleep(0)
    sys.setswitchinterval(20)
    try:
        before = time.process_time_ns() - time.thread_time_ns()
        due_ns = time.monotonic_ns() + 10**9
        while time.monotonic_ns() < due_ns:
            if time.process_time_ns() - time.thread_time_ns() - before > 10**6:
                return True
    finally:
        sys.setswitchinterval(interval_s)
        await running
    return False


async def test_a_model_moves_to_them_after_its_first_run() -> None:
    async with open_device("accelerated", settings=ON_LANES) as device:
        prepared = await device.prepare(layers(4))
        assert native_lanes() == 0
        for _ in range(3):
            outputs = await prepared.run(X)
            np.testing.assert_array_equal(outputs["y"], X / 16)
        assert native_lanes() == 1
        assert await runs_beside_a_held_interpreter(prepared, X)
    assert native_lanes() == 0


@pytest.mark.parametrize("limit", ["duration", "timeout"])
async def test_what_may_be_reported_before_its_end_is_not_on_one(limit: str) -> None:
    """It would write to the application's arrays after that."""
    async with open_device("accelerated", settings=ON_LANES) as device:
        prepared = await device.prepare(layers(24))
        await prepared.run(X)  # too long to be known as short
        await prepared.run_fenced(X, **{limit: 60.0})
        assert native_lanes() == 0


async def test_what_needs_python_stays_on_lanes_of_python() -> None:
    async with open_device("reference", settings=ON_LANES) as device:
        prepared = await device.prepare(addition(1000))
        for _ in range(3):
            await prepared.run([np.ones(1000, np.float32)] * 2)
        assert native_lanes() == 0


async def test_both_kinds_serve_one_queue() -> None:
    """No run waits for a lane of the wrong kind."""
    async with (
        open_device("accelerated", settings=ON_LANES) as device,
        asyncio.TaskGroup() as group,
    ):
        prepared = await device.prepare(layers(4))
        opened = await device.prepare(addition(0, 0))
        pending = [group.create_task(prepared.run(X * k)) for k in range(8)]
        z = np.ones((8, 8), np.float32)
        others = [group.create_task(opened.run([z[:k, :k]] * 2)) for k in range(1, 8)]
        for k, task in enumerate(pending):
            np.testing.assert_array_equal((await task)["y"], X * k / 16)
        for k, task in enumerate(others, 1):
            np.testing.assert_array_equal((await task)["z"], 2 * z[:k, :k])
        statistics = (await device.statistics()).executions
        assert statistics.running == statistics.queued == 0


@pytest.mark.parametrize("priority", [Priority.LOW, Priority.MEDIUM])
async def test_an_urgent_run_gets_a_lane_and_the_other_goes_on(
    priority: Priority,
) -> None:
    """At a barrier of the other one; if that is LOW, at once, on a lane beside it."""
    async with open_device("accelerated", settings=ON_LANES) as device:
        long = await device.prepare(layers(24), priority=priority)
        urgent = await device.prepare(layers(1), priority=Priority.HIGH)
        for prepared in (long, urgent) * 2:
            await prepared.run(X)
        for _ in range(5):
            running = asyncio.ensure_future(long.run(X))
            await asyncio.sleep(0)
            await urgent.run(X)
            assert not running.done()
            outputs = await running
            np.testing.assert_allclose(outputs["y"], X / 2**24)
        executions = (await device.statistics()).executions
        assert (executions.preemptions == 0) == (priority is Priority.LOW)
        assert native_lanes() == 1 + (priority is Priority.LOW)


async def test_low_work_has_threads_with_a_nice_value_unless_others_compete() -> None:
    """Shares come first: nobody's LOW work loses them to the work of others."""
    async with open_device("accelerated", settings=ON_LANES) as device:
        low = await device.prepare(layers(24), priority=Priority.LOW)
        other = await device.prepare(layers(24), priority=Priority.HIGH)
        for _ in range(2):
            await low.run(X)
        assert nice_values() == [LOW_NICE]
        with acting_for(Client("other")):
            await other.run(X)
            running = asyncio.ensure_future(other.run(X))
        await asyncio.sleep(0)
        await asyncio.gather(running, low.run(X))
        assert nice_values() == [0, LOW_NICE]


async def test_low_work_of_a_client_keeps_its_share_beside_urgent_work_of_another() -> (
    None
):
    """Each has had half of what both have, by the time that the first is done."""
    async with open_device("accelerated", settings=ON_LANES) as device:
        low = await device.prepare(layers(4), priority=Priority.LOW)
        high = await device.prepare(layers(4), priority=Priority.HIGH)
        for prepared in (low, high) * 2:
            await prepared.run(X)
        runs, done = 60, {"low": 0, "high": 0}

        async def saturate(name: str, prepared: PreparedModel) -> None:
            with acting_for(Client(name)):
                while max(done.values()) < runs:
                    await prepared.run(X)
                    done[name] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(saturate("low", low))
                group.create_task(saturate("high", high))
        assert min(done.values()) > runs // 2


async def test_idle_threads_end_and_come_back() -> None:
    settings = DeviceSettings(inline_below_us=0, lanes=1, idle_after_s=0.05)
    async with open_device("accelerated", settings=settings) as device:
        prepared = await device.prepare(layers(4))
        for _ in range(2):
            for _ in range(3):
                await prepared.run(X)
            await until(lambda: not native_lanes())


UNCLOSED = """
import asyncio, sys, time
import asyncnn
from asyncnn import logs
from asyncnn.devices import DeviceSettings
from asyncnn.devices.executable import MOST_LESSONS
from asyncnn.devices.run import Run
from tests.devices.test_accelerated import X, layers
settings = DeviceSettings(inline_below_us=0, lanes=1)
async def begin():
    device = await asyncnn.open_device("accelerated", settings=settings).__aenter__()
    prepared = await device.prepare(layers(24))
    await prepared.run(X)
    begun = [asyncio.ensure_future(prepared.run(X)) for _ in range(2)]
    await asyncio.sleep(0)
    return device, prepared, begun
loop = asyncio.new_event_loop()
kept = loop.run_until_complete(begin())
print(time.monotonic())
sys.stdout.flush()
"""


@pytest.mark.parametrize("end", ["", "loop.close()", "loop.close(); del kept"])
def test_the_process_ends_at_once_with_a_run_that_nobody_waits_for(end: str) -> None:
    ran = python("-W", "ignore", "-c", UNCLOSED + end, timeout=60)
    took_s = time.monotonic() - float(ran.stdout or 0)
    assert ran.returncode == 0, ran.stderr
    assert took_s < 8, "it has waited for a graph that nobody gives back"


def test_an_interrupt_as_a_run_is_told_of_loses_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, left = asyncio.new_event_loop(), 1

    def interrupt(_: Run) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    device = open_device("accelerated", settings=ON_LANES)
    opened = loop.run_until_complete(device.__aenter__())
    prepared = loop.run_until_complete(opened.prepare(layers(4)))
    loop.run_until_complete(prepared.run(X))
    logs.set_tags("cpuexe")
    monkeypatch.setattr(Run, "_report_run", interrupt)
    running = loop.create_task(prepared.run(X))
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(running)
        outputs = loop.run_until_complete(asyncio.wait_for(running, 30))
    finally:
        logs.set_tags("")
        loop.run_until_complete(device.__aexit__(None, None, None))
        loop.close()
    np.testing.assert_array_equal(outputs["y"], X / 16)


async def test_runs_that_are_like_others_are_learnt_from() -> None:
    settings = DeviceSettings(inline_below_us=0, lanes=1)
    async with open_device("accelerated", settings=settings) as device:
        prepared = await device.prepare(layers(4))
        for _ in range(40):
            await prepared.run(X)
        executable = prepared.hal._executable  # type: ignore[attr-defined]
        executable._below_ns = 10**9  # as if a lane were slower than the loop
        assert executable.blanks
        for _ in range(MOST_LESSONS):
            await prepared.run(X)
        assert executable.should_inline
        assert all(run.should_inline for run in executable.blanks.values())
