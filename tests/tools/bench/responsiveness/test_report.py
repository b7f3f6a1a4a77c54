"""Verdicts on responsiveness, as table and as exit status."""

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from asyncnn.cli.bench import bench_app
from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.responsiveness.heartbeat import Pulse
from asyncnn.tools.bench.responsiveness.report import (
    DRIVER,
    IDLE,
    IN_PROCESS,
    LONGEST_MS,
    P99_BELOW_MS,
    PREPARE,
    ResponsivenessReport,
    judge,
)
from asyncnn.tools.bench.responsiveness.table import (
    responsiveness_notes,
    responsiveness_table,
)


def pulse(longest_ms: float, p99_ms: float = 1.0) -> Pulse:
    return Pulse(1000, 0.5, p99_ms, longest_ms, 0.0)


def made_up(longest_ms: float, idle_ms: float = 2.0) -> ResponsivenessReport:
    return ResponsivenessReport(
        describe_environment(),
        "anywhere",
        1,
        20_000,
        2**26,
        (
            judge(IDLE, IN_PROCESS, [pulse(idle_ms)]),
            judge(PREPARE, IN_PROCESS, [pulse(2.0)]),
            judge(PREPARE, DRIVER, [pulse(longest_ms)]),
        ),
        {IDLE: 0, PREPARE: 2},
    )


@pytest.mark.parametrize(
    ("p99_ms", "longest_ms", "met"),
    [
        (P99_BELOW_MS - 0.01, LONGEST_MS, True),
        (P99_BELOW_MS, LONGEST_MS, False),
        (1.0, LONGEST_MS + 0.01, False),
    ],
)
def test_both_goals_have_their_limits(
    p99_ms: float, longest_ms: float, met: bool
) -> None:
    assert judge(PREPARE, DRIVER, [pulse(longest_ms, p99_ms)]).met is met


def test_the_longest_gap_of_any_round_counts_and_the_median_p99() -> None:
    pulses = [pulse(3, p99_ms=1), pulse(30, p99_ms=2), pulse(3, p99_ms=9)]
    heard = judge(PREPARE, DRIVER, pulses)
    assert (heard.p99_ms, heard.longest_ms, heard.met) == (2, 30, False)


def test_idle_loops_have_no_goal_but_are_remarked_on() -> None:
    report = made_up(longest_ms=3, idle_ms=90)
    assert report.met
    assert "too busy to tell" in " ".join(responsiveness_notes(report))
    assert "too busy to tell" not in " ".join(responsiveness_notes(made_up(3)))


def test_repetitions_are_told() -> None:
    notes = list(responsiveness_notes(made_up(3)))
    assert "prepare: repeated 2 times, as the machine disturbed it" in notes
    assert not any(note.startswith("idle") for note in notes)


@pytest.mark.parametrize(("longest_ms", "outcome"), [(20, "met"), (21, "MISSED")])
def test_the_table_shows_figures_and_verdicts(longest_ms: float, outcome: str) -> None:
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(responsiveness_table(made_up(longest_ms)))
    rows = console.export_text().splitlines()
    (row,) = [row for row in rows if "prepared" in row]
    _, _, here, application, driver, _ = row.split("│")
    assert here.split() == ["0.50", "1.00", "2.00", "met"]
    assert application.split() == ["-"]
    assert driver.split() == ["0.50", "1.00", f"{longest_ms:.2f}", outcome]


@pytest.mark.parametrize(("longest_ms", "status"), [(20, 0), (21, 1)])
def test_a_missed_goal_fails_a_check_after_all_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, longest_ms: float, status: int
) -> None:
    def fake(
        *, rounds: int, pattern: str, settings: DeviceSettings, progress: object
    ) -> ResponsivenessReport:
        assert (rounds, pattern) == (6, "p*")
        assert settings == replace(OWN_PROCESS, blas_threads=2)
        return made_up(longest_ms)

    monkeypatch.setattr("asyncnn.cli.bench.bench_responsiveness", fake)
    document = tmp_path / "responsiveness.json"
    arguments = ["responsiveness", "--check", "--rounds", "6", "--filter", "p*"]
    arguments += ["--setting", "blas_threads=2"]
    result = CliRunner().invoke(bench_app, [*arguments, "--json", str(document)])
    assert result.exit_code == status
    assert "goals: p99 below 5 ms, none over 20 ms" in result.output
    assert json.loads(document.read_text())["heard"][2]["longest_ms"] == longest_ms
