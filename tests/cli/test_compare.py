"""``asyncnn compare``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from tests.cli.conftest import Ran
from tests.networks import addition
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, write
from tests.tools.test_comparison import addition_in_onnx

Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("ai_edge_litert")


@pytest.fixture
def exponential(tmp_path: Path) -> Path:
    """Return a model whose outputs are in no quantisation and not exact."""
    x, y = f32(1, 50), f32(1, 50)
    path = tmp_path / "model.tflite"
    path.write_bytes(write([Op("EXP", [x], [y])], [x], [y]))
    return path


def test_trained_models_agree(asyncnn_command: Command, shared: Path) -> None:
    model = shared / "models" / "hello_world_int8.tflite"
    ran = asyncnn_command("compare", model, "--with", "litert", "--path", "async,burst")
    assert ran.status == 0, ran.out + ran.err
    assert ran.out.startswith("on reference, version ")
    assert "beside LiteRT 2." in ran.out
    for path in ("async", "burst"):
        assert f"{path}, inprocess: 10 random samples, all within" in ran.out
    assert "LSB" in ran.out


def test_given_inputs_are_compared_too(
    asyncnn_command: Command, exponential: Path, tmp_path: Path
) -> None:
    file = tmp_path / "in.npz"
    x = np.linspace(-5, 5, 50, dtype=np.float32).reshape(1, 50)
    np.savez(file, input_0=x, input_1=2 * x)
    options = ("compare", exponential, "--with", "litert", "--input", file)
    ran = asyncnn_command(*options)
    assert ran.status == 0, ran.out + ran.err
    assert "async, inprocess: 10 random samples" in ran.out
    assert "async, inprocess: 2 given samples" in ran.out
    alone = asyncnn_command(*options, "--samples", 0)
    assert "random" not in alone.out


@pytest.mark.parametrize("options", [("--reference-kernels",), ("--seed", 7)])
def test_kernels_and_seed_are_chosen(
    asyncnn_command: Command, exponential: Path, options: tuple[object, ...]
) -> None:
    ran = asyncnn_command("compare", exponential, "--with", "litert", *options)
    assert ran.status == 0, ran.out + ran.err


def test_the_device_that_rounds_as_the_peer_does_is_the_default(
    asyncnn_command: Command, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.delenv("ASYNCNN_DEVICE")
    options = ("compare", shared / "models/kws_ref_model.tflite", "--with", "litert")
    for more, device in (((), "auto"), (("--reference-kernels",), "reference")):
        ran = asyncnn_command(*options, *more)
        assert ran.status == 0, ran.out + ran.err
        assert f"on {device}," in ran.out


def test_inputs_may_have_other_shapes_than_the_file_s(
    asyncnn_command: Command, exponential: Path
) -> None:
    (name,) = [info.name for info in asyncnn.load(exponential).inputs]
    options = ("compare", exponential, "--with", "litert", "--json", "--input-shape")
    ran = asyncnn_command(*options, f"{name}=3,7")
    assert ran.status == 0, ran.err
    (series,) = json.loads(ran.out)["series"]
    assert series["outputs"][0]["elements"] == 10 * 3 * 7
    for wrong in ("3,7", f"{name}=3,x", f"{name}=-3"):
        refused = asyncnn_command(*options, wrong)
        assert refused.status == 2
        assert "write it as NAME=1,2,3" in refused.err


def test_onnx_files_are_compared_with_onnx_runtime(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model"
    path.write_bytes(addition_in_onnx())
    options = ("compare", path, "--with", "onnxruntime", "--path", "sync")
    ran = asyncnn_command(*options, "--input-shape", "x=4,2")
    assert ran.status == 0, ran.out + ran.err
    assert "beside ONNX Runtime 1." in ran.out
    fixed = asyncnn_command(*options, "--constant", "b=2.5", "--json")
    assert json.loads(fixed.out)["passed"] is True
    refused = asyncnn_command("compare", path, "--with", "litert")
    assert refused.status == 2
    assert "LiteRT reads TFLite files, and this is ONNX" in refused.err
    assert "--with onnxruntime" in refused.err


def test_the_kind_of_file_is_looked_at_first(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    path.write_bytes(addition_in_onnx()[:-20])
    refused = asyncnn_command("compare", path, "--with", "litert")
    assert "LiteRT reads TFLite files, and this is ONNX" in refused.err


def test_given_inputs_that_do_not_fit_are_told_before_the_peer_has_them(
    asyncnn_command: Command, exponential: Path, tmp_path: Path
) -> None:
    file = tmp_path / "in.npz"
    np.savez(file, input_0=np.zeros((1, 49), np.float32))
    refused = asyncnn_command(
        "compare", exponential, "--with", "litert", "--input", file
    )
    assert refused.status == 2
    assert "has shape [1, 49], the model takes [1, 50]" in refused.err


def test_what_is_out_of_tolerance_exits_with_1(
    asyncnn_command: Command, exponential: Path, tmp_path: Path
) -> None:
    # Beside a file that computes something else: the peer reads it anew.
    x = np.linspace(-5, 5, 50, dtype=np.float32).reshape(1, 50)
    file = tmp_path / "in.npz"
    np.savez(file, input_0=x)
    strict = ("--rtol", 0, "--atol", 0, "--samples", 200)
    options = ("compare", exponential, "--with", "litert", "--input", file)
    ran = asyncnn_command(*options, *strict, "--json")
    report = json.loads(ran.out)
    largest = max(
        output["largest"] for each in report["series"] for output in each["outputs"]
    )
    assert largest > 0, "exponentials are equal to the last bit"
    assert not report["passed"]
    assert ran.status == 1
    text = asyncnn_command(*options, *strict)
    assert text.status == 1
    assert "OUT OF TOLERANCE" in text.out


def test_json_is_a_document(asyncnn_command: Command, exponential: Path) -> None:
    ran = asyncnn_command("compare", exponential, "--with", "litert", "--json")
    report = json.loads(ran.out)
    assert report["passed"] is True
    assert report["peer"] == "LiteRT"
    assert report["states"] == []
    (series,) = report["series"]
    assert series["samples"] == 10
    assert series["outputs"][0]["elements"] == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--with", "onnxruntime"), "ONNX Runtime reads ONNX files, and this is TFL"),
        (("--with", "litert", "--samples", 0), "no sample"),
        (("--with", "litert", "--path", "air"), "there is no path 'air'"),
        (("--with", "litert", "--transport", "air"), "there is no transport 'air'"),
        (("--with", "litert", "--device", "air"), "air"),
        (("--with", "litert", "--input", "/nothing.npz"), "No such file"),
        (("--with", "tensorflow"), "tensorflow"),
        ((), "--with"),
    ],
)
def test_bad_input_exits_with_2(
    asyncnn_command: Command,
    exponential: Path,
    options: tuple[object, ...],
    message: str,
) -> None:
    ran = asyncnn_command("compare", exponential, *options)
    assert ran.status == 2
    assert message in ran.err


def test_files_that_no_peer_reads_exit_with_2(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "model.asyncnn"
    asyncnn.save(addition(4), path)
    ran = asyncnn_command("compare", path, "--with", "litert")
    assert ran.status == 2
    assert "LiteRT reads TFLite files, and this is asyncnn" in ran.err
    missing = asyncnn_command("compare", tmp_path / "none", "--with", "litert")
    assert missing.status == 2


def test_a_missing_peer_says_what_to_install(
    asyncnn_command: Command, exponential: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.split(".")[0] == "ai_edge_litert"]
    for name in {"ai_edge_litert", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)
    ran = asyncnn_command("compare", exponential, "--with", "litert")
    assert ran.status == 2
    assert "pip install asyncnn[bench]" in ran.err


def test_of_a_folder_each_file_is_compared_alone(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    model = shared / "models" / "hello_world_float.tflite"
    inner = tmp_path / "files" / "inner"
    inner.mkdir(parents=True)
    (inner / "whole.tflite").write_bytes(model.read_bytes())
    (inner.parent / "cut.tflite").write_bytes(model.read_bytes()[:1000])
    (inner.parent / "notes.txt").write_text("none of LiteRT's")
    page = tmp_path / "page.html"
    options = ("--with", "litert", "--samples", "2", "--html", page)
    ran = asyncnn_command("compare", inner.parent, *options, "--json")
    assert ran.status == 1, ran.err
    report = json.loads(ran.out)
    cut, whole = report["files"]
    assert not cut["passed"]
    assert cut["problem"].startswith("damaged TFLite file")
    assert (whole["name"], whole["passed"]) == ("inner/whole.tflite", True)
    assert whole["run_us"] > 0
    assert whole["peer_us"] > 0
    assert "inner/whole.tflite" in page.read_text()
    (inner.parent / "cut.tflite").unlink()
    ran = asyncnn_command("compare", inner.parent, *options)
    assert ran.status == 0
    assert ran.out.startswith("inner/whole.tflite: agrees, awaited ")
    ran = asyncnn_command("compare", inner.parent, *options, "--input-shape", "no=1")
    assert ran.status == 1
    assert ran.out.startswith("inner/whole.tflite: there is no input 'no'")


def test_a_folder_without_files_of_the_runtime_is_refused(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("compare", tmp_path, "--with", "litert")
    assert ran.status == 2
    assert "no file in it is one of LiteRT" in ran.err
