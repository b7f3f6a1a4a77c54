import os
from pathlib import Path

import numpy as np
import pytest

from asyncnn.runtime.model_file import load
from asyncnn.tools.conformance.random_graphs.dumping import FOLDER_VARIABLE, dump
from tests.networks import addition

X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of dumps that does not exist yet."""
    folder = tmp_path / "some dumps"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def test_a_case_is_written_as_a_model_and_one_sample_of_arrays(folder: Path) -> None:
    dumped = dump(addition(4), [X, 10 * X], [11 * X], "case")
    assert dumped.model == folder / "case.asyncnn"
    assert load(dumped.model).inputs == addition(4).inputs
    with np.load(dumped.arrays) as arrays:
        assert sorted(arrays.files) == ["input_0.x", "input_0.y", "output_0"]
        np.testing.assert_array_equal(arrays["input_0.y"], 10 * X)


def test_the_command_to_replay_it_is_fit_for_a_shell() -> None:
    dumped = dump(addition(4), [X, X], [2 * X], "case")
    arrays = f"'{dumped.arrays}'"
    assert dumped.command == (
        f"asyncnn run '{dumped.model}' --input {arrays} --check {arrays}"
    )


def test_a_dump_of_the_same_name_is_replaced(folder: Path) -> None:
    for scale in (1, 2):
        dumped = dump(addition(4), [scale * X, X], [X], "case")
    assert len(os.listdir(folder)) == 2
    with np.load(dumped.arrays) as arrays:
        np.testing.assert_array_equal(arrays["input_0.x"], 2 * X)


def test_without_a_folder_dumps_are_among_the_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dumped = dump(addition(4), [X, X], [2 * X], "case")
    assert dumped.model.parent == tmp_path / "asyncnn-dumps"
