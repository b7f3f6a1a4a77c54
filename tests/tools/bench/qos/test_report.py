"""Goals of the benchmark of priorities and deadlines."""

import pytest

from asyncnn.tools.bench.qos.report import (
    IDLE,
    POOL,
    SATURATED,
    Latency,
    Misses,
    Overhead,
    judge,
)


def latencies(busy_us: float, pool_us: float) -> dict[str, Latency]:
    return {
        IDLE: Latency(100, 1000),
        SATURATED: Latency(100, busy_us),
        POOL: Latency(100, pool_us),
    }


def handed_over(ratio: float) -> Overhead:
    return Overhead(scheduled_us=40 * ratio, to_thread_us=40, ratio=ratio)


@pytest.mark.parametrize(
    ("busy_us", "pool_us", "met"),
    [(1600, 8000, True), (1601, 10_000, False), (1600, 7999, False)],
)
def test_urgent_work_is_held_against_the_idle_device_and_the_pool(
    busy_us: float, pool_us: float, met: bool
) -> None:
    verdicts = judge(latencies(busy_us, pool_us), 100.0, (), handed_over(0.45), 0.05)
    assert all(verdict.met for verdict in verdicts) is met


@pytest.mark.parametrize(
    ("overhead", "lost", "by_deadline"), [(0.46, 0, 0), (0, 0.051, 0), (0, 0, 0.2)]
)
def test_costs_and_misses_are_goals_as_well(
    overhead: float, lost: float, by_deadline: float
) -> None:
    misses = (Misses(0.7, by_deadline, 0.1),)
    verdicts = judge(latencies(1000, 9000), 100.0, misses, handed_over(overhead), lost)
    assert sum(not verdict.met for verdict in verdicts) == 1
