"""Type checkers find the package, and no fault with `typical_uses.py`, which runs."""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.processes import executed

FILE = Path(__file__).with_name("typical_uses.py")
ROOT = FILE.parents[2]

MISTAKEN = """\
import asyncnn


async def run(prepared: asyncnn.PreparedModel, session: asyncnn.Session) -> None:
    await prepared.run([1.5, [2, 3]])
    await prepared.run("image")  # mistake
    await prepared.run(b"image")  # mistake
    await prepared.run({1: 2})  # mistake
    await session.run("image")  # mistake
"""
"""A program of somebody who has the package installed."""


def ran(*command: str) -> str:
    """Return what a command prints, and fail with that if it fails."""
    done = executed(*command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pyright_of(python: str) -> tuple[str, ...]:
    """Return the command that checks with what is installed for an interpreter."""
    pyright = shutil.which("pyright", path=Path(sys.executable).parent)
    if pyright is None:
        assert find_spec("pyright") is None
        pytest.skip("pyright is not installed")
    return pyright, "--pythonpath", python


def test_it_does_what_it_says() -> None:
    printed = ran(sys.executable, str(FILE)).splitlines()
    assert printed[0] == "tensor_float32"
    assert "the deadline has passed" in printed[1]
    assert printed[-1] == "framework CPU"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_in_another_folder_it_finds_the_package_and_what_no_input_is(
    checker: str, tmp_path: Path
) -> None:
    python = sys.executable
    command = (python, "-m", "mypy") if checker == "mypy" else pyright_of(python)
    (tmp_path / "program.py").write_text(MISTAKEN)
    paths = {"MYPYPATH", "PYTHONPATH"}
    done = executed(
        *command,
        "program.py",
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if name not in paths},
    )
    lines = {
        number
        for number, line in enumerate(MISTAKEN.splitlines(), 1)
        if line.endswith("# mistake")
    }
    faults = re.findall(r"program.py:(\d+):.*\berror:", done.stdout)
    assert {int(number) for number in faults} == lines, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_mypy_finds_no_fault() -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict"]
    assert "no issues found" in ran(*mypy, str(FILE))


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_pyright_finds_no_fault() -> None:
    said = ran(*pyright_of(sys.executable), str(FILE))
    assert said.startswith("0 errors, 0 warnings")
