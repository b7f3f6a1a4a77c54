"""A well-behaved client beside a process of 200 hostile connections."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.runtime.opening_devices import connect
from asyncnn.service.process import DriverProcess
from tests.measuring import best_of
from tests.networks import chain
from tests.places import driver_of
from tests.service.hostile_clients import KINDS
from tests.service.test_faults import Footprint

pytestmark = pytest.mark.alone

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
RUNS = 50
"""Before hostile clients come, after they have gone, and twice as many beside them."""

LENGTH = 600
MOST = 3.0
"""How many times its latency alone a client may have beside others: p99 and median.

Two processes that share a lane have half of it each, and so twice the latency; the work
of the loop for the other one comes on top.
"""

ATTEMPTS = 8
"""The machine may have other work, too, during some of them."""

SAMPLE = "send_garbage"
"""The kind that a quick run is content with."""

MORE_KB = 48 * 1024
"""Of the heap that the allocator may keep."""

SHAPE = 256, 224
X = np.zeros(SHAPE, np.float32)
"""Runs of some milliseconds: of shorter ones, the machine decides on the latency."""


driver = driver_of()


@asynccontextmanager
async def hostile(kind: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.service.hostile_clients",
        kind,
        str(path),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        yield process
        assert process.returncode is None, "the hostile process has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def latencies(model: asyncnn.PreparedModel, runs: int) -> list[float]:
    """Return how long each of some runs took, in seconds."""
    took: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        outputs = await model.run(X)
        took.append(time.perf_counter() - started)
        assert outputs["z"][0, 0] == LENGTH
        await asyncio.sleep(0.001)
    return took


async def ratio_beside(
    model: asyncnn.PreparedModel, kind: str, driver: DriverProcess, before: Footprint
) -> float:
    """Return how many times longer runs take beside hostile clients than alone.

    That is so of the 99th percentile or the median, whichever suffers more. The client
    is alone before and after, so that other work of the machine, and what this process
    has become, disturb both alike.
    """
    alone = await latencies(model, RUNS)
    async with hostile(kind, driver.path):
        beside = await latencies(model, 2 * RUNS)
    await check_settled(driver, before)
    alone += await latencies(model, RUNS)
    (median, p99), (median_beside, p99_beside) = (
        np.quantile(took, (0.5, 0.99)) for took in (alone, beside)
    )
    logger.info(
        "%s: median %.1f ms alone and %.1f ms beside, p99 %.1f ms and %.1f ms",
        kind,
        *(1e3 * each for each in (median, median_beside, p99, p99_beside)),
    )
    return float(max(median_beside / median, p99_beside / p99))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == SAMPLE else [pytest.mark.exhaustive])
        for kind in KINDS
    ],
)
async def test_a_client_keeps_its_pace_and_the_driver_what_it_had(
    driver: DriverProcess, kind: str
) -> None:
    async with connect(driver.path) as device:
        model = await device.prepare(chain(LENGTH, *SHAPE))
        await latencies(model, 2 * RUNS)
        before = Footprint.of(driver.pid)
        await best_of(ATTEMPTS, lambda: ratio_beside(model, kind, driver, before), MOST)


async def test_clients_that_are_killed_in_the_middle_leave_nothing(
    driver: DriverProcess,
) -> None:
    async with connect(driver.path) as device:
        model = await device.prepare(chain(LENGTH, *SHAPE))
        await latencies(model, 2 * RUNS)
        before = Footprint.of(driver.pid)
        for kind in ("announce_pools", "prepare_for_ever", "send_large_models"):
            async with hostile(kind, driver.path):
                await asyncio.sleep(0.1)
            await model.run(X)
        await check_settled(driver, before)


async def check_settled(driver: DriverProcess, before: Footprint) -> None:
    """Check that the driver soon holds what it did before, and no more."""
    for _ in range(200):
        now = Footprint.of(driver.pid)
        has_settled = now.fds == before.fds and now.mapped <= before.mapped
        if has_settled and now.rss <= before.rss + MORE_KB:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{now} after {before}")
