"""``asyncnn loadgen`` and ``asyncnn loadgen compare``."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Ran

Command = Callable[..., Ran]
SHORT = ("--queries", 70, "--seconds", 0, "--device", "reference")


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("mlperf_loadgen")


@pytest.fixture
def model(shared: Path) -> Path:
    return shared / "models" / "hello_world_float.tflite"


def test_a_scenario_is_judged_on_each_way(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    ran = asyncnn_command(
        *("loadgen", model, "--path", "threadsafe,burst", "--log-dir", tmp_path, *SHORT)
    )
    assert ran.status == 0, ran.out + ran.err
    first, second = ran.out.splitlines()
    assert first.startswith("inprocess, threadsafe: SingleStream VALID, ")
    assert second.startswith("inprocess, burst: SingleStream VALID, ")
    assert "p99" in first
    assert (tmp_path / "inprocess-burst" / "mlperf_log_summary.txt").exists()


def test_options_may_come_first_and_json_has_it_all(
    asyncnn_command: Command, model: Path
) -> None:
    ran = asyncnn_command(
        *("loadgen", "--scenario", "Server", "--target-qps", 2000, "--json"),
        *(*SHORT, "--queries", 600, "--latency-bound-ms", 5000, model),
    )
    assert ran.status == 0, ran.out + ran.err
    report = json.loads(ran.out)
    (run,) = report["runs"]
    assert report["valid"] is True
    assert run["verdict"]["scenario"] == "Server"
    assert run["verdict"]["target_qps"] == 2000
    assert run["verdict"]["queries"] >= 600


def test_accuracy_is_read_from_loadgens_log(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    models = shared / "models"
    told = ("loadgen", models / "kws_ref_model.tflite", "--accuracy", *SHORT, "--input")
    ran = asyncnn_command(*told, models / "kws_ref_model.npz")
    assert ran.status == 0, ran.out + ran.err
    assert "SingleStream VALID, golden 100.00%" in ran.out
    arrays = dict(np.load(models / "kws_ref_model.npz"))
    count = sum(name.startswith("input_") for name in arrays)
    labels = [int(np.argmax(arrays[f"output_{k}"])) for k in range(count)]
    labels[0] += 1
    path = tmp_path / "labelled.npz"
    np.savez(path, allow_pickle=False, labels=labels, **arrays)
    ran = asyncnn_command(*told, path)
    assert f"top-1 {(count - 1) / count:.2%} ({count - 1} of {count})" in ran.out


def test_an_invalid_result_exits_with_1(asyncnn_command: Command, model: Path) -> None:
    ran = asyncnn_command(
        *("loadgen", model, "--scenario", "Server", "--target-qps", 1000),
        *("--latency-bound-ms", 1e-6, *SHORT),
    )
    assert ran.status == 1
    assert "Server INVALID" in ran.out
    assert "  latencies exceed the bound" in ran.out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--scenario", "Fast"), "there is no scenario 'Fast'"),
        (("--path", "sideways"), "there is no path 'sideways'"),
        (("--transport", "pigeon"), "there is no transport 'pigeon'"),
        (("--scenario", "Server"), "give --target-qps"),
        (("--target-qps", -1), "--target-qps must be positive"),
        (("--target-qps", "1e300"), "and at most 1,000,000,000"),
        (("--latency-bound-ms", "nan"), "--latency-bound-ms must be positive"),
        (("--queries", 10**21), "'--queries'"),
        (("--seconds", "inf"), "'--seconds'"),
        (("--seconds", "nan"), "'--seconds'"),
        (("--device", "toaster"), "toaster"),
        (("--log-dir", "/proc/nowhere"), "logs cannot be written to /proc/nowhere"),
        (("--accuracy",), "it is not known which answers are right"),
        (("--input", __file__), "is not a readable .npz"),
    ],
)
def test_bad_input_is_one_line(
    asyncnn_command: Command, model: Path, options: tuple[object, ...], line: str
) -> None:
    ran = asyncnn_command("loadgen", model, *options)
    assert ran.status == 2
    assert line in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_labels_that_do_not_fit_are_told(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "labels.npz"
    x = np.zeros((1, 1), np.float32)
    np.savez(path, allow_pickle=False, input_0=x, labels=np.zeros(2, np.int64))
    ran = asyncnn_command("loadgen", model, "--accuracy", "--input", path)
    assert ran.status == 2
    assert "2 labels of int64, but 1 samples" in ran.err


def test_what_to_install_is_told(
    asyncnn_command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    for arguments in ((model,), ("compare",)):
        ran = asyncnn_command("loadgen", *arguments)
        assert ran.status == 2
        assert "pip install asyncnn[loadgen]" in ran.err
        assert len(ran.err.strip().splitlines()) == 1


def test_systems_are_compared(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")
    file = tmp_path / "report.json"
    (twin := tmp_path / model.name).write_bytes(model.read_bytes())
    ran = asyncnn_command(
        *("loadgen", "compare", model, twin, "--scenario", "SingleStream"),
        *("--system", "threadsafe", "--device", "reference", "--json", file),
        *("--queries", 70, "--passes", 1, "--rounds", 1),
    )
    assert ran.status == 0, ran.out + ran.err
    sections = json.loads(file.read_text())["sections"]
    assert [each["model"] for each in sections] == [str(model), str(twin)]
    ran = asyncnn_command(
        *("loadgen", "compare", model, "--scenario", "SingleStream,Offline,Server"),
        *("--system", "threadsafe,executor,threads", "--device", "reference"),
        *("--queries", 70, "--passes", 1, "--rounds", 1, "--json", file),
    )
    assert ran.status == 0, ran.out + ran.err
    report = json.loads(file.read_text())
    names = [section["name"] for section in report["sections"]]
    assert names == ["SingleStream", "Offline", "Server, 20 x", "Server, 40 x"]
    for section in report["sections"]:
        assert {*section["passes"]} == {"threadsafe", "executor", "threads"}
        assert all(len(passes) == 1 for passes in section["passes"].values())
    single = report["sections"][0]
    goals = {(v["goal"]["figure"], v["goal"]["limit"]) for v in single["verdicts"]}
    assert goals == {("p50_us", 0.85), ("p90_us", 0.95)}


def test_a_missed_goal_exits_with_1(asyncnn_command: Command) -> None:
    pytest.importorskip("ai_edge_litert")
    ran = asyncnn_command(
        *("loadgen", "compare", "--scenario", "tiny", "--queries", 70, "--check"),
        *("--rounds", 1, "--device", "reference"),
        *("--system", "at_once,burst_blocking"),
    )
    assert "burst_blocking / at_once" in ran.out
    assert ran.status == ("MISSED" in ran.out)


@pytest.mark.alone
def test_an_interrupt_ends_it_without_a_traceback(model: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "asyncnn", "loadgen", str(model)]
    options = ["--scenario", "Server", "--target-qps", "50", "--seconds", "60"]
    process = subprocess.Popen(
        [*command, *options, "--device", "reference", "--log-dir", str(logs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What is started in the background of a shell ignores interrupts otherwise.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (logs / "mlperf_log_detail.txt").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert not out
