"""Type checkers find no fault with `typical_uses.py`, and it runs."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("typical_uses.py")
ROOT = FILE.parents[2]


def ran(*command: str) -> str:
    """Return what a command prints, and fail with that if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_does_what_it_says() -> None:
    printed = ran(sys.executable, str(FILE)).splitlines()
    assert printed[0] == "tensor_float32"
    assert "the deadline has passed" in printed[1]
    assert printed[-1] == "framework CPU"


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_mypy_finds_no_fault() -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict"]
    assert "no issues found" in ran(*mypy, str(FILE))


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_pyright_finds_no_fault() -> None:
    pyright = shutil.which("pyright", path=Path(sys.executable).parent)
    if pyright is None:
        assert find_spec("pyright") is None
        pytest.skip("pyright is not installed")
    said = ran(pyright, "--pythonpath", sys.executable, str(FILE))
    assert said.startswith("0 errors, 0 warnings")
