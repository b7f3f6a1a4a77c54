"""What `asyncnn inspect` says of a model before it is run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.cli.inspecting import print_inspection
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.inspection import DeviceSupport, inspected
from tests.cli.conftest import Ran
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
    assert f"--input-shape {name}=N,N,..." in ran.out
    told = json.loads(asyncnn_command("inspect", path, "--json").out)
    assert told["open_inputs"] == [name]
    given = asyncnn_command("inspect", path, "--input-shape", f"{name}=1,1280")
    assert "reference: runs it" in given.out
    assert "may choose" not in given.out
    ran = asyncnn_command("run", path)
    assert ran.status == 2
    assert "the file leaves shapes to the application" in ran.err
