"""``asyncnn bench threads``: each row once, and what a row says."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from asyncnn.tools.bench import bench_threads, qos_load, rounds
from asyncnn.tools.bench.benches import Place
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.processes import proportional_kib, resident_kib
from asyncnn.tools.bench.rounds import Order
from tests.tools.bench.made_up import threads

FEWER = (
    (rounds, "_MAX_RUNS", 3),
    (bench_threads, "_URGENT_RUNS", 2),
    (bench_threads, "_LONG_RUNS", 2),
    (bench_threads, "_STOPPED_RUNS", 2),
    (bench_threads, "_PROCESSES", 2),
    (bench_threads, "_CONCURRENCY", 2),
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
    report = bench_threads.bench(Order(rounds=1))
    assert msgspec.json.encode(report.document)
    rows = report.document["rows"]
    assert list(rows) == [
        *("alone", "serving", "urgent", "cancelled", "deadline", "crash", "memory")
    ]
    for name, row in rows.items():
        wanted = {"asyncnn"} if name == "crash" else set(bench_threads.TITLES)
        assert set(row["us"]) == wanted
        assert all(value >= 0 for value in row["us"].values())
        assert row["refusals"] == {}


async def test_one_run_of_each_is_measured(fewer: None) -> None:
    with bench_threads.model_pair() as files:
        async with AsyncExitStack() as stack:
            place = Place(stack)
            started = await bench_threads.alone(files, place)
            measured = await rounds.measure(started, rounds=1)
    assert set(measured) == set(bench_threads.TITLES)
    assert place.refusals == {}


async def test_peers_that_are_missing_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ai_edge_litert")
    held: list[str] = []

    def refuse(path: Path) -> None:
        raise PeerMissingError("no ONNX Runtime")

    async def hold(name: str, model: Path) -> float:
        held.append(name)
        return 1.0

    monkeypatch.setitem(bench_threads._PEERS, "onnx_thread", refuse)
    monkeypatch.setattr(bench_threads, "_held_mib", hold)
    with bench_threads.model_pair() as files:
        async with AsyncExitStack() as stack:
            place = Place(stack)
            started = await bench_threads.memory(files, place)
            measured = await rounds.measure(started, rounds=1)
    assert set(measured) == set(held) == {"asyncnn", "litert_thread"}
    assert place.refusals == {"onnx_thread": "no ONNX Runtime"}


def test_a_smaller_figure_is_better() -> None:
    report = threads(met=False)
    assert not report.met
    (table,) = report.tables
    name, ours, theirs, missing, (ratio, met), nothing = table.sections[0][0]
    assert (name, ours, theirs, missing) == ("one run, us", "1.1", "1.0", "-")
    assert (ratio, met, nothing) == ("1.100 <= 1", False, "-")


def test_a_share_of_common_pages_is_at_most_what_is_resident() -> None:
    assert 0 < proportional_kib() <= resident_kib()


async def test_a_thread_that_fails_or_never_begins_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_threads, "_STOPPED_RUNS", 2)
    monkeypatch.setattr(bench_threads, "_NEVER_BEGINS_S", 0.05)

    async def never(work: object, after_s: float) -> None:
        pass

    def fail() -> None:
        time.sleep(0.01)
        raise MemoryError

    async with asyncio.timeout(10):
        for wait in (never, bench_threads.until_cancelled):
            assert await bench_threads.goes_on_ms(fail, wait, 0.005) < 1000
