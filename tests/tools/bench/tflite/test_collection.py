"""Which files are measured."""

from pathlib import Path

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench.tflite import collection
from asyncnn.tools.bench.tflite.collection import model_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.tflite", "a.tflite", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def names(folder: Path | None, pattern: str = "*") -> list[str]:
    with model_files(folder, pattern, mobilenet=False) as files:
        return [path.name for path in files]


def test_a_folder_gives_its_models_in_order(folder: Path) -> None:
    assert names(folder) == ["a.tflite", "b.tflite"]


def test_a_pattern_selects_by_name_without_suffix(folder: Path) -> None:
    assert names(folder, "b*") == ["b.tflite"]


def test_a_single_file_may_be_named(folder: Path) -> None:
    assert names(folder / "a.tflite") == ["a.tflite"]


def test_without_a_folder_the_default_one_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "DEFAULT_FOLDER", folder)
    assert names(None) == ["a.tflite", "b.tflite"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no folder"):
        names(tmp_path / "nowhere")


def test_nothing_to_measure_is_an_error(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no \.tflite file 'c\*'"):
        names(folder, "c*")


def test_mobilenets_are_made_for_the_length_of_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {True: b"quantised", False: b"float"}
    monkeypatch.setattr(collection, "mobilenet_v1", lambda quantized: made[quantized])
    with model_files(tmp_path) as files:
        assert {path.stem: path.read_bytes() for path in files} == {
            "mobilenet_v1_224_float": b"float",
            "mobilenet_v1_224_int8": b"quantised",
        }
    assert not any(path.exists() for path in files)
