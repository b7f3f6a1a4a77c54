"""`asyncnn simulate cluster`: tables, files, and real actors beside the simulation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.cluster.simulation import OURS, ClusterScenario, Outcomes
from asyncnn.tools.cluster_report import (
    REAL,
    SimulationReport,
    WaitingHost,
    page_of,
    real_outcomes,
)
from asyncnn.tools.pages.drawing import load_page
from tests.cli.conftest import Ran
from tests.cluster.fake_cluster import FakeCluster

Command = Callable[..., Ran]


def test_each_policy_is_told_at_each_load(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    words = ["--nodes=5", "--runs=200", "--load=0.5,1.5", "--failure-s=1", "--seed=3"]
    files = tmp_path / "found.json", tmp_path / "found.html"
    options = "--json", files[0], "--html", files[1]
    ran = asyncnn_command("simulate", "cluster", *words, *options)
    assert ran.status == 0, ran
    again = asyncnn_command("simulate", "cluster", *words)
    assert again.out == ran.out
    found = json.loads(files[0].read_text())
    assert found["scenario"]["seed"] == 3
    outcomes = found["outcomes"]
    assert [each["load"] for each in outcomes] == [0.5] * 4 + [1.5] * 4
    assert {sum(each["statuses"].values()) for each in outcomes} == {200}
    assert all(f"{each['load']:g} {each['policy']}" in ran.out for each in outcomes)
    plots = load_page(files[1].read_text()).parts[:2]
    assert [[*each.series] for each in plots] == [  # type: ignore[union-attr]
        ["asyncnn", "least-loaded", "round-robin", "oracle"]
    ] * 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--load", "0"], "--load 0 is not numbers above 0"),
        (["--load", "0.5,much"], "--load 0.5,much is not numbers"),
        (["--service-ms", "nan"], "--service-ms nan is not numbers"),
        (["--policy", "luck"], "there is no policy 'luck'"),
        (["--against-real", "--failure-s", "5"], "compared without failures"),
        (["--against-real", "--policy", "oracle"], "compared by asyncnn's own"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_simulated_is_refused(
    asyncnn_command: Command, words: list[str], error: str
) -> None:
    ran = asyncnn_command("simulate", "cluster", *words)
    assert ran.status == 2
    assert error in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(("p99_ms", "agrees"), [(114.0, True), (120.0, False)])
def test_a_real_cluster_is_held_against_its_simulation(
    p99_ms: float, agrees: bool
) -> None:
    told = Outcomes(OURS, 4, 0.8, 20.0, 100.0, 1.0, {"NONE": 10}, 0)
    real = Outcomes(REAL, 4, 0.8, 20.0, p99_ms, 1.0, {"NONE": 10}, 0)
    report = SimulationReport(ClusterScenario(nodes=4), [told, real])
    assert report.agrees is agrees
    assert report.table().headings[-1] == "off by"
    assert page_of(report).parts


async def test_actors_get_the_runs_of_a_scenario() -> None:
    scenario = ClusterScenario(nodes=2, runs=40, service_ms=(1.0,), deadline_ms=0)
    told, real = await real_outcomes(scenario, lambda _: FakeCluster(WaitingHost))
    assert told.statuses == real.statuses == {"NONE": 40}
    assert (told.policy, real.policy) == (OURS, REAL)
