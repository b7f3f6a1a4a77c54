"""What holds of each module in C: it was built, its twin does the same, it is sane."""

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import processes

ROOT = Path(__file__).parents[1]
HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
SANITIZERS = {
    "address": ("asan", {"ASAN_OPTIONS": "detect_leaks=0"}),
    "thread": ("tsan", {"TSAN_OPTIONS": "exitcode=66 report_signal_unsafe=0"}),
    "undefined": ("ubsan", {"UBSAN_OPTIONS": "halt_on_error=1"}),
}
"""The library of each, and what it is told."""

_OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not alone and not exhaustive"]
_INSTEAD = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[sys.argv[1]] = module
sys.exit(pytest.main(sys.argv[3:]))
"""


class Native(NamedTuple):
    """A module in C, and the tests that say what it does."""

    name: str
    variable: str
    """That asks for the twin in Python, if it is 1."""
    user: str
    """The module that takes it or its twin."""
    is_twin: str
    """An expression of ``user`` that says whether it has the twin."""
    tests: tuple[str, ...] = ()
    """Whose outcome is the same with the twin; below `tests`."""
    watched: tuple[str, ...] = ()
    """Which a sanitizer watches."""
    sanitizers: tuple[str, ...] = ()
    unwatched: str = ""
    """What the names of those have that it cannot watch."""
    differing: str = ""
    """What the names of tests have that hold of the module in C alone."""

    @property
    def source(self) -> Path:
        return ROOT / f"{self.name.replace('.', '/')}.c"


MODULES = (
    Native(
        "asyncnn._turn",
        "ASYNCNN_PURE_JOB",
        "asyncnn.turn",
        "user._built is None",
        ("test_callbacks.py",),
        ("test_callbacks.py", "test_turn.py"),
        ("address", "thread", "undefined"),
        "interrupt",
        "interrupt",
    ),
    Native(
        "asyncnn.engine._job",
        "ASYNCNN_PURE_JOB",
        "asyncnn.engine.job",
        "user.JobSegment is user.PythonSegment",
        ("engine", "devices/litert"),
        tuple(
            f"engine/test_job{part}.py" for part in ("", "_built", "_lanes", "_memory")
        ),
        ("address", "thread"),
        "fork",
    ),
    Native(
        "asyncnn.fmq._ring",
        "ASYNCNN_PURE_RING",
        "asyncnn.fmq",
        "'PythonRing' in str(user.MessageQueue.__mro__)",
        ("fmq",),
    ),
    Native(
        "asyncnn.hal.validate._prescan",
        "ASYNCNN_PURE_RULES",
        "asyncnn.hal.validate.model",
        "user._prescans is None",
        (),
        ("hal/validate/test_prescan.py", "hal/validate/test_garbage.py"),
        ("address", "undefined"),
    ),
    Native(
        "asyncnn.kernels._compiled",
        "ASYNCNN_PURE_KERNELS",
        "asyncnn.kernels.compiled",
        "user.built is None",
        ("kernels",),
        ("kernels/test_compiled.py", "kernels/recurrent/integer"),
        ("address", "undefined"),
        "litert",
    ),
    Native(
        "asyncnn.runtime._arrays",
        "ASYNCNN_PURE_JOB",
        "asyncnn.runtime.requests",
        "user._built is None",
        (),
        ("runtime/test_usual_arrays.py",),
        ("address", "undefined"),
    ),
    Native(
        "asyncnn.service.driver._calls",
        "ASYNCNN_PURE_RING",
        "asyncnn.service.driver.call_ring",
        "user.CallRing is user.PythonCallRing",
        (),
        ("service/test_call_ring.py",),
        ("address", "undefined"),
    ),
    Native(
        "asyncnn.tflite._scan",
        "ASYNCNN_PURE_SCAN",
        "asyncnn.tflite.scan",
        "user._built is None",
        (),
        ("runtime/tflite/test_scan.py",),
        ("address", "undefined"),
    ),
)
BUILT = {each.name for each in MODULES if importlib.util.find_spec(each.name)}
of_each = pytest.mark.parametrize(
    "module", [pytest.param(each, id=each.name) for each in MODULES]
)


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    unset = dict.fromkeys({each.variable for each in MODULES}, "")
    return processes.python(*arguments, env=os.environ | unset | variables)


@of_each
@pytest.mark.skipif(
    shutil.which("cc") is None or not HAS_HEADERS,
    reason="there is no compiler, or there are no headers of Python",
)
def test_it_was_built_where_that_can_be(module: Native) -> None:
    assert module.name in BUILT


@pytest.mark.parametrize("variable", ["", *sorted({m.variable for m in MODULES})])
def test_one_may_ask_for_the_twin(variable: str) -> None:
    lines = ["from importlib import import_module"]
    for each in MODULES:
        lines += [f"user = import_module('{each.user}')", f"print({each.is_twin})"]
    shown = python("-c", "\n".join(lines), **({variable: "1"} if variable else {}))
    wanted = [each.variable == variable or each.name not in BUILT for each in MODULES]
    assert shown.stdout.split() == [*map(str, wanted)], shown.stderr


@of_each
def test_what_it_returns_is_counted_by_every_interpreter(module: Native) -> None:
    """`None`, True and False never end since Python 3.12, and are not counted there."""
    assert not re.findall(r"\bPy_RETURN_\w+;", module.source.read_text())


def chosen(tests: Sequence[str], but: str) -> list[str]:
    """Return how pytest is asked for all tests of some files but those of a name."""
    return [
        *_OPTIONS,
        *(["-k", f"not {but}"] if but else []),
        *(f"tests/{t}" for t in tests),
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "module",
    [
        # All of a folder takes minutes.
        pytest.param(each, id=each.name, marks=pytest.mark.exhaustive)
        if "." not in each.tests[0]
        else pytest.param(each, id=each.name)
        for each in MODULES
        if each.tests and each.name in BUILT
    ],
)
def test_its_twin_does_the_same(module: Native) -> None:
    tests = chosen(module.tests, module.differing)
    ran = python("-m", "pytest", *tests, **{module.variable: "1"})
    assert ran.returncode == 0, ran.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(each, name, id=f"{each.name}-{name}")
        for each in MODULES
        for name in each.sanitizers
        if each.name in BUILT
    ],
)
def test_a_sanitizer_finds_nothing(module: Native, name: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None or not HAS_HEADERS:
        pytest.skip("there is no gcc, or there are no headers of Python")
    short, settings = SANITIZERS[name]
    command = [gcc, f"-print-file-name=lib{short}.so"]
    library = subprocess.check_output(command, text=True).strip()
    if not Path(library).is_absolute():
        pytest.skip(f"gcc has no {name} sanitizer")
    built = tmp_path / f"{module.source.stem}.so"
    command = [gcc, "-shared", "-fPIC", "-O1", "-g", f"-fsanitize={name}"]
    command += [f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030B0000"]
    subprocess.run([*command, str(module.source), "-o", built], check=True)
    tests = chosen(module.watched, module.unwatched)
    watched = settings | {"LD_PRELOAD": library, "PYTHONMALLOC": "malloc"}
    ran = python("-c", _INSTEAD, module.name, str(built), "-s", *tests, **watched)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert " passed" in ran.stdout
    assert "Sanitizer" not in said
    assert "runtime error" not in said
