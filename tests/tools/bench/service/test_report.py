"""Verdicts on the service, as table and as exit status."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from asyncnn.cli.bench import bench_app
from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.rounds import Figure
from asyncnn.tools.bench.service.report import (
    DESCRIPTIONS,
    EXECUTE,
    GRPC,
    IMAGE,
    IMAGE_EXECUTOR,
    IMAGE_PIPE,
    STREAMS,
    ServicePlacement,
    ServiceReport,
    judge_service,
)
from asyncnn.tools.bench.service.table import service_notes, service_table


def figures(**us: float) -> dict[str, Figure]:
    return {name: Figure((value,)) for name, value in us.items()}


class TestGoals:
    @pytest.mark.parametrize(
        ("figure", "peer", "met", "missed"),
        [
            (EXECUTE, STREAMS, 1.6, 1.61),
            (EXECUTE, GRPC, 0.5, 0.51),
            (IMAGE, IMAGE_PIPE, 0.3, 0.31),
            (IMAGE, IMAGE_EXECUTOR, 0.1, 0.11),
        ],
    )
    def test_each_has_its_limit(
        self, figure: str, peer: str, met: float, missed: float
    ) -> None:
        for ratio, expected in ((met, True), (missed, False)):
            (verdict,) = judge_service(figures(**{figure: ratio, peer: 1.0}))
            assert (verdict.figure, verdict.peer) == (figure, peer)
            assert verdict.ratio == ratio
            assert verdict.met is expected

    def test_one_without_its_peer_is_left_out(self) -> None:
        assert judge_service(figures(**{EXECUTE: 1.0, IMAGE: 1.0})) == ()


def made_up(execute_us: float) -> ServiceReport:
    measured = figures(**dict.fromkeys(DESCRIPTIONS, 100.0))
    measured |= figures(**{EXECUTE: execute_us, IMAGE: 5.0})
    del measured[GRPC]
    placed = ServicePlacement(
        placement="apart",
        figures=measured,
        us={name: figure.us for name, figure in measured.items()},
        verdicts=judge_service(measured),
        refusals={GRPC: "no grpcio [here]"},
    )
    return ServiceReport(describe_environment(), 5, Exchange(218, 95), (placed,))


class TestTable:
    @pytest.mark.parametrize(("execute_us", "outcome"), [(160, "met"), (161, "MISSED")])
    def test_it_shows_times_and_verdicts(self, execute_us: float, outcome: str) -> None:
        report = made_up(execute_us)
        assert report.met is (outcome == "met")
        console = Console(width=130, record=True, file=io.StringIO())
        console.print(service_table(report))
        rows = console.export_text().splitlines()
        (row,) = [row for row in rows if "execute / asyncio_streams" in row]
        assert row.split()[-5:-1] == [f"{execute_us / 100:.3f}", "<=", "1.6", outcome]
        (row,) = [row for row in rows if "execute / grpc_aio" in row]
        assert row.split()[-2] == "-"

    def test_notes_say_sizes_and_who_is_missing(self) -> None:
        assert list(service_notes(made_up(1))) == [
            "218 bytes to the driver and 95 back",
            "grpc_aio was not measured: no grpcio [here]",
        ]


@pytest.mark.parametrize(("execute_us", "status"), [(160, 0), (161, 1)])
def test_a_missed_goal_fails_a_check_after_all_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, execute_us: float, status: int
) -> None:
    def fake(*, rounds: int) -> ServiceReport:
        assert rounds == 6
        return made_up(execute_us)

    monkeypatch.setattr("asyncnn.cli.bench.bench_service", fake)
    file = tmp_path / "report.json"
    options = ["service", "--rounds", "6", "--check", "--json", str(file)]
    result = CliRunner().invoke(bench_app, options)
    assert result.exit_code == status
    assert "grpc_aio was not measured: no grpcio [here]" in result.output
    assert json.loads(file.read_text())["placements"][0]["placement"] == "apart"
