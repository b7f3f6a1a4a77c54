"""Mutants that tests notice die, others survive, and both are told apart.

What is tried is a module of these tests, in a process of its own, since a trial runs in
place of all tests of a process.
"""

import os
import threading
from pathlib import Path

import pytest

from tests.mutating.mutants import PARTS, Source, sample
from tests.mutating.mutants import ROOT as PACKAGE
from tests.mutating.trying import KILLED, SURVIVED, UNREACHED, in_fork, outcomes
from tests.processes import python

ROOT = Path(__file__).parents[2]

DECIDING = '''
"""Decides."""


def is_old(age):
    return age >= 18


def at_least_none(number):
    return number if number > 0 else 0


def unused(age):
    return age < 18
'''

TESTS = """
from deciding import at_least_none, is_old


def test_ages():
    assert is_old(18)
    assert not is_old(17)


def test_numbers():
    assert [at_least_none(each) for each in (-1, 0, 1)] == [0, 0, 1]

"""

TRIAL = """
import sys
from pathlib import Path
import pytest
from tests.mutating.mutants import Source
from tests.mutating.trying import MutantTrial

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
source = Source("all", folder / "deciding.py", folder)
changes = [(place, changed) for place in source.places for changed in place.changed]
mutants = [mutant for each in changes if (mutant := source.mutant(*each))]
kept, results = folder / "kept", folder / "results"
trial = MutantTrial([source.path], mutants, kept, results, 2)
options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:asyncio"]
sys.exit(pytest.main([*options, str(folder)], [trial]))
"""


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deciding")
    (folder / "pytest.ini").write_text("[pytest]")
    (folder / "deciding.py").write_text(DECIDING)
    (folder / "test_deciding.py").write_text(TESTS)
    return folder


def test_what_tests_notice_dies_and_all_else_is_told(deciding: Path) -> None:
    ended = python("-c", TRIAL, deciding, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    became = {
        each.name.partition(" ")[2]: each.became
        for each in outcomes(deciding / "results")
    }
    assert became["is_old: >= 18 -> > 18"] == KILLED
    assert became["is_old: 18 -> 19"] == KILLED
    assert became["at_least_none: > 0 -> >= 0"] == SURVIVED  # it is none either way
    assert became["unused: < 18 -> <= 18"] == UNREACHED


def test_what_takes_too_long_is_ended() -> None:
    def never_ends(said: int) -> None:
        os.write(said, b"this test")
        threading.Event().wait()

    assert in_fork(never_ends, 0.5) == (None, "this test")


def test_a_seed_draws_the_same_mutants(deciding: Path) -> None:
    def drawn(seed: int) -> list[str]:
        source = Source("all", deciding / "deciding.py", deciding)
        return [mutant.name for mutant in sample(6, seed, [source])]

    assert drawn(1) == drawn(1) != drawn(2)


def test_every_part_has_files() -> None:
    patterns = [each for part in PARTS.values() for each in part]
    assert [each for each in patterns if not list(PACKAGE.glob(each))] == []
