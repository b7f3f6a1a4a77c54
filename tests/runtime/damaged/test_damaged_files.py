"""Damaged files of every kind end in a model or one error, soon, in little memory.

Each worker loads its share, and is watched from here: see `worker`.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model_file import load
from tests.runtime.damaged.files import GENERATED, files
from tests.runtime.damaged.mutators import damaged
from tests.runtime.damaged.worker import NOTE_BYTES, Order

FEW = 2_000
MANY = 12_800
SHARES = 8
"""A hundred thousand and more, in shares that processes take."""

ROOT = Path(__file__).parents[3]


class Outcome(msgspec.Struct, frozen=True):
    """How a worker ended, what it printed, and what it was at."""

    status: int
    lines: list[str]
    note: str

    @property
    def problems(self) -> list[str]:
        """What went wrong; the last line only counts."""
        died = [] if self.status in (0, 1) else [f"{self.note}: died, {self.status}"]
        return [line for line in self.lines if ", seed " in line] + died


def worked(
    folder: Path, models: Path | None, first: int, count: int, loader: str = ""
) -> Outcome:
    note = folder / "note"
    order = Order(first, count, str(note), str(models) if models else None)
    if loader:
        place = f"tests.runtime.damaged.bad_loaders:{loader}"
        order = msgspec.structs.replace(order, loader=place)
    command = [sys.executable, "-m", "tests.runtime.damaged.worker"]
    with subprocess.Popen(
        [*command, msgspec.json.encode(order).decode()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=30 if loader else 30 + count * 0.05)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        status = process.returncode
    at = note.read_bytes()[:NOTE_BYTES].decode(errors="replace").strip(" \0")
    return Outcome(status, out.splitlines(), at)


def test_damaged_files_are_refused_or_load(shared: Path, tmp_path: Path) -> None:
    outcome = worked(tmp_path, shared / "models", 0, FEW)
    assert not outcome.problems, outcome.lines[-1]
    assert " refused" in outcome.lines[-1]
    assert " prepared" in outcome.lines[-1]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", range(SHARES))
def test_very_many_damaged_files(shared: Path, tmp_path: Path, share: int) -> None:
    outcome = worked(tmp_path, shared / "models", FEW + share * MANY, MANY)
    assert not outcome.problems, outcome.lines[-1]


class TestSearch:
    """What must not happen would be noticed."""

    @pytest.mark.parametrize(
        ("loader", "problem"),
        [
            ("hungry", "large allocations"),
            ("failing_to_allocate", "MemoryError on the way"),
            ("careless", "not an error of the family (IndexError at bad_loaders.py"),
            ("chatty", "not one line"),
        ],
    )
    def test_a_bad_loader_is_told_with_the_seed(
        self, tmp_path: Path, loader: str, problem: str
    ) -> None:
        outcome = worked(tmp_path, None, 0, 1, loader)
        assert outcome.status == 1
        (line,) = outcome.problems
        assert line.startswith("hybrid, seed 0: ")
        assert problem in line

    @pytest.mark.exhaustive
    def test_a_loader_that_hangs_is_interrupted(self, tmp_path: Path) -> None:
        outcome = worked(tmp_path, None, 0, 1, "hanging")
        assert outcome.problems[0].startswith("hybrid, seed 0: took more than 10.0 s")

    def test_a_loader_that_crashes_is_named_by_the_note(self, tmp_path: Path) -> None:
        outcome = worked(tmp_path, None, 0, 1, "crashing")
        assert outcome.problems == ["hybrid, seed 0: died, -11"]

    @pytest.mark.exhaustive
    @pytest.mark.timeout(120)
    def test_a_loader_that_no_alarm_reaches_is_killed(self, tmp_path: Path) -> None:
        outcome = worked(tmp_path, None, 0, 1, "stuck")
        assert outcome.problems == ["hybrid, seed 0: died, -9"]


class TestMutators:
    def test_every_kind_of_file_is_among_the_originals(self) -> None:
        kinds = {kind_of(memoryview(data)) for _, data in files(None)}
        assert kinds == set(FileKind)

    @pytest.mark.parametrize("name", GENERATED)
    def test_originals_load(self, name: str) -> None:
        load(GENERATED[name]())

    @pytest.mark.parametrize("name", GENERATED)
    def test_damage_is_the_same_for_the_same_seed(self, name: str) -> None:
        data = GENERATED[name]()
        mutants = [damaged(data, seed) for seed in range(50)]
        assert mutants == [damaged(data, seed) for seed in range(50)]
        assert len(set(mutants)) > 40
        assert sum(mutant != data for mutant in mutants) > 40

    @pytest.mark.parametrize("name", GENERATED)
    def test_damage_gets_past_the_first_checks(self, name: str) -> None:
        data = GENERATED[name]()
        kind = kind_of(memoryview(data))
        mutants = [damaged(data, seed) for seed in range(100)]
        known = [mutant for mutant in mutants if mutant[:8] == data[:8]]
        assert len(known) > 60, kind
