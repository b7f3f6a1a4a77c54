"""The benchmark of priorities and deadlines: its load, its goals, its report."""

import asyncio

import msgspec
import numpy as np
import pytest
from rich.console import Console

from asyncnn.bench import qos
from asyncnn.bench.qos import (
    DESCRIPTIONS,
    IDLE,
    LOADS,
    POOL,
    SATURATED,
    Latency,
    Misses,
    QosReport,
    bench_qos,
    judge,
)
from asyncnn.bench.qos_load import (
    FifoPool,
    Stack,
    percentile,
    saturated,
    share_missed,
    within,
)
from asyncnn.bench.qos_table import qos_tables
from asyncnn.errors import MissedDeadlineTransientError
from asyncnn.runtime.device import open_device

TINY = Stack(layers=2, width=8, rows=2)


async def test_pool_and_device_compute_the_same() -> None:
    pool = FifoPool()
    assert await pool.run(TINY)() is True
    pool.close()
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

    assert [await within(run)(0.001) for run in (refuse, dawdle, hurry)] == [
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


@pytest.mark.parametrize(("share", "expected"), [(0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentiles(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected


def latencies(busy_us: float, pool_us: float) -> dict[str, Latency]:
    return {
        IDLE: Latency(100, 1000),
        SATURATED: Latency(100, busy_us),
        POOL: Latency(100, pool_us),
    }


@pytest.mark.parametrize(
    ("busy_us", "pool_us", "met"),
    [(1600, 8000, True), (1601, 10_000, False), (1600, 7999, False)],
)
def test_urgent_work_is_held_against_the_idle_device_and_the_pool(
    busy_us: float, pool_us: float, met: bool
) -> None:
    verdicts = judge(latencies(busy_us, pool_us), 100.0, (), 15.0, 0.05)
    assert all(verdict.met for verdict in verdicts) is met


@pytest.mark.parametrize(
    ("overhead_us", "lost", "by_deadline"), [(15.1, 0, 0), (0, 0.051, 0), (0, 0, 0.2)]
)
def test_costs_and_misses_are_goals_as_well(
    overhead_us: float, lost: float, by_deadline: float
) -> None:
    misses = (Misses(0.7, by_deadline, 0.1),)
    verdicts = judge(latencies(1000, 9000), 100.0, misses, overhead_us, lost)
    assert sum(not verdict.met for verdict in verdicts) == 1


@pytest.fixture(scope="module")
def report() -> QosReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qos, "BACKGROUND", Stack(layers=4, width=64, rows=64))
        patch.setattr(qos, "URGENT", TINY)
        patch.setattr(qos, "_URGENT_RUNS", 3)
        patch.setattr(qos, "_PAUSE_S", 0.001)
        patch.setattr(qos, "_DATED_RUNS", 10)
        patch.setattr(qos, "_QUEUED_RUNS", 20)
        patch.setattr(qos, "_OVERHEAD_BATCHES", 2)
        return bench_qos(rounds=1)


@pytest.mark.slow
def test_everything_is_measured(report: QosReport) -> None:
    assert list(report.latencies) == list(DESCRIPTIONS)
    assert all(0 < each.p50_us <= each.p99_us for each in report.latencies.values())
    assert [each.load for each in report.misses] == list(LOADS)
    assert report.longest_operation_us > 0
    assert len(report.verdicts) == 4 + len(LOADS)


def test_the_report_survives_json_and_fits_a_table(report: QosReport) -> None:
    data = msgspec.json.encode(report)
    assert msgspec.json.decode(data, type=QosReport) == report
    console = Console(width=120)
    with console.capture() as capture:
        for table in qos_tables(report):
            console.print(table)
    for description in DESCRIPTIONS.values():
        assert description in capture.get()
