"""What a run of a tier makes of tests that fail, then or always."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import (
    MANY_CASES,
    OF_ONE_CASE_EACH,
    RECORDED_CASES,
    pytest_collection_modifyitems,
)
from tests.other_loops import FEWEST_CASES, MOST_VALUES, some

ROOT = Path(__file__).parents[1]

PASSES = """
import os
import sys
from pathlib import Path
import pytest

def is_second_run_of(test):
    done = Path(test + ".done")
    if done.exists():
        return True
    done.touch()
    return False

def test_passes():
    assert not sys.dont_write_bytecode
"""

PASSES_IN_THE_END = """
def test_fails_once():
    assert is_second_run_of("fails")

def test_kills_its_worker_once():
    if not is_second_run_of("kills"):
        os._exit(1)

@pytest.mark.alone
def test_fails_once_though_alone():
    assert is_second_run_of("alone")
"""

FAILS_AGAIN = """
def test_fails_once():
    assert is_second_run_of("fails")

def test_kills_whoever_runs_it():
    os._exit(0)
"""

ENDS_THE_WHOLE_RUN = """
@pytest.mark.alone
def test_ends_the_process():
    os._exit(0)
"""

CANNOT_BE_COLLECTED = """
import nothing_of_that_name
"""


ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin",
}
"""Has few plugins, so that pytest starts sooner, and forbids what tiers allow."""


def run(folder: Path, more: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(PASSES + more)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  exhaustive\n")
    return subprocess.run(
        [sys.executable, "-m", "tests.tiers", "quick"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_what_passes_when_run_again_is_listed_as_unsteady(tmp_path: Path) -> None:
    ended = run(tmp_path, PASSES_IN_THE_END)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-4:] == [
        "unsteady: passed when run alone (quick): tests/test_it.py::test_fails_once",
        "unsteady: passed when run alone (quick): "
        "tests/test_it.py::test_kills_its_worker_once",
        "unsteady: passed when run alone (quick, alone): "
        "tests/test_it.py::test_fails_once_though_alone",
        "all passed",
    ]


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FAILS_AGAIN)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "failed: quick"


def test_what_ends_the_process_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, ENDS_THE_WHOLE_RUN)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "failed: quick, alone"


def test_what_cannot_be_collected_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, CANNOT_BE_COLLECTED)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "failed: quick; quick, alone"


class Item:
    """A case of a test, as far as marks go."""

    path = Path(__file__)
    limit_s = 0

    def __init__(self, number: int, marks: set[str]) -> None:
        self.nodeid = f"test_tiers.py::test_of_many_cases[{number}]"
        self.marks = marks

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        mark: pytest.Mark = getattr(pytest.mark, name)(self.limit_s).mark
        return mark if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


def test_cases_are_left_of_those_that_are_not_exhaustive_by_themselves() -> None:
    own = [{"exhaustive"} if number % 10 else set() for number in range(999)]
    items: list[Any] = [Item(number, marks) for number, marks in enumerate(own)]
    pytest_collection_modifyitems(items)
    assert sum("exhaustive" not in item.marks for item in items) == MANY_CASES


@pytest.mark.parametrize("folder", ["tests/", OF_ONE_CASE_EACH[0]])
def test_coverage_is_recorded_of_some_cases_or_of_all_in_some_folders(
    folder: str,
) -> None:
    items: list[Any] = [Item(number, set()) for number in range(99)]
    for item in items:
        item.nodeid = folder + item.nodeid
    pytest_collection_modifyitems(items)
    recorded = [item for item in items if "unrecorded" not in item.marks]
    assert len(recorded) == (RECORDED_CASES if folder == "tests/" else len(items))
    assert folder != "tests/" or not any("exhaustive" in i.marks for i in recorded)


RECORDED = """
import sys
import pytest
import recorded

def test_some():
    recorded.some()

@pytest.fixture
def more():
    return recorded.more()

@pytest.mark.unrecorded
def test_more(more):
    assert sys.gettrace() is None
    recorded.most()

def test_last():
    assert sys.gettrace() is not None
    recorded.last()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_no_coverage_is_recorded_of_what_is_marked_so(
    tmp_path: Path, workers: int
) -> None:
    (tmp_path / "recorded.py").write_text(
        "\n".join(
            f"def {name}():\n    pass" for name in ("some", "more", "most", "last")
        )
    )
    (tmp_path / "test_it.py").write_text(RECORDED)
    hooks = "from tests.conftest import pytest_runtest_protocol, pytest_runtestloop"
    (tmp_path / "conftest.py").write_text(hooks)
    options = ("--rootdir", tmp_path, "-c", os.devnull, "-p", "pytest_cov")
    reported = ("--cov=recorded", "--cov-report=term-missing")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            *reported,
            f"-n{workers}",
            "test_it.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"recorded.py +8 +2 .* 4, 6$", ended.stdout, re.M), ended.stdout


def test_those_that_may_take_longest_begin_and_others_stay_in_order() -> None:
    items: list[Any] = [Item(number, {"timeout"}) for number in range(5)]
    for item, limit_s in zip(items, (30, 600, 60, 1800, 120), strict=True):
        item.limit_s = limit_s
    pytest_collection_modifyitems(items)
    assert [item.limit_s for item in items] == [1800, 600, 30, 60, 120]


@pytest.mark.parametrize(("firsts", "seconds"), [(12, 3), (200, 3), (2, 5), (1, 1)])
def test_on_another_loop_each_value_of_each_parameter_has_a_case(
    firsts: int, seconds: int
) -> None:
    values = [list(map(str, range(count))) for count in (firsts, seconds)]
    cases = [
        SimpleNamespace(callspec=SimpleNamespace(params={"a": a, "b": b}))
        for a, b in itertools.product(*values)
    ]
    chosen = list(some("test", cases))
    params = [case.callspec.params for case in chosen]
    shown = {each["a"] for each in params}
    if firsts <= MOST_VALUES:
        assert shown == set(values[0])
    else:
        assert MOST_VALUES <= len(shown) <= MOST_VALUES + seconds
    assert {each["b"] for each in params} == set(values[1])
    most = min(firsts, MOST_VALUES) + seconds + 3
    assert min(FEWEST_CASES, len(cases)) <= len(chosen) <= most
    bare = SimpleNamespace()
    assert list(some("test", [bare])) == [bare]
