"""Modules in C are fed by their own coverage, with sanitizers."""

import sysconfig
from pathlib import Path

import pytest

from tests.tools.fuzz.native import FED, clang, fuzzed


@pytest.mark.exhaustive
@pytest.mark.skipif(not clang(), reason="there is no clang")
@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_ENABLE_SHARED")
    or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="there is no library of Python to link with, or there are no headers",
)
@pytest.mark.parametrize("target", FED)
def test_sanitizers_find_nothing_in_what_libfuzzer_makes(target: str) -> None:
    status, told = fuzzed(target, 2)
    assert status == 0, told
    assert "Done " in told
    assert "Sanitizer" not in told
    assert "runtime error" not in told
