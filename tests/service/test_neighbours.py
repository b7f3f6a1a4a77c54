"""A well-behaved client beside a process of 200 hostile connections."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.runtime.device import connect
from asyncnn.service.process import DriverProcess, driver_process
from tests.measuring import best_of
from tests.networks import chain
from tests.service.hostile_clients import KINDS
from tests.service.test_faults import Footprint

pytestmark = pytest.mark.alone

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
RUNS = 100
LENGTH = 600
MOST = 3.0
"""How many times its latency alone a client may have beside others."""

MOST_OF = {"announce_pools": 4.5, "execute_at_high": 4.5}
"""Of these it takes up to 3 on an idle machine, and more in a process of many tests.

Two processes that share a lane have half of it each, and so twice the latency; the
slices of the other, and its 200 connections on the loop, come on top.
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


@pytest.fixture(scope="module")
def driver() -> Iterator[DriverProcess]:
    with driver_process() as driver:
        yield driver


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


async def p99_of(model: asyncnn.PreparedModel) -> float:
    """Return the latency that one run of a hundred exceeds, in seconds."""
    took: list[float] = []
    for _ in range(RUNS):
        started = time.perf_counter()
        outputs = await model.run(X)
        took.append(time.perf_counter() - started)
        assert outputs["z"][0, 0] == LENGTH
        await asyncio.sleep(0.001)
    return float(np.quantile(took, 0.99))


async def ratio_beside(model: asyncnn.PreparedModel, kind: str, path: Path) -> float:
    alone = await p99_of(model)
    async with hostile(kind, path):
        beside = await p99_of(model)
    logger.info(
        "%s: p99 %.1f ms alone, %.1f ms beside", kind, alone * 1e3, beside * 1e3
    )
    return beside / alone


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
        await p99_of(model)
        before = Footprint.of(driver.pid)

        async def ratio() -> float:
            ratio = await ratio_beside(model, kind, driver.path)
            await check_settled(driver, before)
            return ratio

        await best_of(ATTEMPTS, ratio, MOST_OF.get(kind, MOST))


async def test_clients_that_are_killed_in_the_middle_leave_nothing(
    driver: DriverProcess,
) -> None:
    async with connect(driver.path) as device:
        model = await device.prepare(chain(LENGTH, *SHAPE))
        await p99_of(model)
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
