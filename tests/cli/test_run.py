import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn import OperandType, OperationType
from asyncnn.hal.types import Operand
from tests.cli.conftest import Ran
from tests.networks import addition, chain

Command = Callable[..., Ran]

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def add_model(tmp_path: Path) -> Path:
    path = tmp_path / "add.asyncnn"
    asyncnn.save(addition(4), path)
    return path


@pytest.fixture
def chain_model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.asyncnn"
    asyncnn.save(chain(3, 4), path)
    return path


def pairs() -> asyncnn.NamedModel:
    """Return a pool over pairs of rows of an image of any size."""
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (1, 0, 0, 1))
    numbers = (0, 0, 0, 0, 1, 1, 1, 2, 0)
    y = builder.operation(
        OperationType.MAX_POOL_2D,
        [x, *map(builder.scalar, numbers)],
        Operand(OperandType.TENSOR_FLOAT32, (0, 0, 0, 0)),
    )
    builder.output(y, "y")
    return builder.build()


def gathering(index: int) -> asyncnn.NamedModel:
    """Return a model that picks one row of two, of any length."""
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (2, 0))
    rows = builder.constant(np.int32([index]))
    picked = builder.operation(
        OperationType.GATHER,
        [x, builder.scalar(0), rows],
        Operand(OperandType.TENSOR_FLOAT32, (1, 0)),
    )
    builder.output(picked, "y")
    return builder.build()


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


class TestSamples:
    def test_every_sample_is_run_and_written(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        inputs = npz(tmp_path / "in.npz", input_0=X, input_1=10 * X)
        out = tmp_path / "out.npz"
        ran = asyncnn_command("run", chain_model, "--input", inputs, "--output", out)
        assert ran.status == 0, ran.err
        assert "async: 2 samples" in ran.out
        with np.load(out) as written:
            assert sorted(written.files) == ["output_0", "output_1"]
            np.testing.assert_array_equal(written["output_1"], 10 * X + 3)

    def test_several_inputs_are_named(
        self, asyncnn_command: Command, add_model: Path, tmp_path: Path
    ) -> None:
        inputs = npz(tmp_path / "in.npz", **{"input_0.x": X, "input_0.y": X})
        out = tmp_path / "out.npz"
        ran = asyncnn_command("run", add_model, "--input", inputs, "--output", out)
        assert ran.status == 0, ran.err
        with np.load(out) as written:
            np.testing.assert_array_equal(written["output_0"], 2 * X)

    def test_without_input_one_random_sample_is_run(
        self, asyncnn_command: Command, add_model: Path
    ) -> None:
        paths = "async,sync,fenced,burst"
        ran = asyncnn_command("run", add_model, "--repeat", 3, "--path", paths)
        assert ran.status == 0, ran.err
        time = r"[\d.]+ (ns|us|ms|s)"
        for path in paths.split(","):
            times = f"first run {time}, then p50 {time}, p99 {time}"
            assert re.search(f"^{path}: 1 sample, {times}$", ran.out, re.MULTILINE)

    @pytest.mark.parametrize(
        ("repeat", "times"),
        [
            (1, "async: 1 sample in {time}"),
            (2, "async: 1 sample, first run {time}, then {time}"),
        ],
    )
    def test_one_run_has_one_time(
        self, asyncnn_command: Command, add_model: Path, repeat: int, times: str
    ) -> None:
        ran = asyncnn_command("run", add_model, "--repeat", repeat)
        assert ran.status == 0, ran.err
        _, line = ran.out.splitlines()
        assert re.fullmatch(times.format(time=r"[\d.]+ (ns|us|ms|s)"), line)

    def test_the_first_run_is_no_part_of_the_percentiles(
        self, asyncnn_command: Command, add_model: Path
    ) -> None:
        reports = [
            json.loads(
                asyncnn_command("run", add_model, "--json", "--repeat", repeat).out
            )["paths"][0]
            for repeat in (1, 2)
        ]
        one, two = reports
        assert (one["runs"], two["runs"]) == (1, 2)
        assert one["latency_us_p50"] == one["latency_us_p99"] == one["first_run_us"]
        assert two["latency_us_p50"] == two["latency_us_p99"] != two["first_run_us"]

    @pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
    def test_every_path_has_deadlines(
        self, asyncnn_command: Command, add_model: Path, path: str
    ) -> None:
        options = (add_model, "--path", path, "--deadline-ms")
        assert asyncnn_command("run", *options, 60_000).status == 0
        missed = asyncnn_command("run", *options, 1e-6)
        assert missed.status == 1
        assert "deadline" in missed.err.lower()

    def test_json_is_a_document_of_its_own(
        self, asyncnn_command: Command, add_model: Path
    ) -> None:
        ran = asyncnn_command("run", add_model, "--json", "--path", "sync")
        report = json.loads(ran.out)
        assert report["passed"] is True
        assert report["device"] == "reference"
        assert report["paths"][0]["path"] == "sync"
        assert report["paths"][0]["latency_us_p50"] > 0

    def test_random_inputs_say_that_lengths_are_open(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "open.asyncnn"
        asyncnn.save(pairs(), path)
        ran = asyncnn_command("run", path)
        assert ran.status == 1
        assert "length 1 on each axis that the model leaves open, here of x" in ran.err
        given = npz(tmp_path / "in.npz", input_0=np.zeros((1, 1, 1, 1), np.float32))
        ran = asyncnn_command("run", path, "--input", given)
        assert ran.status == 1
        assert "open" not in ran.err

    def test_lengths_are_not_blamed_for_what_none_would_help(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "gathering.asyncnn"
        asyncnn.save(gathering(1), path)
        assert asyncnn_command("run", path).status == 0
        asyncnn.save(gathering(9), path)
        ran = asyncnn_command("run", path)
        assert ran.status == 1
        assert "leaves open" not in ran.err


class TestCheck:
    def check(
        self,
        command: Command,
        model: Path,
        folder: Path,
        expected: np.ndarray,
        *options: object,
    ) -> Ran:
        file = npz(folder / "check.npz", input_0=X, output_0=expected, other_0=X)
        return command("run", model, "--input", file, "--check", file, *options)

    def test_right_outputs_pass(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        ran = self.check(
            asyncnn_command, chain_model, tmp_path, X + 3, "--path", "async,sync"
        )
        assert ran.status == 0, ran.out
        assert ran.out.count("all within tolerance") == 2

    @pytest.mark.parametrize("device", ["reference", "accelerated", "onnxruntime"])
    def test_right_outputs_pass_with_the_types_and_axes_of_the_file(
        self, asyncnn_command: Command, tmp_path: Path, device: str
    ) -> None:
        files = pytest.importorskip("tests.runtime.onnx.files")
        if device == "onnxruntime":
            pytest.importorskip("onnxruntime")
        axes = (1, 1, 2, 1, 2)
        ends = [files.tensor(n, axes, np.int64) for n in ("x", "y")]
        ends.append(files.tensor("z", (), np.int64))
        nodes = [
            files.helper.make_node("Neg", ["x"], ["y"]),
            files.helper.make_node("ReduceSum", ["x"], ["z"], keepdims=0),
        ]
        path, data = tmp_path / "model.onnx", tmp_path / "data.npz"
        content = files.model(nodes, ends[:1], ends[1:]).SerializeToString()
        path.write_bytes(content)
        x = np.arange(4, dtype=np.int64).reshape(axes)
        given = {"input_0": x, "output_0.y": -x, "output_0.z": x.sum()}
        options = ("--input", data, "--check", data, "--device", device)
        np.savez(data, **given)
        ran = asyncnn_command("run", path, *options)
        assert ran.status == 0, ran.out + ran.err
        np.savez(data, **{**given, "output_0.z": x.sum() + 2})
        assert asyncnn_command("run", path, *options).status == 1

    @pytest.mark.parametrize(
        ("expected", "message"),
        [
            (X + 4, "4 of 4 elements differ"),
            (X * np.nan, "elements differ"),
            (np.array([3, np.inf, -np.inf, 6], np.float32), "2 of 4 elements differ"),
            ((X + 3).astype(np.float64), "dtype is float32"),
            ((X + 3).reshape(2, 2), r"shape is (4,)"),
        ],
    )
    def test_wrong_outputs_fail(
        self,
        asyncnn_command: Command,
        chain_model: Path,
        tmp_path: Path,
        expected: np.ndarray,
        message: str,
    ) -> None:
        ran = self.check(asyncnn_command, chain_model, tmp_path, expected)
        assert ran.status == 1
        assert message in ran.out

    def test_tolerances_can_be_chosen(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        expected = X + 3.01
        arguments = asyncnn_command, chain_model, tmp_path, expected.astype(np.float32)
        assert self.check(*arguments).status == 1
        assert self.check(*arguments, "--rtol", 0.01).status == 0
        assert self.check(*arguments, "--atol", 0.01).status == 0

    def test_another_key_can_be_compared(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        ran = self.check(
            asyncnn_command, chain_model, tmp_path, X + 3, "--check-key", "other"
        )
        assert ran.status == 1

    def test_the_first_differing_operation_is_named(
        self, asyncnn_command: Command, shared: Path, tmp_path: Path
    ) -> None:
        model = shared / "models" / "kws_ref_model.tflite"
        with np.load(shared / "models" / "kws_ref_model.npz") as recorded:
            arrays = dict(recorded)
        broken = {k: v ^ 1 if k.startswith("output") else v for k, v in arrays.items()}
        file = npz(tmp_path / "output.npz", **broken)
        ran = asyncnn_command(
            "run", model, "--input", file, "--check", file, "--lsb", 0
        )
        assert ran.status == 1
        assert "first differing operation: 12 (SOFTMAX)" in ran.out
        broken = {k: v ^ 3 if k != "input_0" else v for k, v in arrays.items()}
        broken = {
            k: v ^ 3 if not k.startswith("input") else v for k, v in arrays.items()
        }
        file = npz(tmp_path / "both.npz", **broken)
        ran = asyncnn_command(
            "run", model, "--input", file, "--check", file, "--lsb", 0
        )
        assert "differs before operation 12 (SOFTMAX)" in ran.out


class TestBadInput:
    def refused(self, ran: Ran, message: str) -> None:
        assert ran.status == 2, ran
        assert message in ran.err
        assert ran.err.count("\n") == 1, "one line"
        assert "Traceback" not in ran.err
        assert ran.out == ""

    def test_a_missing_model(self, asyncnn_command: Command, tmp_path: Path) -> None:
        self.refused(asyncnn_command("run", tmp_path / "no.tflite"), "no.tflite")

    @pytest.mark.parametrize(
        "content", [b"", b"TFL3", b"\x1c\0\0\0TFL3" + bytes(40), b"#!/bin/sh\n" * 50]
    )
    def test_a_file_that_is_no_model(
        self, asyncnn_command: Command, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "model.tflite"
        path.write_bytes(content)
        self.refused(asyncnn_command("run", path), "model.tflite")

    def test_a_truncated_model(
        self, asyncnn_command: Command, tmp_path: Path, shared: Path
    ) -> None:
        whole = (shared / "models" / "kws_ref_model.tflite").read_bytes()
        path = tmp_path / "half.tflite"
        path.write_bytes(whole[: len(whole) // 2])
        self.refused(asyncnn_command("run", path), "half.tflite")

    def test_a_missing_input_file(
        self, asyncnn_command: Command, add_model: Path, tmp_path: Path
    ) -> None:
        ran = asyncnn_command("run", add_model, "--input", tmp_path / "no.npz")
        self.refused(ran, f"asyncnn: {tmp_path / 'no.npz'}: No such file or directory")

    def test_an_input_file_that_is_no_npz(
        self, asyncnn_command: Command, add_model: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "in.npz"
        path.write_bytes(b"not a zip file")
        ran = asyncnn_command("run", add_model, "--input", path)
        self.refused(ran, "not a readable .npz")

    def test_an_input_file_with_python_objects(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        path = npz(tmp_path / "in.npz", input_0=np.array([{}], object))
        ran = asyncnn_command("run", chain_model, "--input", path)
        self.refused(ran, "not a readable .npz")

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"x": X}, "no array is called input_0"),
            ({"input_1": X}, "not numbered"),
            ({"input_0": X.astype(np.float64)}, "dtype float64"),
            ({"input_0": X[:3]}, "shape [3]"),
            ({"input_0.wrong": X}, "wrong"),
        ],
    )
    def test_samples_that_do_not_fit(
        self,
        asyncnn_command: Command,
        chain_model: Path,
        tmp_path: Path,
        arrays: dict[str, np.ndarray],
        message: str,
    ) -> None:
        path = npz(tmp_path / "in.npz", **arrays)
        self.refused(asyncnn_command("run", chain_model, "--input", path), message)

    def test_fewer_expected_outputs_than_inputs(
        self, asyncnn_command: Command, chain_model: Path, tmp_path: Path
    ) -> None:
        file = npz(tmp_path / "io.npz", input_0=X, input_1=X, output_0=X)
        ran = asyncnn_command("run", chain_model, "--input", file, "--check", file)
        self.refused(ran, "2 input samples")

    @pytest.mark.parametrize("suffix", [".npz", ".npy"])
    def test_inputs_of_a_model_that_has_but_state(
        self, asyncnn_command: Command, tmp_path: Path, suffix: str
    ) -> None:
        builder, one = asyncnn.ModelBuilder(), np.ones(1, np.float32)
        count = builder.state("count", OperandType.TENSOR_FLOAT32, (1,))
        more = [count, builder.constant(one), builder.scalar(0)]
        operand = Operand(OperandType.TENSOR_FLOAT32, (1,))
        builder.next_state(count, builder.operation(OperationType.ADD, more, operand))
        builder.output(builder.operation(OperationType.ADD, more, operand), "next")
        asyncnn.save(builder.build(), model := tmp_path / "counter.asyncnn")
        file = tmp_path / f"in{suffix}"
        if suffix == ".npz":
            npz(file, input_0=one)
        else:
            np.save(file, one)
        self.refused(
            asyncnn_command("run", model, "--session", "--input", file),
            "the model has no input that may be given",
        )

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            (("--device", "gpu9"), "no device 'gpu9'"),
            (("--path", "telepathy"), "no path 'telepathy'"),
            (("--path", "async,,sync"), "'async,,sync' has an empty part"),
            (("--input-shape", "x=1,,2"), "x=1,,2 is no shape"),
            (("--rtol", "nan"), "--rtol nan is no tolerance"),
            (("--session", "--repeat", "2"), "one step for each sample"),
            (("--priority", "urgent"), "'urgent' is not one of 'low', 'medium'"),
            (("--nothing", "2"), "No such option: --nothing (asyncnn run -h"),
            (("--deadline-ms", "0"), "--deadline-ms 0 is no time to come"),
            (("--deadline-ms", "nan"), "--deadline-ms nan is no time to come"),
        ],
    )
    def test_options_that_cannot_be_followed(
        self,
        asyncnn_command: Command,
        add_model: Path,
        option: tuple[str, str],
        message: str,
    ) -> None:
        self.refused(asyncnn_command("run", add_model, *option), message)


def test_devices_are_listed(asyncnn_command: Command) -> None:
    ran = asyncnn_command("devices")
    assert ran.status == 0
    assert "reference" in ran.out
    reports = json.loads(asyncnn_command("devices", "--json").out)
    report = next(report for report in reports if report["name"] == "reference")
    assert report["type"] == "CPU"
    assert all(time > 0 for time in report["performance"].values())


@pytest.mark.parametrize(
    ("name", "default"), [("sample-quant", "sample-quant"), ("", "auto"), ("gpu", None)]
)
def test_the_default_device_is_told(
    asyncnn_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    default: str | None,
) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("ASYNCNN_DEVICE", name)
    assert (f"default: {default}\n" in asyncnn_command("devices").out) is bool(default)
    reports = json.loads(asyncnn_command("devices", "--json").out)
    found = [report["name"] for report in reports if report["is_default"]]
    assert found == ([default] if default else [])


def test_a_run_says_on_which_device(asyncnn_command: Command, add_model: Path) -> None:
    ran = asyncnn_command("run", add_model, "--device", "sample-all")
    assert ran.out.startswith(f"on sample-all, version {asyncnn.__version__}\n")


def test_a_check_is_of_the_exact_device_unless_another_is_named(
    asyncnn_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    add_model: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("onnxruntime")
    monkeypatch.delenv("ASYNCNN_DEVICE")
    outputs = tmp_path / "outputs.npz"
    ran = asyncnn_command("run", add_model, "--output", outputs)
    assert ran.out.startswith("on auto, version ")
    for options in [], ["--device", "accelerated"]:
        name = options[-1] if options else "reference"
        ran = asyncnn_command("run", add_model, "--check", outputs, *options)
        assert ran.out.startswith(f"on {name}, version "), ran.err


def test_the_version_is_told(asyncnn_command: Command) -> None:
    assert asyncnn_command("--version").out.strip() == asyncnn.__version__


QUANTISED_EXACT = ["vww_96_int8", "kws_ref_model"]
QUANTISED = ["hello_world_int8", "micro_speech_quantized", "person_detect"]
QUANTISED_LSTM = ["trained_lstm_int8", "dtln_noise_suppression"]
FLOAT = [
    "vww_96_float",
    "pretrainedResnet",
    "ad01_fp32",
    "hello_world_float",
    "trained_lstm",
]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, ("--lsb", 0)) for name in QUANTISED_EXACT],
        *[(name, ("--lsb", 1)) for name in QUANTISED],
        *[(name, ("--lsb", 2)) for name in QUANTISED_LSTM],
        *[(name, ("--rtol", 1e-4, "--atol", 1e-5)) for name in FLOAT],
        (
            "kws_ref_model_float32",
            ("--check-key", "output_f32weights", "--rtol", 1e-4, "--atol", 1e-5),
        ),
    ],
)
def test_trained_models_give_their_recorded_outputs(
    asyncnn_command: Command, shared: Path, name: str, options: tuple[object, ...]
) -> None:
    model = shared / "models" / f"{name}.tflite"
    samples = model.with_suffix(".npz")
    ran = asyncnn_command(
        *("run", model, "--input", samples, "--check", samples),
        *("--path", "async,sync", *options),
    )
    assert ran.status == 0, ran.out + ran.err
