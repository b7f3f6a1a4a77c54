"""The load of the benchmark of priorities and deadlines."""

import asyncio

import msgspec
import numpy as np
import pytest

from asyncnn.hal.errors import MissedDeadlineTransientError
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.made_models import dense
from asyncnn.tools.bench.qos_load import (
    Run,
    fifo_pool,
    freed_us,
    saturated,
    share_missed,
    within,
)

TINY = dense(layers=2, width=8, rows=2)


async def test_pool_and_device_compute_the_same() -> None:
    with fifo_pool() as pool:
        assert await pool(TINY)() is True
    async with open_device() as device:
        prepared = await device.prepare(TINY.build())
        outputs = await prepared.run([TINY.input()])
    assert outputs["y"].shape == (2, 8)
    assert np.isfinite(outputs["y"]).all()


async def test_saturating_keeps_some_executions_pending() -> None:
    pending = most = 0

    async def run() -> None:
        nonlocal pending, most
        pending += 1
        most = max(most, pending)
        await asyncio.sleep(0)
        pending -= 1

    async with saturated(run, 4):
        for _ in range(10):
            await asyncio.sleep(0)
            assert pending >= 3
    assert pending == 0
    assert most <= 5


async def test_a_deadline_is_missed_by_an_error_and_by_coming_late() -> None:
    async def refuse(budget_s: float) -> None:
        raise MissedDeadlineTransientError("too late")

    async def dawdle(budget_s: float) -> None:
        await asyncio.sleep(2 * budget_s)

    async def hurry(budget_s: float) -> None:
        return

    assert [await within(run)(0.05) for run in (refuse, dawdle, hurry)] == [
        False,
        False,
        True,
    ]


async def test_the_share_of_missed_deadlines_is_counted() -> None:
    calls = 0

    async def every_other(budget_s: float) -> bool:
        nonlocal calls
        calls += 1
        assert 0.0002 <= budget_s <= 0.003
        return calls % 2 == 0

    assert await share_missed(every_other, 0.0001, 1.0, 50, seed=1) == 0.5


async def test_how_long_a_lane_goes_on_is_told_beyond_what_the_probe_takes() -> None:
    async def stop(after_s: float, probe: Run) -> np.ndarray | None:
        stopped.append(after_s)
        return np.array([3.0, 2.0]) if len(stopped) % 2 else None

    async def probe() -> None: ...

    stopped: list[float] = []
    times_us = await freed_us(stop, probe, 0.5)
    assert times_us == pytest.approx((3e6, 2e6), abs=1e5)
    assert msgspec.json.encode(times_us)
    assert all(0.05 <= after_s <= 0.4 for after_s in stopped)
