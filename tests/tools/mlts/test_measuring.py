"""Models are measured on every way there is; what refuses is a row that says why."""

from functools import partial
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
from asyncnn.tools.mlts import Suite, Wanted, chosen_devices, run_suite, suite_models
from asyncnn.tools.mlts.contenders import LITERT, ONNX_RUNTIME
from asyncnn.tools.mlts.measuring import ROUNDS
from asyncnn.tools.mlts.suite_models import write_reference_model
from asyncnn.tools.mlts.suite_records import SuiteReport, SuiteRow
from asyncnn.tools.reference_models import (
    REFERENCE_MODELS,
    ReferenceModel,
    speech_recognition,
    speech_synthesis,
)
from tests.conftest import one_in
from tests.tools.mlts.conftest import write_golden, write_model


async def measured(folder: Path, **suite: object) -> SuiteReport:
    fields: dict[str, object] = {
        "devices": ("reference",),
        "transports": (IN_PROCESS,),
        "peers": (),
        "runs": 5,
        "seconds": 0.1,
        "powercap": folder / "no-energy",
    }
    with suite_models(Wanted(folder=folder)) as models:
        return await run_suite(models, Suite(**{**fields, **suite}))  # type: ignore[arg-type]


def by_way(report: SuiteReport) -> dict[str, SuiteRow]:
    return {row.way: row for row in report.rows}


async def test_each_path_is_measured_and_judged(folder: Path) -> None:
    report = await measured(folder)
    rows = by_way(report)
    assert list(rows) == [
        f"reference {p}" for p in ("async", "sync", "burst", "fenced")
    ]
    for row in rows.values():
        assert not row.refusal
        assert row.accuracy is not None
        assert row.accuracy.passed
        assert row.latency is not None
        assert len(row.latency.us) == 5
        assert 0 < row.latency.p50_us <= row.latency.p90_us <= row.latency.p99_us
        preparation = row.preparation
        assert preparation is not None
        assert len(preparation.us) == len(preparation.cached_us) > 1
        assert preparation.cache_bytes > 0
        assert preparation.first_us is not None
        assert row.joules is None
    assert report.passed
    assert any("energy" in note for note in report.notes)


async def test_a_driver_process_is_another_transport(folder: Path) -> None:
    report = await measured(folder, transports=(IN_PROCESS, REMOTE), paths=("async",))
    assert list(by_way(report)) == ["reference async", "reference remote async"]
    assert report.passed


async def test_what_has_no_driver_process_is_noted(folder: Path) -> None:
    devices = ("sample-float-fast", "reference")
    report = await measured(
        folder, devices=devices, transports=(REMOTE,), paths=("sync",)
    )
    assert list(by_way(report)) == ["reference remote sync"]
    assert any("sample-float-fast, remote" in note for note in report.notes)


async def test_runs_and_seconds_bound_a_batch(folder: Path) -> None:
    report = await measured(folder, paths=("sync",), runs=1000, seconds=0.0)
    (row,) = report.rows
    assert row.latency is not None
    assert len(row.latency.us) == ROUNDS


async def test_energy_is_that_of_a_run(folder: Path, tmp_path: Path) -> None:
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name in ("energy_uj", "max_energy_range_uj"):
        (zone / name).write_text("1000")
    report = await measured(folder, paths=("sync",), powercap=zone.parent)
    (row,) = report.rows
    assert row.joules == 0.0
    assert not report.notes


async def test_outputs_that_are_off_fail_the_run(folder: Path) -> None:
    write_golden(write_model(folder, "off"), off_by=0.5)
    report = await measured(folder, paths=("async",))
    assert [row.model for row in report.failures()] == ["off"]
    (failed,) = report.failures()
    assert failed.accuracy is not None
    assert failed.accuracy.largest_error == pytest.approx(0.5)


async def test_a_model_that_a_device_refuses_is_a_row(folder: Path) -> None:
    (folder / "damaged.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(40))
    devices = ("sample-quant", "reference")
    report = await measured(folder, devices=devices, paths=("async",))
    rows = {(row.model, row.system): row for row in report.rows}
    refused = rows["absolute", "sample-quant"]
    assert refused.refusal
    assert refused.latency is None
    assert not rows["absolute", "reference"].refusal
    damaged = next(model for model in report.models if model.name == "damaged")
    assert damaged.problem


class TestBesidePeers:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("ai_edge_litert")
        pytest.importorskip("onnxruntime")

    async def test_a_file_that_a_runtime_does_not_read_is_a_row(
        self, folder: Path
    ) -> None:
        report = await measured(folder, paths=("sync",), peers=(LITERT, ONNX_RUNTIME))
        rows = by_way(report)
        assert "does not read asyncnn files" in rows["LiteRT call"].refusal
        assert "ABS cannot be rewritten as ONNX" in rows["ONNX Runtime call"].refusal
        assert report.passed

    async def test_a_file_of_onnx_is_run_by_its_own_runtime(
        self, tmp_path: Path
    ) -> None:
        tensors = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3))
            for name in ("x", "y")
        ]
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        graph = helper.make_graph(nodes, "graph", tensors[:1], tensors[1:])
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        onnx.save(model, tmp_path / "relu.onnx")
        report = await measured(
            tmp_path, paths=("async",), peers=(LITERT, ONNX_RUNTIME)
        )
        rows = by_way(report)
        assert rows["reference async"].latency is not None
        assert rows["ONNX Runtime call"].latency is not None
        assert "does not read ONNX files" in rows["LiteRT call"].refusal
        assert {row.accuracy for row in report.rows} == {None}

    @pytest.mark.parametrize(
        "name", one_in(2, ["hello_world_int8", "hello_world_float"])
    )
    async def test_trained_models_are_as_accurate_everywhere(
        self, name: str, shared: Path, tmp_path: Path
    ) -> None:
        for suffix in (".tflite", ".npz"):
            content = (shared / "models" / f"{name}{suffix}").read_bytes()
            (tmp_path / f"{name}{suffix}").write_bytes(content)
        report = await measured(
            tmp_path,
            devices=("reference", "accelerated"),
            paths=("sync", "burst"),
            peers=(LITERT, ONNX_RUNTIME),
        )
        assert [row.system for row in report.rows] == [
            *["reference"] * 2,
            *["accelerated"] * 2,
            *("LiteRT", "ONNX Runtime"),
        ]
        for row in report.rows:
            assert not row.refusal
            assert row.accuracy is not None
            assert row.accuracy.passed
            assert row.accuracy.samples == 8

    @pytest.mark.parametrize(
        ("name", "make"),
        [
            ("asr_float", speech_recognition),
            pytest.param("tts_float", speech_synthesis, marks=pytest.mark.exhaustive),
        ],
    )
    async def test_steps_of_a_sequence_are_judged_where_state_is_kept(
        self, name: str, make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evaluator = REFERENCE_MODELS[name].evaluator
        small = ReferenceModel(partial(make, cells=16), False, evaluator, 5)  # type: ignore[arg-type]
        monkeypatch.setitem(REFERENCE_MODELS, name, small)
        write_reference_model(tmp_path, name)
        report = await measured(
            tmp_path,
            devices=("reference", "accelerated"),
            paths=("async", "session"),
            peers=(LITERT,),
        )
        judged = {row.way for row in report.rows if row.accuracy is not None}
        assert judged == {"reference session", "accelerated session", "LiteRT call"}
        for row in report.rows:
            assert not row.refusal
            if row.accuracy is not None:
                assert row.accuracy.evaluator == evaluator
                assert row.accuracy.passed
                assert row.accuracy.samples == 10


def test_all_devices_are_those_that_are_no_samples() -> None:
    chosen = chosen_devices(["all"])
    assert {"reference", "auto", "accelerated", "framework"} <= {*chosen}
    assert not any(name.startswith("sample") for name in chosen)
    assert chosen_devices(["sample-all", "all", "reference"])[:2] == [
        "sample-all",
        "reference",
    ]


def test_the_conditions_are_told() -> None:
    assert str(Suite(devices=(), runs=7, seconds=0.5)).startswith("at most 7 runs")


@pytest.mark.exhaustive
async def test_devices_are_accurate_on_all_trained_models(shared: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    report = await measured(
        shared / "models",
        devices=("reference", "accelerated"),
        paths=("sync", "session"),
        peers=(LITERT,),
    )
    assert report.passed
    judged = {row.model for row in report.rows if row.accuracy and not row.is_peer}
    assert len(judged) == len(report.models) > 12
    refused = {row.model: row.system for row in report.rows if row.refusal}
    assert refused == {"person_detect": LITERT}
    stateful = {row.model for row in report.rows if row.path == "session"}
    assert {"trained_lstm", "trained_lstm_int8"} <= stateful
