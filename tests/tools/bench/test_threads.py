"""``asyncnn bench threads``: each row once, and what a row says."""

import asyncio
import time

import pytest

from asyncnn.tools.bench import (
    bench_threads,
    qos_load,
    rounds,
)
from asyncnn.tools.bench import (
    thread_contenders as contenders,
)
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.processes import proportional_kib, resident_kib
from asyncnn.tools.bench.rounds import Figure

FEWER = (
    (rounds, "_MAX_RUNS", 3),
    (contenders, "_URGENT_RUNS", 2),
    (contenders, "_LONG_RUNS", 2),
    (contenders, "_STOPPED_RUNS", 2),
    (contenders, "_PROCESSES", 2),
    (contenders, "_CONCURRENCY", 2),
    (qos_load, "_STOPPED_RUNS", 2),
    (qos_load, "_TIMED_RUNS", 2),
    (qos_load, "_SERVED_US", 2000.0),
)


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("onnxruntime")
    for module, name, value in FEWER:
        monkeypatch.setattr(module, name, value)


@pytest.mark.exhaustive
def test_every_row_is_measured(fewer: None) -> None:
    report = bench_threads.bench(rounds=1)
    assert list(report.rows) == [
        *("alone", "serving", "urgent", "cancelled", "deadline", "crash", "memory")
    ]
    for name, row in report.rows.items():
        wanted = {"asyncnn"} if name == "crash" else set(bench_threads.TITLES)
        assert set(row.us) == wanted
        assert all(value >= 0 for value in row.us.values())
        assert row.refusals == {}


async def test_one_run_of_each_is_measured(fewer: None) -> None:
    refusals: dict[str, str] = {}
    with contenders.model_pair() as files:
        measured = await contenders.measure_alone(files, 1, refusals)
    assert set(measured["alone"]) == set(bench_threads.TITLES)
    assert refusals == {}


def test_a_smaller_figure_is_better() -> None:
    figures = {"asyncnn": Figure((2.0,)), "litert_thread": Figure((1.0,))}
    verdicts = bench_threads.judge(bench_threads.GOALS, figures)
    row = bench_threads.ThreadsRow(
        title="it", unit="s", figures=figures, verdicts=verdicts, refusals={}
    )
    report = bench_threads.ThreadsReport(
        environment=describe_environment(), rounds=1, placement="", rows={"it": row}
    )
    assert not report.met
    (table,) = report.tables()
    name, ours, theirs, missing, (ratio, met), nothing = table.sections[0][0]
    assert (name, ours, theirs, missing) == ("it, s", "2.0", "1.0", "-")
    assert (ratio, met, nothing) == ("2.000 <= 1", False, "-")


def test_a_share_of_common_pages_is_at_most_what_is_resident() -> None:
    assert 0 < proportional_kib() <= resident_kib()


async def test_a_thread_that_fails_or_never_begins_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contenders, "_STOPPED_RUNS", 2)
    monkeypatch.setattr(contenders, "_NEVER_BEGINS_S", 0.05)

    async def never(work: object, after_s: float) -> None:
        pass

    def fail() -> None:
        time.sleep(0.01)
        raise MemoryError

    async with asyncio.timeout(10):
        for wait in (never, contenders._until_cancelled):
            assert await contenders._goes_on_ms(fail, wait, 0.005) < 1000
