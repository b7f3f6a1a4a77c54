"""Loading model files of any kind."""

import shutil
from pathlib import Path

import pytest

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.runtime.model_file import load, save
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, write


@pytest.fixture
def tflite(shared: Path) -> Path:
    return shared / "models" / "hello_world_int8.tflite"


def test_the_kind_is_known_by_the_first_bytes(tflite: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "model.asyncnn"
    shutil.copyfile(tflite, renamed)
    named = load(renamed)
    container = tmp_path / "model.tflite"
    save(named, container)
    assert load(container).inputs == load(str(tflite)).inputs == named.inputs


def test_a_file_may_be_deleted_while_its_model_is_in_use(
    tflite: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copyfile(tflite, copy)
    named = load(copy)
    copy.unlink()
    save(named, tmp_path / "again")
    assert load(tmp_path / "again").outputs == named.outputs


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"abc", "neither a TFLite, ONNX nor asyncnn model file"),
        (b"\x20\0\0\0TFL3", "damaged TFLite file"),
        (b"ASYNCNN\0", "cut short"),
    ],
)
def test_a_file_that_is_no_model_is_named_with_the_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=f"^{path}: .*{reason}"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeneralFailureError, match=f"^{tmp_path}/m: No such file"):
        load(tmp_path / "m")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{tmp_path}: a directory"):
        load(tmp_path)


def test_errors_of_every_kind_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    x, y = f32(2), f32(2)
    path.write_bytes(write([Op("TwistTensor", [x], [y])], [x], [y]))
    with pytest.raises(UnsupportedOperatorError, match=f"^{path}: operator 0"):
        load(path)


def test_a_message_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"\0\0\0\0TFL3" + bytes(100))
    with pytest.raises(AsyncnnError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
