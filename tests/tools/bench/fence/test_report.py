"""Verdicts on fences, as table and as exit status."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from asyncnn.cli.bench import bench_app
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.fence.report import (
    CHAIN,
    DESCRIPTIONS,
    EVENTFD,
    GOALS,
    PENDING,
    FencePlacement,
    FenceReport,
    judge_fences,
)
from asyncnn.tools.bench.fence.table import fence_table
from asyncnn.tools.bench.ratios import RatioGoal
from asyncnn.tools.bench.rounds import Figure


def figures(us: float = 100.0, **others: float) -> dict[str, Figure]:
    return {name: Figure((others.get(name, us),)) for name in DESCRIPTIONS}


@pytest.mark.parametrize("goal", GOALS)
def test_each_goal_has_its_limit(goal: RatioGoal) -> None:
    for ratio, expected in ((goal.limit, True), (goal.limit * 1.01, False)):
        verdicts = judge_fences(figures(**{goal.figure: ratio, goal.peer: 1.0}))
        (verdict,) = (
            v for v in verdicts if (v.figure, v.peer) == (goal.figure, goal.peer)
        )
        assert verdict.met is expected


def made_up(pending_us: float) -> FenceReport:
    measured = figures(**{PENDING: pending_us, EVENTFD: 100.0, CHAIN: 1.0})
    measured["pipeline"] = Figure((1.0,))
    placed = FencePlacement(
        placement="apart",
        figures=measured,
        us={name: figure.us for name, figure in measured.items()},
        verdicts=judge_fences(measured),
    )
    return FenceReport(describe_environment(), 5, (placed,))


@pytest.mark.parametrize(("pending_us", "outcome"), [(150, "met"), (151, "MISSED")])
def test_the_table_shows_times_and_verdicts(pending_us: float, outcome: str) -> None:
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(fence_table(made_up(pending_us)))
    rows = console.export_text().splitlines()
    (row,) = [row for row in rows if "pending / eventfd" in row]
    assert row.split()[-5:-1] == [f"{pending_us / 100:.3f}", "<=", "1.5", outcome]


@pytest.mark.parametrize(("pending_us", "status"), [(150, 0), (151, 1)])
def test_a_missed_goal_fails_a_check_after_all_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pending_us: float, status: int
) -> None:
    def fake(*, rounds: int) -> FenceReport:
        assert rounds == 6
        return made_up(pending_us)

    monkeypatch.setattr("asyncnn.cli.bench.bench_fence", fake)
    document = tmp_path / "fence.json"
    arguments = ["fence", "--check", "--rounds", "6", "--json", str(document)]
    result = CliRunner().invoke(bench_app, arguments)
    assert result.exit_code == status
    assert "a signalled fence, awaited" in result.output
    assert json.loads(document.read_text())["placements"][0]["us"][EVENTFD] == 100.0
