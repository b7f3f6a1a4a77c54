"""The kernels benchmark: its cases, its verdicts and its command."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from asyncnn.bench import kernels
from asyncnn.bench.environment import describe_environment
from asyncnn.bench.goals import LITERT
from asyncnn.bench.kernel_cases import CASES, INT8, Case
from asyncnn.bench.kernel_files import kernel_file
from asyncnn.bench.kernels import (
    ENGINE,
    KernelReport,
    KernelsReport,
    bench_kernels,
    judge_median,
    summarize_kernel,
)
from asyncnn.bench.litert import LiteRt, PeerMissingError
from asyncnn.bench.models import Difference, random_inputs
from asyncnn.bench.rounds import Figure
from asyncnn.cli.bench import bench_app
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import import_tflite


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def report_of(name: str, ratio: float) -> KernelReport:
    figures = {ENGINE: Figure((ratio * 10,)), LITERT: Figure((10.0,))}
    return summarize_kernel(name, figures, Difference(1.0, True))


def reports_of(ratio: float) -> list[KernelReport]:
    return [report_of(case.name, ratio) for case in CASES]


class TestCases:
    def test_there_are_twenty_with_names_of_their_own(self) -> None:
        assert len({case.name for case in CASES}) == len(CASES) == 20

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_each_is_one_operation_of_its_type_for_the_importer(
        self, case: Case
    ) -> None:
        pytest.importorskip("ai_edge_litert")
        model = import_tflite(from_buffer(kernel_file(case))).model
        (operation,) = model.main.operations
        (result,) = operation.outputs
        operand = model.main.operands[result]
        assert operand.dimensions == case.result.shape
        assert (operand.type in QUANT8_TYPES) is (case.type == INT8)

    @pytest.mark.parametrize(
        "case",
        [case for case in CASES if case.type == INT8],
        ids=lambda case: case.name,
    )
    def test_quantised_results_use_the_range_of_their_type(
        self, case: Case, tmp_path: Path
    ) -> None:
        pytest.importorskip("ai_edge_litert")
        path = tmp_path / "case.tflite"
        path.write_bytes(kernel_file(case))
        peer = LiteRt(path)
        peer.set_inputs(random_inputs(peer.input_kinds()))
        (result,) = peer.first_outputs()
        assert len(np.unique(result)) > 64
        assert np.mean((result == -128) | (result == 127)) < 0.5

    def test_the_seed_decides_the_weights(self) -> None:
        pytest.importorskip("ai_edge_litert")
        case = named("prelu_f32")
        assert kernel_file(case) == kernel_file(case)
        assert kernel_file(case) != kernel_file(case, seed=1)


class TestMeasuring:
    @pytest.fixture(autouse=True)
    def short_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ai_edge_litert")
        monkeypatch.setattr(kernels, "_BATCH_US", 100.0)

    async def test_the_filter_selects_what_is_measured_against_litert(self) -> None:
        seen: list[str] = []

        def progress(cases: list[Case]) -> list[Case]:
            seen.extend(case.name for case in cases)
            return cases

        report = await bench_kernels("fully*_int8", rounds=2, progress=progress)
        (kernel,) = report.kernels
        assert seen == [kernel.kernel] == ["fully_connected_int8"]
        assert kernel.difference_to_ref == Difference(0.0, True)
        ratio = kernel.figures[ENGINE].ratio_to(kernel.figures[LITERT])
        assert kernel.verdict.ratio == ratio
        assert all(us > 0 for us in kernel.us.values())
        assert report.median_verdict is None

    async def test_a_filter_that_selects_nothing_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no kernel 'nothing'"):
            await bench_kernels("nothing")


@pytest.mark.usefixtures("without_litert")
async def test_without_litert_there_is_nothing_to_measure() -> None:
    with pytest.raises(PeerMissingError):
        await bench_kernels("prelu*")


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
