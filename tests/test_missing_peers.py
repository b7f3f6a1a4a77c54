"""What is not installed skips tests only if users may do without it."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import sys
sys.modules["onnx"] = None
{first}

def test_it() -> None:
    {then}
"""


@pytest.mark.parametrize("place", ["first", "then"])
@pytest.mark.parametrize(
    ("package", "outcome"), [("onnx", "1 skipped"), ("nothing_like_it", "1 ")]
)
def test_a_peer_that_is_missing(
    package: str, place: str, outcome: str, tmp_path: Path
) -> None:
    code = TESTS.format(**{"first": "", "then": "pass", place: f"import {package}"})
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "tests.missing_peers"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    is_peer = package == "onnx"
    assert ("onnx is not installed" in ran.stdout) == is_peer
    assert outcome in ran.stdout
    assert ("failed" in ran.stdout or "error" in ran.stdout) != is_peer
