"""``asyncnn profile``."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn.tools.pages.drawing import load_page
from asyncnn.tools.profiling import Profile
from tests.cli.conftest import Ran
from tests.tools.profiling.made_up import PROFILE

Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def model(shared: Path) -> Path:
    return shared / "models" / "hello_world_float.tflite"


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """Return a file with a profile."""
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(PROFILE))
    return path


def test_a_table_fits_the_narrowest_terminals(
    asyncnn_command: Command, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    models = shared / "models"
    options = ("--device", "reference", "--runs", 2)
    ran = asyncnn_command("profile", models / "kws_ref_model.tflite", *options)
    assert ran.status == 0, ran.err
    assert ran.err == ""
    assert max(map(len, ran.out.splitlines())) <= 80
    for word in ("DEPTHWISE_CONV_2D", "convolution", "twice", "between operations"):
        assert word in ran.out
    assert "accounted for" in ran.out


def test_json_is_drawn_again_as_it_was(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    first, again = tmp_path / "first.html", tmp_path / "again.html"
    options = ("--device", "reference", "--runs", 3, "--html", first)
    ran = asyncnn_command("profile", model, *options, "--json")
    assert ran.status == 0, ran.err
    found = msgspec.json.decode(ran.out.encode(), type=Profile)
    assert [each.type for each in found.operations] == ["FULLY_CONNECTED"] * 3
    assert found.runs == 3
    assert found.inputs == "random"
    file = tmp_path / "profile.json"
    file.write_text(ran.out)
    redrawn = asyncnn_command("profile", "--from", file, "--html", again, "--json")
    assert redrawn.out == ran.out
    assert again.read_bytes() == first.read_bytes()
    assert load_page(first.read_text()).title == f"Profile of {model.name} on reference"


def test_some_operations_are_shown_and_all_are_in_the_json(
    asyncnn_command: Command, taken: Path
) -> None:
    longest = asyncnn_command("profile", "--from", taken, "--top", 2).out
    assert longest.index("CONV_2D") < longest.index("TWIST")
    assert "LESS" not in longest
    some = asyncnn_command("profile", "--from", taken, "--filter", "*E*").out
    assert "LESS" in some
    assert "WHILE" in some
    assert "CONV_2D" not in some
    document = json.loads(
        asyncnn_command("profile", "--from", taken, "--top", 1, "--json").out
    )
    assert len(document["operations"]) == len(PROFILE.operations)


def test_partitions_segments_and_what_is_elsewhere_are_shown(
    asyncnn_command: Command, taken: Path
) -> None:
    out = asyncnn_command("profile", "--from", taken).out
    assert "on reference" in out
    assert "elsewhere" in out
    assert "LiteRT 2.3.0" in out
    assert "~60.0" in out


def test_inputs_are_those_of_a_file(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, input_0=np.ones((1, 1), np.float32))
    options = ("--device", "reference", "--runs", 1, "--input", file)
    assert "Inputs: inputs.npz" in asyncnn_command("profile", model, *options).out


def test_bad_input_is_one_line(
    asyncnn_command: Command, model: Path, taken: Path, tmp_path: Path
) -> None:
    foreign, other = tmp_path / "x.json", tmp_path / "x.npz"
    foreign.write_text('{"format": 1}')
    np.savez(other, output_0=np.ones(3))
    told = {
        ("--from", foreign): "is no profile",
        ("--from", other): "is no profile",
        ("--from", tmp_path / "none.json"): "No such file",
        ("--from", taken, "--filter", "MUL"): "no operation's type matches 'MUL'",
        ("--from", taken, "--html", tmp_path / "no" / "x.html"): "No such file",
        (tmp_path / "none.tflite",): "none.tflite",
        (model, "--input", other): "no array is called input_0",
        (model, "--device", "quantum"): "quantum",
    }
    for arguments, message in told.items():
        ran = asyncnn_command("profile", *arguments)
        assert ran.status == 2, arguments
        assert len(ran.err.strip().splitlines()) <= 2, ran.err
        assert message in ran.err, arguments
    for arguments in ((), (model, "--from", taken), (model, "--runs", 0)):
        assert asyncnn_command("profile", *arguments).status == 2


def test_a_recording_and_a_profile_are_not_made_at_once(
    asyncnn_command: Command, model: Path, tmp_path: Path
) -> None:
    ran = asyncnn_command("--trace", tmp_path / "t.json", "profile", model)
    assert ran.status == 2
    assert "leave out --trace" in ran.err
