"""Seeded schedules of scheduler, fences, devices and drivers hold what they promise.

The exhaustive tier tries more; ``make schedules`` tries 100,000.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tried(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.schedules", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 160, id="few"),
        pytest.param(
            1000,
            6000,
            id="many",
            marks=(pytest.mark.exhaustive, pytest.mark.timeout(600)),
        ),
    ],
)
def test_every_schedule_keeps_what_is_promised(first: int, count: int) -> None:
    ended = tried("--seed", first, "--count", count)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" 0 failed") == 5


@pytest.mark.exhaustive
def test_a_seed_is_the_same_schedule_each_time() -> None:
    ends = {
        re.sub(r"\d+ a second", "", tried("--seed", 7, "--count", 4).stdout)
        for _ in range(2)
    }
    assert len(ends) == 1
    assert "has drawn" in ends.pop()


@pytest.mark.parametrize(
    ("fault", "scenario"),
    [
        pytest.param("ends-twice", "scheduler", marks=pytest.mark.exhaustive),
        pytest.param("loses-an-end", "scheduler", marks=pytest.mark.exhaustive),
        pytest.param("forgets-priorities", "scheduler", marks=pytest.mark.exhaustive),
        pytest.param("forgets-a-deadline", "scheduler", marks=pytest.mark.exhaustive),
        ("opens-after-its-close", "fences"),
        pytest.param("wakes-nobody-elsewhere", "fences", marks=pytest.mark.exhaustive),
        pytest.param("loses-a-message", "remote", marks=pytest.mark.exhaustive),
    ],
)
def test_a_planted_fault_is_found_and_its_seed_finds_it_again(
    fault: str, scenario: str
) -> None:
    found = tried("--only", scenario, "--plant", fault, "--count", 200)
    assert found.returncode == 1, found.stdout + found.stderr
    seed = re.search(r"--seed (\d+) --count 1", found.stdout)
    assert seed, found.stdout
    again = tried("--only", scenario, "--plant", fault, "--seed", seed[1], "--count", 1)
    assert again.returncode == 1, again.stdout
