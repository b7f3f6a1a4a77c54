"""Where threads and processes run."""

import os

import pytest

from asyncnn.tools.bench.placement import (
    ALL_CPUS,
    ONE_CPU,
    cpu_pairs,
    pinned,
    placement,
)
from tests.tools.bench.calling import CPU

can_pin = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads"
)


@can_pin
def test_one_cpu_means_one_and_all_are_given_back() -> None:
    before = os.sched_getaffinity(0)
    with placement(ONE_CPU) as where:
        (cpu,) = os.sched_getaffinity(0)
    assert where == f"all threads pinned to CPU {cpu}"
    assert os.sched_getaffinity(0) == before


@can_pin
def test_all_cpus_means_no_pinning() -> None:
    before = os.sched_getaffinity(0)
    with placement(ALL_CPUS) as where:
        assert os.sched_getaffinity(0) == before
    assert "not pinned" in where


def test_a_system_that_cannot_pin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with placement(ONE_CPU) as where:
        assert where == "not pinned: this system cannot"


def test_pinning_ends_with_the_block() -> None:
    before = os.sched_getaffinity(0)
    with pinned(CPU):
        assert os.sched_getaffinity(0) == {CPU}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("cpus", "placements"),
    [({0, 1}, [(1, 0), (1, 1)]), ({2, 5, 7}, [(7, 5), (7, 7)]), ({3}, [(3, 3)])],
)
def test_processes_are_placed_apart_if_they_can_and_together(
    monkeypatch: pytest.MonkeyPatch, cpus: set[int], placements: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    assert cpu_pairs() == placements
