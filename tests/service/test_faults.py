"""Real processes that die at any moment: clients under a driver, and the reverse."""

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn.runtime.opening_devices import connect
from asyncnn.service.process import DriverProcess, driver_process
from tests.measuring import best_of
from tests.networks import addition
from tests.service.clients import PENDING
from tests.service.raw import RawClient

pytestmark = pytest.mark.alone

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]


async def start(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.service.clients",
        *map(str, arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


class Footprint(msgspec.Struct):
    """What a process holds."""

    fds: Counter[str]
    threads: int
    mapped: int
    names: set[str]
    rss: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        proc = Path(f"/proc/{pid}")
        links: list[str] = []
        for fd in (proc / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(fd).split(":")[0])
        maps = (proc / "maps").read_text().splitlines()
        status = (proc / "status").read_text()
        return cls(
            Counter(links),
            len(list((proc / "task").iterdir())),
            sum("memfd:" in line or "/dev/shm/" in line for line in maps),
            {name for name in os.listdir("/dev/shm") if f"-{pid}-" in name},
            int(status.partition("VmRSS:")[2].split()[0]),
        )


async def settled(driver: DriverProcess, like: Footprint | None = None) -> Footprint:
    """Return the driver's footprint, once it is that of before or 5 s have passed."""
    for _ in range(100):
        await asyncio.sleep(0.05)
        now = Footprint.of(driver.pid)
        if like is not None:
            now_but_rss = msgspec.structs.replace(now, rss=like.rss)
            if now_but_rss == like:
                break
    return now


async def kill_clients(path: Path, count: int, seed: int) -> None:
    processes = [
        await start("be_killed", path, count // 2, seed + index) for index in range(2)
    ]
    for process in processes:
        assert await process.wait() == 0


async def add(path: Path, times: int) -> int:
    """Execute sums; return how many were right."""
    right = 0
    async with connect(path) as device:
        model = await device.prepare(addition(16))
        for number in range(times):
            x = np.full(16, number, np.float32)
            y = np.arange(16, dtype=np.float32)
            result = await model.run({"x": x, "y": y})
            right += np.array_equal(result["z"], x + y)
    return right


@pytest.mark.exhaustive
async def test_clients_that_are_killed_leave_nothing_and_harm_nobody() -> None:
    seed = random.randrange(2**32)
    logger.info("seed %d", seed)
    with driver_process() as driver:
        await asyncio.gather(
            kill_clients(driver.path, 60, seed), add(driver.path, 2000)
        )
        before = await settled(driver)
        started = time.monotonic()
        _, right = await asyncio.gather(
            kill_clients(driver.path, 100, seed + 2), add(driver.path, 10_000)
        )
        took = time.monotonic() - started
        after = await settled(driver, before)
        logger.info("%.1f s, RSS in kB: %d, then %d", took, before.rss, after.rss)
        assert right == 10_000
        assert after.fds == before.fds
        assert after.threads == before.threads
        assert after.mapped == before.mapped == 0
        assert after.names == before.names
        assert after.rss <= before.rss * 1.05


async def test_a_driver_that_is_killed_ends_all_that_is_pending_at_once() -> None:
    async def latency_s() -> float:
        with driver_process() as driver:
            witness = await RawClient.connect(driver.path).greet()
            clients = [await start("survive", driver.path, 25) for _ in range(2)]
            for client in clients:
                assert await client.stdout.readline() == b"pending\n"
            await asyncio.sleep(0.05)
            driver.process.kill()
            assert await witness.is_hung_up_on()
            closed = time.monotonic()
            witness.close()
            latencies: list[float] = []
            for client in clients:
                answer, _ = await client.communicate()
                report = json.loads(answer)
                assert client.returncode == 0
                assert len(report["ends"]) == 25 * PENDING
                latencies.append(max(report["ends"]) - closed)
                assert report["left"] == []
            logger.info("the last one ended after %.1f ms", max(latencies) * 1e3)
            return max(latencies)

    await best_of(3, latency_s, 0.05)
