"""``asyncnn bench``: options, files and exit status, with measuring left out."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from asyncnn.cli import main
from asyncnn.cli.bench import bench_app
from asyncnn.tools.bench.awaiting.report import (
    DESCRIPTIONS,
    AwaitingReport,
    PlacementReport,
)
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.goals import LITERT, LITERT_REF
from asyncnn.tools.bench.models.report import AWAITED, DEVICE, ModelsReport, summarize
from asyncnn.tools.bench.rounds import Figure


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(bench_app, [str(argument) for argument in arguments])


def models_report(device_us: float) -> ModelsReport:
    figures = {
        DEVICE: Figure((device_us,)),
        AWAITED: Figure((device_us + 50,)),
        LITERT: Figure((50.0,)),
        LITERT_REF: Figure((1000.0,)),
    }
    refused = {LITERT: "too [new]", LITERT_REF: "too [new]", DEVICE: "too old"}
    models = (
        summarize("kws_ref_model", figures, {}),
        summarize("odd", {}, refused),
    )
    return ModelsReport(describe_environment(litert="2"), "pinned to 1", 5, models)


def awaiting_report(run_us: float) -> AwaitingReport:
    placed = PlacementReport(
        placement="pinned to 1",
        figures={name: Figure((run_us,)) for name in DESCRIPTIONS},
        us=dict.fromkeys(DESCRIPTIONS, run_us),
        ratio=run_us / 100,
        limit=0.3,
        met=run_us <= 30,
    )
    return AwaitingReport(describe_environment(), 5, (placed,))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace measuring by reports; their times and the arguments are in the dict."""
    seen: dict[str, Any] = {"device_us": 400.0, "run_us": 20.0}

    async def fake_models(paths: list[Path], **options: Any) -> ModelsReport:
        seen.update(options, names=[path.stem for path in options["progress"](paths)])
        return models_report(seen["device_us"])

    def fake_awaiting(*, rounds: int) -> AwaitingReport:
        seen["rounds"] = rounds
        return awaiting_report(seen["run_us"])

    monkeypatch.setattr("asyncnn.cli.bench.bench_models", fake_models)
    monkeypatch.setattr("asyncnn.cli.bench.bench_awaiting", fake_awaiting)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        (tmp_path / f"{name}.tflite").write_bytes(b"")
    return tmp_path


class TestModels:
    def test_the_table_has_times_ratios_and_verdicts(
        self, measured: dict[str, Any], folder: Path
    ) -> None:
        result = bench("models", folder, "--no-mobilenet")
        assert result.exit_code == 0, result.output
        (row,) = [line for line in result.output.splitlines() if "kws" in line]
        for cell in ("400", "450", "50.0", "1000", "8", "0.4", "REF <= 0.5 met"):
            assert cell in row

    def test_models_that_a_side_refuses_are_listed_with_each_reason_once(
        self, measured: dict[str, Any], folder: Path
    ) -> None:
        output = bench("models", folder, "--no-mobilenet").output
        assert "odd: LiteRT and REF cannot run it: too [new]\n" in output
        assert "odd: the device cannot run it: too old\n" in output

    def test_rounds_and_filter_reach_the_measurement(
        self, measured: dict[str, Any], folder: Path
    ) -> None:
        bench("models", folder, "--rounds", 9, "--filter", "f*")
        assert measured["names"] == ["first"]
        assert measured["rounds"] == 9

    def test_fewer_than_five_rounds_are_refused(
        self, measured: dict[str, Any], folder: Path
    ) -> None:
        assert bench("models", folder, "--rounds", 4).exit_code == 2
        assert "names" not in measured

    def test_reports_are_written_to_files(
        self, measured: dict[str, Any], folder: Path
    ) -> None:
        json_file, html_file = folder / "m.json", folder / "m.html"
        bench(
            *("models", folder, "--no-mobilenet"),
            *("--json", json_file, "--html", html_file),
        )
        document = json.loads(json_file.read_text())
        assert document["placement"] == "pinned to 1"
        assert document["models"][0]["ratios"] == {"litert": 8.0, "litert_ref": 0.4}
        assert "kws_ref_model" in html_file.read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("device_us", "option", "status"),
        [(400, "--check", 0), (600, "--check", 1), (600, "--no-mobilenet", 0)],
    )
    def test_a_missed_goal_fails_only_a_check(
        self,
        measured: dict[str, Any],
        folder: Path,
        device_us: float,
        option: str,
        status: int,
    ) -> None:
        measured["device_us"] = device_us
        result = bench("models", folder, "--no-mobilenet", option)
        assert result.exit_code == status
        assert ("MISSED" in result.output) is (device_us > 500)


class TestAwaiting:
    def test_the_table_describes_every_contender(
        self, measured: dict[str, Any]
    ) -> None:
        output = bench("awaiting").output
        for description in DESCRIPTIONS.values():
            assert description in output

    @pytest.mark.parametrize(("run_us", "status"), [(30.0, 0), (31.0, 1)])
    def test_a_missed_goal_fails_a_check(
        self, measured: dict[str, Any], run_us: float, status: int
    ) -> None:
        measured["run_us"] = run_us
        assert bench("awaiting", "--check").exit_code == status

    def test_the_report_is_written_to_a_file(
        self, measured: dict[str, Any], tmp_path: Path
    ) -> None:
        bench("awaiting", "--json", tmp_path / "a.json", "--rounds", 6)
        document = json.loads((tmp_path / "a.json").read_text())
        assert document["placements"][0]["us"]["run"] == 20.0
        assert measured["rounds"] == 6


@pytest.mark.usefixtures("without_litert")
def test_without_litert_the_command_ends_in_one_line_and_status_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["asyncnn", "bench", "models", str(folder)])
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("asyncnn: LiteRT cannot be imported")
    assert error.count("\n") == 1
    assert "pip install asyncnn[bench]" in error
