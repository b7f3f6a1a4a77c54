"""Clocks that jump, a machine that is suspended, and clients that are stopped."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from asyncnn import Device, MissedDeadlineTransientError, connect
from asyncnn.deadlines import deadline_after
from asyncnn.devices import DeviceSettings
from asyncnn.service.process import driver_process, private_address
from tests.networks import FOREVER, addition, counting_up
from tests.places import served

ROOT = Path(__file__).parents[2]
X = np.arange(4, dtype=np.float32)
YEAR_S = 365 * 24 * 3600.0
STOPPED_S = 3.0

CLIENT = """
import asyncio, json, sys
import numpy as np
from asyncnn import Supervision, connect
from tests.networks import addition

async def main(path):
    x, done, labels = np.arange(4, dtype=np.float32), 0, set()
    patience = Supervision(hang_after=2.0)
    async with connect(path, supervised=patience) as device:
        model = await device.prepare(addition(4))
        async with model.burst() as burst:
            going = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            while not going.done():
                for way in (model, burst):
                    outputs = await way.run([x, x], timeout=60)
                    assert np.array_equal(outputs["z"], 2 * x)
                labels.add(device.hal.label)
                done += 1
                if done == 1:
                    print("begun", flush=True)
    print(json.dumps([done, len(labels)]), flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    path = private_address()
    settings = DeviceSettings(inline_below_us=0)
    async with served(path, settings) as device:
        yield device


@pytest.mark.parametrize("jump_s", [-10 * YEAR_S, 10 * YEAR_S])
async def test_what_the_wall_clock_says_does_not_matter(
    device: Device, jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await device.prepare(addition(4))
    endless = await device.prepare(counting_up())
    wall, jumped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() + jumped[0])
    monkeypatch.setattr(time, "time_ns", lambda: round(time.time() * 1e9))
    async with model.burst() as burst:
        calls = [
            *(model.run([X, X], path=path, timeout=60.0) for path in ("async", "sync")),
            burst.run([X, X], timeout=60.0),
            model.run_fenced([X, X], timeout=60.0),
        ]
        late = asyncio.ensure_future(endless.run(FOREVER, timeout=0.1))
        jumped[0] = jump_s
        for call in calls:
            assert np.array_equal((await call)["z"], 2 * X)
        begun = time.monotonic()
        with pytest.raises(MissedDeadlineTransientError):
            await late
        assert time.monotonic() - begun < 20
        async with connect(device.name.removeprefix("remote:")) as other:
            assert (await other.statistics()).models


def clocks_of_timers() -> set[int]:
    """Return the clocks of this process's timers, as the kernel says."""
    found = set[int]()
    for fd in os.listdir("/proc/self/fdinfo"):
        try:
            told = Path(f"/proc/self/fdinfo/{fd}").read_text()
        except FileNotFoundError:
            continue
        found |= {int(clock) for clock in re.findall(r"^clockid: (\d+)", told, re.M)}
    return found


async def test_deadlines_stand_still_while_the_machine_is_suspended(
    device: Device,
) -> None:
    """CLOCK_BOOTTIME would go on meanwhile."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    deadline_ns = deadline_after(1.0)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert deadline_ns is not None
    assert before <= deadline_ns - 10**9 <= after
    endless = await device.prepare(counting_up())
    late = asyncio.ensure_future(endless.run(FOREVER, timeout=0.1))
    while not clocks_of_timers():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert clocks_of_timers() == {time.CLOCK_MONOTONIC}
    with pytest.raises(MissedDeadlineTransientError):
        await late


def files_of(pid: int | str) -> list[str]:
    """Return what the descriptors of a process are of."""
    found: list[str] = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # that of the folder
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


async def test_nothing_is_watched_by_inotify(device: Device) -> None:
    """So it does not matter how few of these watches a user has."""
    model = await device.prepare(addition(4))
    await model.run([X, X])
    with driver_process() as driver:
        async with connect(driver.path) as remote:
            await (await remote.prepare(addition(4))).run([X, X])
            for pid in ("self", driver.pid):
                watched = files_of(pid)
                assert any("eventpoll" in each for each in watched)
                assert not any("inotify" in each for each in watched)


@pytest.mark.exhaustive
async def test_a_client_that_is_stopped_harms_nobody_and_goes_on(
    tmp_path: Path,
) -> None:
    with driver_process(tmp_path / "driver.sock") as driver:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, driver.path),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"begun\n"
        client.send_signal(signal.SIGSTOP)
        async with connect(driver.path) as device:
            model = await device.prepare(addition(4))
            until = time.monotonic() + STOPPED_S
            while time.monotonic() < until:
                outputs = await model.run([X, X], timeout=60.0)
                assert np.array_equal(outputs["z"], 2 * X)
        client.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.2)
        told, _ = await client.communicate(b"end\n")
        assert client.returncode == 0
        done, connections = json.loads(told)
        assert done > 1
        assert connections == 1  # it was not its driver that hung
