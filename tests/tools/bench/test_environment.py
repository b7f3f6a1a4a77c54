"""What is recorded beside the figures, and where threads and processes run."""

import os

import msgspec
import numpy as np
import pytest

from asyncnn.tools.bench.environment import (
    ALL_CPUS,
    ONE_CPU,
    Environment,
    cpu_pairs,
    describe_environment,
    pinned,
    placement,
)

CPU = min(os.sched_getaffinity(0))


def test_the_description_names_libraries_and_peers() -> None:
    environment = describe_environment(litert="9.8.7")
    text = str(environment)
    for part in (
        environment.cpu,
        np.__version__,
        environment.blas.name,
        "litert 9.8.7",
    ):
        assert part in text


def test_the_description_survives_json() -> None:
    environment = describe_environment(peer="1")
    data = msgspec.json.encode(environment)
    assert msgspec.json.decode(data, type=Environment) == environment


def test_a_core_type_forced_upon_blas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert "OPENBLAS_CORETYPE=Haswell" in str(describe_environment())


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
