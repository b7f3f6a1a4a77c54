"""What `asyncnn inspect` says of a model before it is run."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx.helper import make_node as node

import asyncnn
from asyncnn.cli.inspecting import print_inspection
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.inspection import DeviceSupport, inspected
from tests.cli.conftest import Ran
from tests.runtime.onnx.files import model, tensor
from tests.runtime.tflite.files import Op, T, write
from tests.tools.test_comparison import addition_in_onnx

Command = Callable[..., Ran]


def counter() -> asyncnn.NamedModel:
    """Return a model that adds its input to what it keeps."""
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (0, 3))
    kept = builder.state("sum", OperandType.TENSOR_FLOAT32, (2, 3))
    weights = builder.constant(np.ones((64, 3), np.float32))
    after = builder.operation(
        OperationType.ADD, [x, kept, builder.scalar(0)], builder.operand(kept)
    )
    builder.next_state(kept, after)
    y = builder.operation(
        OperationType.FULLY_CONNECTED,
        [after, weights, builder.constant(np.zeros(64, np.float32)), builder.scalar(0)],
        asyncnn.hal.Operand(OperandType.TENSOR_FLOAT32, (2, 64)),
    )
    builder.output(y, "y")
    return builder.build()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "counter.asyncnn"
    asyncnn.save(counter(), path)
    return path


def test_a_model_is_described(asyncnn_command: Command, path: Path) -> None:
    ran = asyncnn_command("inspect", path)
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in ran.out.splitlines()
    ]
    assert ["input", "x", "float32", "? x 3", "", ""] in rows
    assert ["output", "y", "float32", "2 x 64", "", ""] in rows
    assert ["state", "sum", "float32", "2 x 3", "", ""] in rows
    assert ["FULLY_CONNECTED", "1"] in rows
    assert "2 operations, HAL version 1.0 or newer" in ran.out
    assert "weights: 1.03 kB" in ran.out
    assert "reference: runs it" in ran.out
    assert "sample-" not in ran.out


def test_scripts_read_it_as_json(asyncnn_command: Command, path: Path) -> None:
    told = json.loads(asyncnn_command("inspect", path, "--json").out)
    assert told["inputs"][0]["shape"] == [0, 3]
    assert told["operations"] == {"ADD": 1, "FULLY_CONNECTED": 1}
    assert told["weight_bytes"] == 64 * 3 * 4 + 64 * 4 + 4
    supported = {each["name"]: each["supported"] for each in told["devices"]}
    assert supported["reference"] == 2


@pytest.mark.parametrize(
    "command", [["inspect"], ["graph"], ["run", "--explain"]], ids=lambda each: each[0]
)
def test_inputs_of_onnx_files_are_given_shapes_and_values(
    asyncnn_command: Command, tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(addition_in_onnx())
    name, *options = command
    options += ["--input-shape", "x=4,2", "--constant"]
    ran = asyncnn_command(name, path, *options, "b=2.5")
    assert ran.status == 0, ran.err
    for constant in ("b", "b=", "b=two", "=1"):
        refused = asyncnn_command(name, path, *options, constant)
        assert refused.status == 2
        assert f"--constant {constant} is no value (write it as" in refused.err
    refused = asyncnn_command(name, path, *options, "b=1,2")
    assert "a constant of shape [2] does not fit input 'b' of shape []" in refused.err


def test_given_shapes_are_shown(asyncnn_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(addition_in_onnx())
    options = ("--input-shape", "x=4,2", "--constant", "b=1", "--json")
    told = json.loads(asyncnn_command("inspect", path, *options).out)
    assert [(each["name"], each["shape"]) for each in told["inputs"]] == [("x", [4, 2])]


def test_a_device_that_cannot_be_opened_says_why(
    asyncnn_command: Command, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise OSError("no such chip")

    monkeypatch.setattr("asyncnn.runtime.inspection.explain", broken)
    ran = asyncnn_command("inspect", path)
    assert "reference: OSError: no such chip" in ran.out


async def test_a_device_may_support_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    inspection = await inspected(counter())
    partly = replace(inspection, devices=(DeviceSupport("npu", 1),))
    print_inspection(partly)
    assert "npu: supports 1 of 2 operations" in capsys.readouterr().out


async def test_brackets_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inspection = await inspected(counter())
    x = replace(inspection.inputs[0], name="x[red]")
    device = DeviceSupport("npu", 0, "pip install asyncnn[npu]")
    print_inspection(replace(inspection, inputs=(x,), devices=(device,)))
    out = capsys.readouterr().out
    assert "x[red]" in out
    assert "npu: pip install asyncnn[npu]" in out


def test_a_model_is_one_line() -> None:
    told = repr(counter())
    assert told == (
        "<NamedModel x: TENSOR_FLOAT32 [?, 3] -> y: TENSOR_FLOAT32 [2, 64]>"
    )


def test_shapes_that_the_file_leaves_open_are_told(asyncnn_command: Command) -> None:
    package = pytest.importorskip("pyopen_wakeword")
    path = Path(package.__file__).with_name("models") / "melspectrogram.tflite"
    ran = asyncnn_command("inspect", path)
    assert ran.status == 0
    name = "serving_default_input:0"
    assert f"shapes that the application may choose: those of {name}" in ran.out
    assert "runs it" not in ran.out
    assert f"such as: --input-shape {name}=1,640" in ran.out
    told = json.loads(asyncnn_command("inspect", path, "--json").out)
    assert told["open_inputs"] == [name]
    assert told["example_shapes"] == {name: [1, 640]}
    given = asyncnn_command("inspect", path, "--input-shape", f"{name}=1,1280")
    assert "reference: runs it" in given.out
    assert "may choose" not in given.out
    ran = asyncnn_command("run", path)
    assert ran.status == 2
    assert "the file leaves shapes to the application" in ran.err


def of_undecided_length(*axes: str | None) -> Any:
    """Return an ONNX file of images, whose operations depend on open axes."""
    image, sizes = (axes[0], 3, *axes[1:]), (axes[0], 2)
    proto = model(
        [
            node("Flatten", ["my image"], ["lines"], axis=2),
            node("ReduceMean", ["lines"], ["mean"], keepdims=0),
            node("Add", ["mean", "sizes"], ["y"]),
        ],
        [tensor("my image", image), tensor("sizes", sizes)],
        [tensor("y", ("batch", "boxes"))],
    )
    entry = proto.metadata_props.add()
    entry.key, entry.value = "labels", "cat\ndog"
    return proto


NAMED = "batch", "height", "width"


@pytest.fixture
def undecided(tmp_path: Path) -> Path:
    path = tmp_path / "an image.onnx"
    path.write_bytes(of_undecided_length(*NAMED).SerializeToString())
    return path


def suggested(text: str) -> list[str]:
    """Return the words of the options of shapes that a text ends with."""
    start = text.rindex("--input-shape 'my image")
    words = shlex.split(text[start:].splitlines()[0].rstrip(")"))
    assert words[::2] == ["--input-shape"] * 2
    return words


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no device that runs regions."""
    names = lambda: ["reference"]  # noqa: E731
    monkeypatch.setattr("asyncnn.runtime.inspection.registered_devices", names)


def test_a_region_that_cannot_be_translated_is_told_with_what_to_give(
    asyncnn_command: Command, undecided: Path
) -> None:
    pytest.importorskip("onnxruntime")
    ran = asyncnn_command("inspect", undecided)
    assert ran.status == 0, ran.err
    assert "onnxruntime: runs it, as one region" in ran.out
    told = "not to be translated for others: "
    (line,) = (each for each in ran.out.splitlines() if told in each)
    pasted = asyncnn_command("inspect", undecided, *suggested(line))
    assert "translated for others: " in pasted.out
    assert "reference: runs it" in pasted.out
    found = json.loads(asyncnn_command("inspect", undecided, "--json").out)
    assert found["region"] == "org.asyncnn.onnx"
    assert "--input-shape" in found["untranslated"]
    strict = asyncnn_command("inspect", undecided, "--strict")
    assert "as it is, it cannot be loaded" in strict.out


@pytest.mark.usefixtures("no_engine")
def test_where_lengths_decide_names_of_axes_are_told_and_what_to_give(
    asyncnn_command: Command, undecided: Path
) -> None:
    ran = asyncnn_command("inspect", undecided)
    assert ran.status == 0, ran.err
    assert "batch x 3 x height" in ran.out
    assert "batch x 2" in ran.out
    assert "batch x boxes" in ran.out
    assert "labels: cat dog" in ran.out
    assert "depends on the lengths of open axes" in ran.out
    (line,) = (each for each in ran.out.splitlines() if "asyncnn inspect" in each)
    words = shlex.split(line[line.index("asyncnn inspect") :])
    pasted = asyncnn_command(*words[1:])
    assert pasted.status == 0, pasted.err
    assert "reference: runs it" in pasted.out
    told = json.loads(asyncnn_command("inspect", undecided, "--json").out)
    assert told["inputs"][0] == {
        "name": "my image",
        "type": "",
        "dtype": "float32",
        "shape": [0, 3, 0, 0],
        "scale": 0.0,
        "zero_point": 0,
        "axes": ["batch", "", "height", "width"],
    }
    assert told["open_inputs"] == ["my image", "sizes"]
    assert told["example_shapes"]["sizes"] == [1, 2]
    assert told["metadata"]["properties"] == {"labels": "cat\ndog"}
    assert "lengths of open axes" in told["problem"]


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["run", "--explain"],
        ["profile", "--runs", "2"],
        ["graph"],
        ["compare", "--with", "onnxruntime", "--samples", "1"],
        ["diff", "--between", "reference,accelerated"],
        ["loadgen", "run", "--queries", "1", "--seconds", "0"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("axes", [NAMED, (None, None, None)], ids=["named", "nameless"])
def test_what_the_hint_of_any_command_says_can_be_pasted(
    asyncnn_command: Command,
    tmp_path: Path,
    command: list[str],
    axes: tuple[str | None, ...],
) -> None:
    if command[0] == "loadgen":
        pytest.importorskip("mlperf_loadgen")
    path = tmp_path / "an image.onnx"
    path.write_bytes(of_undecided_length(*axes).SerializeToString())
    refused = asyncnn_command(*command, path)
    assert refused.status == 2
    why = "no fixed shape" if command[0] == "loadgen" else "the lengths of open axes"
    assert why in refused.err
    options = [each.replace("640", "4") for each in suggested(refused.err)]
    ran = asyncnn_command(*command, path, *options)
    assert ran.status in (0, 1), ran.err  # it may be too slow for LoadGen
    assert ran.out


def test_a_file_of_too_few_shapes_is_described_and_refused(
    asyncnn_command: Command, undecided: Path
) -> None:
    ran = asyncnn_command("inspect", undecided, "--input-shape", "sizes=4,4")
    assert ran.status == 2
    assert "batch x 3 x height" in ran.out
    assert "has shape ['batch', 2], which [4, 4] does not fit" in ran.err


@pytest.mark.usefixtures("no_engine")
def test_a_file_with_unknown_operators_is_described_and_refused(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    onnx_file = tmp_path / "strange.onnx"
    nodes = [node("Twist", ["x"], ["y"], domain="com.example")]
    proto = model(nodes, [tensor("x", (2, 3))], [tensor("y", (2, 3))])
    onnx_file.write_bytes(proto.SerializeToString())
    tflite = tmp_path / "strange.tflite"
    x, y = T(np.float32, (2, 3), name="x"), T(np.float32, (2, 3), name="y")
    tflite.write_bytes(write([Op("TwistTensor", [x], [y])], [x], [y]))
    for path in (onnx_file, tflite):
        ran = asyncnn_command("inspect", path)
        assert ran.status == 2
        assert "Twist" in ran.err
        assert "│ input  │ x    │ float32 │ 2 x 3 │" in ran.out
        assert "operation" not in ran.out
        told = json.loads(asyncnn_command("inspect", path, "--json").out)
        assert "Twist" in told["problem"]
        assert not told["example_shapes"]


def test_an_explanation_names_no_shapes_where_they_are_not_why(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "strange.onnx"
    nodes = [node("Twist", ["my image"], ["y"], domain="com.example")]
    proto = model(nodes, [tensor("my image", NAMED)], [tensor("y", NAMED)])
    path.write_bytes(proto.SerializeToString())
    ran = asyncnn_command("run", "--explain", path)
    assert ran.status == 1
    assert "com.example.Twist" in ran.out
    assert "--input-shape" not in ran.out


def test_a_file_that_says_nothing_is_refused_as_before(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "cut.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(20))
    ran = asyncnn_command("inspect", path)
    assert (ran.status, ran.out) == (2, "")
    assert "damaged TFLite file" in ran.err


def test_a_session_takes_the_steps_of_a_file_that_is_given_its_state(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path, samples = tmp_path / "sum.onnx", tmp_path / "samples.npz"
    nodes = [node("Add", ["x", "sum"], ["total"]), node("Neg", ["total"], ["y"])]
    borders = [tensor(name, (1, 2)) for name in ("x", "sum", "total", "y")]
    proto = model(nodes, borders[:2], borders[2:])
    path.write_bytes(proto.SerializeToString())
    ones = np.ones((1, 2), np.float32)
    np.savez(samples, **{f"input_{k}.x": ones for k in range(3)})
    out = tmp_path / "out.npz"
    command = "run", path, "--session", "--input", samples, "--output", out
    refused = asyncnn_command("run", path, "--session")
    assert refused.status == 2
    assert "keeps no state" in refused.err
    words = shlex.split(refused.err[refused.err.index("--state") :].rstrip(")\n"))
    assert words == ["--state", "x=total"]
    ran = asyncnn_command(*command, "--state", "sum=total")
    assert ran.status == 0, ran.err
    with np.load(out) as found:
        assert [found[f"output_{k}"].tolist() for k in range(3)] == [
            [[-1.0, -1.0]],
            [[-2.0, -2.0]],
            [[-3.0, -3.0]],
        ]
    ran = asyncnn_command(*command, "--state", "sum")
    assert "--state sum names no state (write it as INPUT=OUTPUT)" in ran.err


def test_what_a_session_keeps_is_told(asyncnn_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "sum.onnx"
    nodes = [node("Add", ["x", "h"], ["hn"]), node("Neg", ["hn"], ["y"])]
    borders = [tensor(name, (1, 2)) for name in ("x", "h", "hn", "y")]
    path.write_bytes(model(nodes, borders[:2], borders[2:]).SerializeToString())
    assert "a session keeps h, which is hn after a step" in (
        asyncnn_command("inspect", path).out
    )
    told = json.loads(asyncnn_command("inspect", path, "--json").out)
    assert told["pairs"] == [["h", "hn"]]
