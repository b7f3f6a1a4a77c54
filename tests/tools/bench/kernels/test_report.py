"""Verdicts on kernels, as table and as exit status."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from asyncnn.cli.bench import bench_app
from asyncnn.tools.bench.arrays import Difference
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.goals import LITERT
from asyncnn.tools.bench.kernels.cases import CASES
from asyncnn.tools.bench.kernels.report import (
    ENGINE,
    KernelReport,
    KernelsReport,
    judge_median,
    summarize_kernel,
)
from asyncnn.tools.bench.rounds import Figure


def report_of(name: str, ratio: float) -> KernelReport:
    figures = {ENGINE: Figure((ratio * 10,)), LITERT: Figure((10.0,))}
    return summarize_kernel(name, figures, Difference(1.0, True))


def reports_of(ratio: float) -> list[KernelReport]:
    return [report_of(case.name, ratio) for case in CASES]


@pytest.mark.parametrize(("ratio", "met"), [(25.0, True), (25.1, False)])
def test_no_kernel_may_be_slower_than_25_times_the_peer(
    ratio: float, met: bool
) -> None:
    assert report_of("add_int8", ratio).verdict.met is met


@pytest.mark.parametrize(("ratio", "met"), [(8.0, True), (8.1, False)])
def test_the_median_of_all_kernels_may_be_8_times_the_peer(
    ratio: float, met: bool
) -> None:
    several = reports_of(ratio)
    verdict = judge_median(several)
    assert verdict is not None
    assert verdict.ratio == median(kernel.verdict.ratio for kernel in several)
    assert verdict.met is met


def test_the_median_of_some_kernels_is_not_judged() -> None:
    assert judge_median(reports_of(20.0)[1:]) is None


class TestCommand:
    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Replace measuring by a report; its ratio and the arguments are in there."""
        seen: dict[str, Any] = {"ratio": 4.0}

        async def fake(pattern: str, **options: Any) -> KernelsReport:
            seen.update(options, pattern=pattern, cases=options["progress"](CASES))
            several = reports_of(seen["ratio"])
            return KernelsReport(
                describe_environment(litert="2"),
                "pinned to 1",
                options["rounds"],
                tuple(several),
                judge_median(several),
            )

        monkeypatch.setattr("asyncnn.cli.bench.bench_kernels", fake)
        return seen

    def bench(self, *arguments: object) -> Result:
        return CliRunner().invoke(bench_app, ["kernels", *map(str, arguments)])

    def test_the_table_has_times_ratio_difference_and_verdict(
        self, measured: dict[str, Any]
    ) -> None:
        output = self.bench().output
        (row,) = [line for line in output.splitlines() if "add_int8" in line]
        for cell in ("40", "10", "4", "1 LSB", "<= 25 met"):
            assert cell in row
        assert "<= 8 met" in output
        assert "7 rounds, pinned to 1" in output

    def test_options_reach_the_measurement_and_the_report_a_file(
        self, measured: dict[str, Any], tmp_path: Path
    ) -> None:
        file = tmp_path / "kernels.json"
        self.bench("--filter", "add*", "--rounds", 9, "--json", file)
        assert measured["pattern"] == "add*"
        assert list(measured["cases"]) == list(CASES)
        document = json.loads(file.read_text())
        assert document["rounds"] == 9
        assert document["median_verdict"]["ratio"] == 4.0
        report = msgspec.convert(document, KernelsReport)
        assert [kernel.us[ENGINE] for kernel in report.kernels] == [40.0] * len(CASES)

    @pytest.mark.parametrize(
        ("ratio", "options", "status"),
        [(8.0, ["--check"], 0), (9.0, ["--check"], 1), (9.0, [], 0)],
    )
    def test_a_missed_goal_fails_only_a_check(
        self,
        measured: dict[str, Any],
        ratio: float,
        options: list[str],
        status: int,
    ) -> None:
        measured["ratio"] = ratio
        result = self.bench(*options)
        assert result.exit_code == status
        assert ("MISSED" in result.output) is (ratio > 8)
