"""Runs tests on a module in C that a sanitizer of the compiler watches."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

SANITIZERS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=0"},
    "thread": {"TSAN_OPTIONS": "exitcode=66 report_signal_unsafe=0"},
    "undefined": {"UBSAN_OPTIONS": "halt_on_error=1"},
}
"""What each is told."""

_OPTIONS = ["-q", "-x", "-s", "-p", "no:cacheprovider"]
_LIBRARIES = {"address": "asan", "thread": "tsan", "undefined": "ubsan"}

_INSTEAD = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[sys.argv[1]] = module
sys.exit(pytest.main(sys.argv[3:]))
"""


def check(
    module: str,
    source: Path,
    tests: Sequence[Path],
    name: str,
    folder: Path,
    chosen: str,
) -> None:
    """Build ``source`` in ``folder``, run tests on it and fail if something is found.

    Those that a machine has no compiler or sanitizer for are skipped.
    """
    gcc = shutil.which("gcc")
    include = sysconfig.get_path("include")
    if gcc is None or not Path(include, "Python.h").exists():
        pytest.skip("there is no gcc, or there are no headers of Python")
    library = subprocess.run(
        [gcc, f"-print-file-name=lib{_LIBRARIES[name]}.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip(f"gcc has no {name} sanitizer")
    built = folder / f"{module.rpartition('.')[2]}.so"
    command = [gcc, "-shared", "-fPIC", "-O1", "-g", f"-fsanitize={name}"]
    command += [f"-I{include}", "-DPy_LIMITED_API=0x030B0000", str(source)]
    subprocess.run([*command, "-o", built], check=True)
    arguments = [*_OPTIONS, "-m", "not alone and not exhaustive", "-k", chosen]
    run = subprocess.run(
        [sys.executable, "-c", _INSTEAD, module, built, *arguments, *map(str, tests)],
        env=os.environ
        | {"LD_PRELOAD": library, "PYTHONMALLOC": "malloc"}
        | SANITIZERS[name],
        capture_output=True,
        text=True,
        check=False,
    )
    told = run.stdout + run.stderr
    assert run.returncode == 0, told
    assert " passed" in run.stdout
    assert "Sanitizer" not in told
    assert "runtime error" not in told
