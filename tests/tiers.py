"""Runs tests by tiers: ``python -m tests.tiers quick``; `TIERS` are all there are.

What is marked ``alone`` runs in one process, after all else, which is shared among the
processors. Tests that fail are run once more, one by one in a new process: what fails
again fails the run, and what passes then is listed in the end as unsteady.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

CACHE = Path(".pytest_cache/tiers")
"""Where pytest notes which tests failed; that of other runs remains as it is."""

MOST_REPEATED = 20
"""If more tests than these fail, it is no accident."""

FAILED, NONE_CHOSEN = 1, 5
"""What pytest exits with."""

PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")

WAITING = tuple(
    f"tests/{part}"
    for part in ("fmq", "fences", "burst", "service", "runtime", "pipeline")
)
"""Where tests wait on the event loop, and so are run on another one, too: those of
`tests.other_loops`."""


class Part(msgspec.Struct, frozen=True):
    """Tests that one call of pytest runs."""

    name: str
    chosen: str
    """An expression of marks."""
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("tests",)
    text: str = ""
    """What files of tests have in them; all files if it is empty."""
    is_alone: bool = False

    def arguments(self) -> list[str]:
        text = "mark.alone" if self.is_alone else self.text
        places = files_with(text, self.folders) if text else self.folders
        shared = () if self.is_alone else PARALLEL
        return ["-m", self.chosen, *self.options, *shared, *places]

    def arguments_of_repetition(self) -> list[str]:
        """Choose those that failed, wherever they ran."""
        again = ("--last-failed", "--last-failed-no-failures=none")
        return [*self.options, *again, *self.folders]


def files_with(text: str, folders: Iterable[str]) -> list[str]:
    """Return the files of tests that have a text in them: to import all takes long."""
    files = [path for folder in folders for path in Path(folder).rglob("test_*.py")]
    return sorted(str(path) for path in files if text in path.read_text())


def both(name: str, chosen: str, *options: str, **others: Any) -> tuple[Part, Part]:
    """Return the parallel part, and the one of tests that run alone."""
    return (
        Part(name, f"{chosen}not alone", options, **others),
        Part(f"{name}, alone", f"{chosen}alone", options, **others, is_alone=True),
    )


MEASURED = ("--cov", "--cov-append", "--cov-report=", "--cov-fail-under=0")

TIERS: dict[str, tuple[Part, ...]] = {
    "quick": both("quick", "not exhaustive and "),
    "exhaustive": both("exhaustive", "exhaustive and "),
    "uvloop": both("uvloop", "", "--loop", "uvloop", folders=WAITING, text="async"),
    "eager": both("eager", "not exhaustive and ", "--eager", folders=WAITING),
    "all-measured": (
        Part("all, measured", "not alone", MEASURED),
        Part("all, alone", "alone", is_alone=True),
    ),
}
"""Parts by tier. Coverage is recorded of none that run `alone`, which it slows."""

Pytest = Callable[[Sequence[str]], int]


def pytest(arguments: Sequence[str]) -> int:
    """Run pytest in a process of its own; return what it exits with.

    It keeps bytecode even if no other process shall: tests start a few hundred
    processes, each of which would compile all that it imports.
    """
    options = ["-q", "-o", f"cache_dir={CACHE}", *arguments]
    kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options], env=kept, check=False
    ).returncode


def failed_tests() -> set[str]:
    """Return the names of tests that failed when they last ran."""
    try:
        return set(json.loads((CACHE / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return set()


def came_to_the_end() -> bool:
    """Return whether pytest did, which notes the names of all tests then.

    Code that is tested may have ended the whole process, with any status.
    """
    return (CACHE / "v/cache/nodeids").exists()


class Outcome(msgspec.Struct):
    """What a part has come to."""

    exit_status: int
    unsteady: set[str] = set()


def run(part: Part, pytest: Pytest = pytest) -> Outcome:
    """Run a part, and once more what of it failed."""
    print(f"\n=== {part.name} ===", flush=True)  # noqa: T201
    status = pytest(["--cache-clear", *part.arguments()])
    if status == 0 and not came_to_the_end():
        status = FAILED
    if status != FAILED:
        return Outcome(0 if status == NONE_CHOSEN else status)
    failed = failed_tests()
    were_tests = all("::" in name for name in failed)  # not files, nor workers
    if not (were_tests and 0 < len(failed) <= MOST_REPEATED):
        return Outcome(status)
    print(f"\n=== {part.name}: what failed, once more ===", flush=True)  # noqa: T201
    status = pytest(part.arguments_of_repetition())
    still_failed = failed_tests()
    if still_failed and status == 0:
        status = FAILED  # it was not found again
    return Outcome(status, failed - still_failed)


def main(*tiers: str) -> int:
    """Run all parts of some tiers; return 0 if all of them passed in the end."""
    parts = [part for tier in tiers for part in TIERS[tier]]
    outcomes = {part.name: run(part) for part in parts}
    print()  # noqa: T201
    for name, outcome in outcomes.items():
        for test in sorted(outcome.unsteady):
            print(f"unsteady: passed when run alone ({name}): {test}")  # noqa: T201
    broken = [name for name, outcome in outcomes.items() if outcome.exit_status]
    print(f"failed: {'; '.join(broken)}" if broken else "all passed")  # noqa: T201
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
