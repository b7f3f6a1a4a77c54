"""What is not installed skips tests only if users may do without it."""

import os
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
    ("package", "required", "is_skipped"),
    [("onnx", False, True), ("onnx", True, False), ("nothing_like_it", False, False)],
)
def test_a_missing_package_skips_its_tests_if_users_may_do_without_it(
    package: str, required: bool, is_skipped: bool, place: str, tmp_path: Path
) -> None:
    code = TESTS.format(**{"first": "", "then": "pass", place: f"import {package}"})
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "tests.missing_peers"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"ASYNCNN_REQUIRE_PEERS": str(int(required))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("onnx is not installed" in ran.stdout) == is_skipped
    assert ("1 skipped" in ran.stdout) == is_skipped
    assert ("failed" in ran.stdout or "error" in ran.stdout) != is_skipped
