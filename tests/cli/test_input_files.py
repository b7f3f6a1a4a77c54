"""Files of samples: ``.npz`` with names, ``.npy`` with the only array."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from tests.cli.conftest import Ran
from tests.networks import addition, chain

Command = Callable[..., Ran]
X = np.arange(4, dtype=np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.asyncnn"
    asyncnn.save(chain(1, 4), path)
    return path


def npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def test_a_file_of_one_array_is_one_sample(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    given = npy(tmp_path / "x.npy", X)
    outputs = tmp_path / "out.npz"
    ran = asyncnn_command("run", model, "--input", given, "--output", outputs)
    assert ran.status == 0, ran.err
    wanted = npy(tmp_path / "y.npy", np.load(outputs)["output_0"])
    ran = asyncnn_command("run", model, "--input", given, "--check", wanted, "--json")
    assert json.loads(ran.out)["passed"] is True
    ran = asyncnn_command("run", model, "--input", given, "--check", given)
    assert ran.status == 1


def test_a_model_of_two_inputs_needs_names(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "two.asyncnn"
    asyncnn.save(addition(4), path)
    ran = asyncnn_command("run", path, "--input", npy(tmp_path / "x.npy", X))
    assert ran.status == 2
    assert "one array, and the model 2 inputs: x, y (write an .npz file" in ran.err


def test_compare_takes_it(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")
    model = shared / "models" / "hello_world_float.tflite"
    given = npy(tmp_path / "x.npy", np.float32([[0.5]]))
    options = "--with", "litert", "--samples", "0", "--input", given
    ran = asyncnn_command("compare", model, *options)
    assert "1 given sample, all within tolerance" in ran.out


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{"])
def test_one_that_is_damaged_is_refused_in_one_line(
    asyncnn_command: Command, model: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ran = asyncnn_command("run", model, "--input", path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "not a readable .npz or .npy file (numpy.savez(" in ran.err


@pytest.mark.parametrize("how", ["encrypted", "compressed otherwise", "endless"])
def test_an_archive_that_cannot_be_unpacked_is_refused_in_one_line(
    asyncnn_command: Command, model: Path, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "x.npz"
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**45,)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\1\2")
    if how == "encrypted":
        raw[6] = raw[entry + 8] = 1
    elif how == "compressed otherwise":
        raw[8] = raw[entry + 10] = 99
    path.write_bytes(raw)
    ran = asyncnn_command("run", model, "--input", path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith(f"asyncnn: {path}")


def test_one_without_arrays_is_refused(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "nothing.npz"
    np.savez(path)
    ran = asyncnn_command("run", model, "--input", path)
    lacking = f"asyncnn: {path}: no array is called input_0"
    assert ran.err == f"{lacking} (it has no array at all)\n"


@pytest.mark.parametrize(
    "words", [("run",), ("profile",), ("diff",), ("compare", "--with", "litert")]
)
def test_one_with_other_arrays_is_named_with_them(
    asyncnn_command: Command, tmp_path: Path, shared: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "others.npz"
    np.savez(path, **{f"x{number:02}": X for number in range(14)})
    model = shared / "models" / "hello_world_float.tflite"
    ran = asyncnn_command(*words, model, "--input", path)
    assert ran.status == 2
    first = ", ".join(f"x{number:02}" for number in range(12))
    lacking = f"asyncnn: {path}: no array is called input_0"
    assert ran.err == f"{lacking} (it has {first}, 2 more)\n"


class TestOptionsOfModels:
    def test_they_are_named_where_files_do_not_take_them(
        self, asyncnn_command: Command, model: Path
    ) -> None:
        for option in ("--input-shape", "--constant"):
            ran = asyncnn_command("graph", model, option, "x=4")
            said = f"{option} cannot be given for asyncnn files"
            assert ran.err == f"asyncnn: {model}: {said}\n"

    def test_they_are_named_where_files_need_them(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        helper = pytest.importorskip("onnx.helper")
        unknown = helper.make_tensor_value_info("x", 1, None)
        output = helper.make_tensor_value_info("y", 1, [3])
        node = helper.make_node("Abs", ["x"], ["y"])
        graph = helper.make_graph([node], "graph", [unknown], [output])
        path = tmp_path / "shapeless.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
        told = "has no shape (give one, by --input-shape)\n"
        ran = asyncnn_command("inspect", path)
        assert told in ran.out + ran.err  # the engine of regions may be there
        for command in ("inspect --strict", "run --device reference", "diff"):
            ran = asyncnn_command(*command.split(), path)
            assert ran.status == 2
            assert ran.err.endswith(told)
