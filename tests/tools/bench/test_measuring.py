"""Benchmarks end to end, with few and short rounds; see also test_burst_gates."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from onnx import helper

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench import (
    bench_burst,
    bench_files,
    bench_kernels,
    bench_models,
    bench_qos,
    bench_waits,
    benches,
    rounds,
)
from asyncnn.tools.bench.bench_models import (
    ACCELERATED,
    AWAITED,
    DEVICE,
    EXECUTOR,
    TO_THREAD,
)
from asyncnn.tools.bench.environment import CpuPair, PeerMissingError
from asyncnn.tools.bench.made_models import convolutions, dense
from asyncnn.tools.bench.measured_models import LITERT, LITERT_REF, Difference
from asyncnn.tools.bench.rounds import Call, Order
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.networks import addition
from tests.runtime.onnx.files import model, tensor
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, write

CPU = min(os.sched_getaffinity(0))


def is_whole(measured: Mapping[str, Any], contenders: set[str]) -> bool:
    """Return whether every contender has a time in a part of a document."""
    us = measured["us"]
    return us.keys() == contenders and min(us.values()) > 0


def test_awaiting_is_measured_in_two_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_MAX_RUNS", 3)
    placements = bench_waits.awaiting(Order(rounds=2)).document["placements"]
    assert len(placements) == 2
    for found in placements:
        assert is_whole(found, set(bench_waits.AWAITING.titles))
        assert found["p99_us"].keys() == found["us"].keys()
        ratio = found["figures"]["run"].ratio_to(found["figures"]["to_thread"])
        assert found["ratio"] == found["verdicts"][0].ratio == ratio
        assert found["met"] is (ratio <= 0.3)


async def _missing(place: benches.Place) -> Call:
    raise PeerMissingError("no grpcio [here]")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "bench", [bench_waits.fence, bench_waits.service, bench_burst.BURSTS]
)
def test_what_needs_another_process_has_a_figure_or_a_reason_for_everybody(
    monkeypatch: pytest.MonkeyPatch, bench: benches.PlacedBench
) -> None:
    monkeypatch.setattr(rounds, "_MAX_RUNS", 3)
    monkeypatch.setattr(benches, "cpu_pairs", lambda: [CpuPair(CPU, CPU)])
    monkeypatch.setitem(bench_waits.service.groups, "grpc_aio", _missing)
    (found,) = bench(Order(rounds=2)).document["placements"]
    refused = found["refusals"]
    assert is_whole(found, set(bench.titles) - set(refused))
    assert bench.titles.keys() >= refused.keys()
    if bench is bench_waits.service:
        assert refused == {"grpc_aio": "no grpcio [here]"}
    assert f"CPU {CPU}" in found["placement"]


class TestModels:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("ai_edge_litert")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "small.tflite"
        path.write_bytes(mobilenet_v1(quantized=False, size=32, width=0.25))
        return path

    def measured(self, *files: Path) -> dict[str, Any]:
        report = bench_models.bench(Order(*files, rounds=1))
        (model,) = report.document["models"]
        return model

    def test_the_devices_compute_what_the_engine_does(self, file: Path) -> None:
        model = self.measured(file)
        assert not model["refusals"]
        everybody = {DEVICE, AWAITED, ACCELERATED, EXECUTOR, LITERT, LITERT_REF}
        assert is_whole(model, everybody)
        assert model["us"][DEVICE] <= model["us"][AWAITED]
        assert set(model["ratios"]) == {LITERT, LITERT_REF}
        for name in ("difference", "difference_to_ref", "accelerated_difference"):
            difference = model[name]
            assert difference is not None
            assert not difference.in_steps
            assert difference.largest < 1e-5
        assert model["verdicts"] == ()

    @pytest.mark.parametrize("name", ["accelerated", "reference"])
    def test_the_default_device_stands_beside_the_engine(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("ASYNCNN_DEVICE", name)
        report = bench_models.bench(Order(file, rounds=1))
        devices, (model,) = report.document["devices"], report.document["models"]
        assert devices[0] == name
        assert set(devices) == {"accelerated", "reference"}
        ours = model["figures"][bench_models.figure_of(name)]
        assert model["ratio"] == ours.ratio_to(model["figures"][EXECUTOR])
        (table,) = report.tables
        ((row,),) = table.sections
        assert table.headings[1:4] == (name, "engine", "ratio")
        assert row[0] == "small"

    def test_all_of_a_folder_is_measured_or_refused_by_name(
        self, file: Path, tmp_path: Path
    ) -> None:
        pytest.importorskip("onnxruntime")
        onnx = tmp_path / "small.onnx"
        relu = helper.make_node("Relu", ["x"], ["y"])
        onnx.write_bytes(
            model([relu], [tensor("x", (1, 64))], ["y"]).SerializeToString()
        )
        asyncnn.save(addition(4), tmp_path / "sum.asyncnn")
        (tmp_path / "cut.onnx").write_bytes(onnx.read_bytes()[:-8])
        (tmp_path / "notes.txt").write_text("no model")
        report = bench_models.bench(Order(tmp_path, rounds=1))
        names = [row[0] for row in report.tables[0].sections[0]]
        assert names == ["cut", "small.onnx", "small.tflite", "sum"]
        found = dict(zip(names, report.document["models"], strict=True))
        assert found["small.onnx"]["engine"] == TO_THREAD
        assert is_whole(found["small.onnx"], {DEVICE, AWAITED, ACCELERATED, TO_THREAD})
        assert str(found["small.onnx"]["difference"]) == "0"
        assert is_whole(found["sum"], {DEVICE, AWAITED, ACCELERATED})
        assert found["sum"]["engine"] == ""
        assert not found["cut"]["figures"]
        assert set(found["cut"]["refusals"]) == {AWAITED, ACCELERATED, TO_THREAD}
        assert all(line.startswith("cut: ") for line in report.notes)

    def test_lengths_that_a_file_leaves_open_are_told_or_given(
        self, tmp_path: Path
    ) -> None:
        pytest.importorskip("onnxruntime")
        path = tmp_path / "pool.onnx"
        pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[4, 4])
        inputs = [tensor("x", (1, 1, "height", "width"))]
        path.write_bytes(model([pool], inputs, ["y"]).SerializeToString())
        refused = self.measured(path)
        assert "--input-shape" in refused["refusals"][ACCELERATED]
        report = bench_models.bench(
            Order(path, rounds=1, input_shapes={"x": (1, 1, 8, 8)})
        )
        assert not report.document["models"][0]["refusals"]

    def test_what_takes_too_long_is_not_repeated(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench_models, "LONGEST_S", 0.0)
        found = self.measured(file)
        assert not found["figures"]
        reasons = found["refusals"].values()
        assert all("too long to be repeated" in why for why in reasons)

    @pytest.mark.usefixtures("without_litert")
    def test_an_engine_that_is_missing_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "sum.tflite"
        x, y = f32(1, 4), f32(1, 4)
        path.write_bytes(write([Op("RELU", [x], [y])], [x], [y]))
        found = self.measured(path)
        assert {DEVICE, AWAITED} <= set(found["figures"])
        assert "pip install asyncnn[bench]" in found["refusals"][EXECUTOR]


class TestKernels:
    def test_the_filter_selects_what_is_measured_against_litert(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ai_edge_litert")
        monkeypatch.setattr(bench_kernels, "_BATCH_US", 100.0)
        report = bench_kernels.kernels(Order(pattern="fully*_int8", rounds=2))
        (kernel,) = report.document["kernels"]
        assert kernel["kernel"] == "fully_connected_int8"
        assert kernel["difference_to_ref"] == Difference(0.0, True)
        ratio = kernel["figures"]["engine"].ratio_to(kernel["figures"][LITERT])
        assert kernel["verdict"].ratio == ratio
        assert report.document["median_verdict"] is None

    def test_a_filter_that_selects_nothing_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no kernel 'nothing'"):
            bench_kernels.kernels(Order(pattern="nothing"))

    @pytest.mark.usefixtures("without_litert")
    def test_without_litert_there_is_nothing_to_measure(self) -> None:
        with pytest.raises(PeerMissingError):
            bench_kernels.kernels(Order(pattern="prelu*"))


class TestCache:
    def test_all_figures_are_measured(self, shared: Path) -> None:
        file = shared / "models" / "ad01_fp32.tflite"
        report = bench_files.cache(Order(file, mobilenet=False, rounds=5))
        (model,) = report.document["models"]
        assert is_whole(model, set(bench_files.CACHE.titles))
        assert model["us"]["loaded"] < model["us"]["anew"]
        weights = model["weights_bytes"]
        assert weights > 1_000_000
        assert -weights < model["growth_bytes"] < 2 * weights

    def test_the_largest_model_of_a_folder_always_has_goals(self, shared: Path) -> None:
        folder = shared / "models"
        files = sorted(
            folder.glob("hello_world*.tflite"), key=lambda f: f.stat().st_size
        )
        report = bench_files.cache(
            Order(folder, pattern="hello_world*", mobilenet=False, rounds=5)
        )
        (rows,) = report.tables[0].sections
        judged = {row[0]: [cell.met is not None for cell in row[-2:]] for row in rows}
        assert not all(judged[files[0].stem])
        assert all(judged[files[-1].stem])


class TestLoading:
    def test_all_figures_are_measured(self, shared: Path) -> None:
        file = shared / "models" / "ad01_fp32.tflite"
        report = bench_files.loading(Order(file, mobilenet=False, rounds=5))
        model = report.document["models"]["ad01_fp32"]
        assert is_whole(model, set(bench_files.LOADING.titles))
        assert model["us"]["loaded"] < model["us"]["reference"]
        judged = [verdict.figure for verdict in model["verdicts"]]
        assert judged == ["reference", "accelerated"]
        assert not report.notes

    def test_small_files_have_no_goals_and_refusals_are_told(
        self, shared: Path
    ) -> None:
        report = bench_files.loading(
            Order(shared / "models" / "person_detect.tflite", mobilenet=False, rounds=5)
        )
        model = report.document["models"]["person_detect"]
        assert set(model["figures"]) == {"loaded", "reference", "accelerated"}
        assert not model["verdicts"]
        assert any(
            "LiteRT" in note and "cannot run it" in note for note in report.notes
        )

    def test_files_of_packages_are_found_but_not_imported(self) -> None:
        if find_spec("pyopen_wakeword") is None:
            pytest.skip("the packages are not installed")
        found = bench_files.packaged("hey_*")
        names = {bench_files.name_of(path) for path in found}
        assert {"pyopen_wakeword/hey_jarvis", "pymicro_wakeword/hey_jarvis"} <= names
        assert "basic_pitch" not in sys.modules

    @pytest.mark.usefixtures("without_litert")
    def test_without_litert_there_is_nothing_to_measure(self, shared: Path) -> None:
        with pytest.raises(PeerMissingError):
            bench_files.loading(Order(shared / "models", mobilenet=False))


@pytest.fixture
def small_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_qos, "BACKGROUND", dense(layers=4, width=64, rows=64))
    monkeypatch.setattr(bench_qos, "URGENT", dense(layers=2, width=8, rows=2))
    monkeypatch.setattr(bench_qos, "_URGENT_RUNS", 3)
    monkeypatch.setattr(bench_qos, "_PAUSE_S", 0.001)
    monkeypatch.setattr(bench_qos, "_DATED_RUNS", 10)
    monkeypatch.setattr(bench_qos, "_QUEUED_RUNS", 20)
    monkeypatch.setattr(bench_qos, "_OVERHEAD_BATCHES", 2)
    monkeypatch.setattr(bench_qos, "DETECTOR", convolutions(3, side=16))
    monkeypatch.setattr(bench_qos, "SMALL", convolutions(1, side=4))
    monkeypatch.setattr(bench_qos, "_BESIDE_RUNS", 2)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_load")
def test_latencies_misses_and_costs_of_scheduling_are_measured() -> None:
    found = bench_qos.bench(Order(rounds=1)).document
    assert msgspec.json.encode(found)
    latencies = found["latencies"]
    assert list(latencies) == list(bench_qos.CONTENDERS)
    for each in (*latencies.values(), *found["beside"]):
        assert 0 < each["p50_us"] <= each["p99_us"]
    assert [each["load"] for each in found["misses"]] == list(bench_qos.LOADS)
    assert found["longest_operation_us"] > 0
    beside = 2 * len(bench_qos.WHERE)
    assert len(found["verdicts"]) == 4 + len(bench_qos.LOADS) + beside
    assert [(each["where"], each["load"]) for each in found["beside"]] == [
        (where, load) for where in bench_qos.WHERE for load in bench_qos.BESIDE
    ]
    for each in found["beside"]:
        is_idle = each["load"] == bench_qos.IDLE
        assert not is_idle or each["p50_ratio"] == each["p99_ratio"] == 1
    assert set(found["low_us"]) == set(bench_qos.WHERE)
