"""Which files are measured, what they are given, and how outputs are compared."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench import measured_models
from asyncnn.tools.bench.measured_models import (
    MODEL_SUFFIXES,
    Difference,
    largest_difference,
    model_files,
    random_inputs,
)
from asyncnn.tools.bench.rounds import Order


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.tflite", "a.tflite", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def names(folder: Path | None, pattern: str = "*") -> list[str]:
    with model_files(Order(folder, pattern=pattern, mobilenet=False)) as files:
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
    monkeypatch.setattr(measured_models, "DEFAULT_FOLDER", folder)
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
    made = {name: partial(str.encode, name) for name in measured_models.MOBILENETS}
    monkeypatch.setattr(measured_models, "MOBILENETS", made)
    with model_files(Order(tmp_path, mobilenet=True)) as files:
        assert [path.stem for path in files] == [
            "mobilenet_v1_224_float",
            "mobilenet_v1_224_int8",
            "mobilenet_v2_224_float",
            "mobilenet_v2_224_int8",
        ]
        assert all(path.read_bytes() == path.stem.encode() for path in files)
    assert not any(path.exists() for path in files)


@pytest.mark.parametrize("suffix", MODEL_SUFFIXES)
def test_what_is_given_is_all_that_there_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"")
    for named in (tmp_path, path):
        with model_files(Order(named), suffixes=MODEL_SUFFIXES) as files:
            assert files == [path]


class TestInputs:
    def test_they_are_the_same_every_time(self) -> None:
        kinds = [((1, 3), np.dtype(np.float32)), ((2,), np.dtype(np.int8))]
        first, second = random_inputs(kinds), random_inputs(kinds)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32])
    def test_they_have_the_models_dtype_and_length_1_where_it_is_open(
        self, dtype: type
    ) -> None:
        (array,) = random_inputs([((0, 4), np.dtype(dtype))])
        assert array.shape == (1, 4)
        assert array.dtype == dtype


class TestDifference:
    def test_integers_differ_in_steps(self) -> None:
        difference = largest_difference(
            [np.array([-128, 3], np.int8)], [np.array([127, 3], np.int8)]
        )
        assert difference == Difference(255.0, in_steps=True)
        assert str(difference) == "255 LSB"

    def test_floats_differ_absolutely_and_the_largest_of_all_outputs_counts(
        self,
    ) -> None:
        one, half = np.ones(2, np.float32), np.full(3, 0.5, np.float32)
        difference = largest_difference([one, half], [one, half * 2])
        assert difference == Difference(0.5, in_steps=False)

    def test_arrays_of_other_shapes_are_not_comparable(self) -> None:
        assert largest_difference([np.zeros(2)], [np.zeros(3)]) is None
