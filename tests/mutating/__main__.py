"""Tries mutants: ``python -m tests.mutating [--count N] [--seed S]``.

What modules in C have a form in Python for is tried in that form, too, if it survives
at first. What is found is kept in `KEPT`: ``--go-on`` tries what has not died there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutating.mutants import PARTS, sample, sources
from tests.mutating.trying import KILLED, TIMED_OUT, MutantTrial, Outcome, outcomes

KEPT = Path(".pytest_cache/mutating")

TESTS = (
    *("tests/fmq", "tests/fences", "tests/qos", "tests/engine", "tests/burst"),
    *("tests/service", "tests/devices"),
    *("tests/test_callbacks.py", "tests/test_turn.py", "tests/test_execution.py"),
    *("tests/runtime/test_reusable.py", "tests/runtime/test_calls_of_a_run.py"),
    *("tests/runtime/test_fenced.py", "tests/runtime/test_missed_deadlines.py"),
)

LEFT_OUT = (
    *("devices/cache", "devices/capabilities", "devices/litert"),
    *("devices/onnxruntime", "service/test_exhausted.py", "service/test_faults.py"),
    *("service/test_large_models.py", "service/test_neighbours.py"),
    *("service/test_process.py", "service/test_recording.py", "service/test_start.py"),
    *("service/test_supervised.py", "service/test_supervised_bursts.py"),
)
"""What is of other parts than those that are mutated, and takes long."""

OF_TWINS = (
    *("tests/fmq", "tests/engine", "tests/test_callbacks.py", "tests/test_turn.py"),
    *("tests/test_execution.py", "tests/devices/test_execution.py"),
    *("tests/qos/test_scheduler.py", "tests/service/test_call_ring.py"),
)

FORMS: Mapping[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "c": ({}, TESTS),
    "python": ({"ASYNCNN_PURE_JOB": "1", "ASYNCNN_PURE_RING": "1"}, OF_TWINS),
}
"""Of modules in C or their twins, the variables that ask for it, and its tests."""

OPTIONS = (
    *("-q", "-s", "-p", "no:cacheprovider"),
    *("-m", "not exhaustive and not alone"),
    *(f"--ignore=tests/{place}" for place in LEFT_OUT),
)


def tried_in_this_form(arguments: argparse.Namespace) -> int:
    results = KEPT / f"{arguments.count}-{arguments.seed}.jsonl"
    dead = {each.name for each in outcomes(results) if has_died(each)}
    files = sources()
    drawn = sample(arguments.count, arguments.seed, files)
    mutants = [each for each in drawn if each.name not in dead]
    trial = MutantTrial(
        [source.path for source in files],
        mutants,
        KEPT / arguments.form,
        results,
        arguments.workers,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        return pytest.main([*OPTIONS, *FORMS[arguments.form][1]], plugins=[trial])


def has_died(outcome: Outcome) -> bool:
    return outcome.became in (KILLED, TIMED_OUT)


def report(found: list[Outcome]) -> None:
    lines = [f"{each.became}: {each.name}" for each in found if not has_died(each)]
    for part in PARTS:
        of_it = Counter(each.became for each in found if each.part == part)
        counts = ", ".join(f"{count} {name}" for name, count in sorted(of_it.items()))
        lines.append(f"{part}: {of_it.total()} mutants; {counts}")
    died = sum(map(has_died, found))
    lines.append(f"{died} of {len(found)} died")
    print("\n".join(lines))  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutating")
    add = parser.add_argument
    add("--count", type=int, default=500, help="mutants, of all by the seed")
    add("--seed", type=int, default=1, help="what is drawn, and in which order")
    add("--workers", type=int, default=os.cpu_count(), help="processes that try them")
    add("--go-on", action="store_true", help="try what has lived in an earlier run")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if arguments.form:
        return tried_in_this_form(arguments)
    results = KEPT / f"{arguments.count}-{arguments.seed}.jsonl"
    if not arguments.go_on:
        for file in KEPT.iterdir():
            file.unlink()
    for form, (variables, _) in FORMS.items():
        command = [
            sys.executable,
            "-m",
            "tests.mutating",
            *sys.argv[1:],
            "--form",
            form,
        ]
        status = subprocess.run(command, env={**os.environ, **variables}, check=False)
        if status.returncode:
            return status.returncode
    report(outcomes(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
