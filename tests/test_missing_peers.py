"""What is not installed skips tests only if users may do without it."""

import os
from pathlib import Path

import pytest

from tests.processes import python

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
    plugins = ["-p", "tests.missing_peers", "-p", "no:cacheprovider"]
    environment = os.environ | {"ASYNCNN_REQUIRE_PEERS": str(int(required))}
    command = ["-m", "pytest", "-q", "-rs", *plugins, tmp_path]
    ran = python(*command, cwd=Path(__file__).parents[1], env=environment)
    assert ("onnx is not installed" in ran.stdout) == is_skipped
    assert ("1 skipped" in ran.stdout) == is_skipped
    assert ("failed" in ran.stdout or "error" in ran.stdout) != is_skipped
