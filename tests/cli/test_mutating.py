import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.tools.conformance.mutations.plan import Tally
from tests.cli.conftest import Ran

Command = Callable[..., Ran]


def test_mutants_are_tried_and_counted_by_row(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    ran = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", "--filter", "relu*", "--mutate"),
        *("--mutants", 2, "--json", report, "--workers", 1),
    )
    assert ran.status == 0, ran.out
    tallies = json.loads(report.read_bytes())
    assert {tally["transport"] for tally in tallies} == {"inprocess"}
    assert max(tally["passed"] for tally in tallies) == 2
    passed = sum(tally["passed"] for tally in tallies)
    skipped = sum(sum(tally["skipped"].values()) for tally in tallies)
    last = ran.out.splitlines()[-1]
    assert last == f"{passed} passed, 0 failed, {skipped} skipped"
    assert "an operand is written twice" in ran.out
    assert "[VM16]: nothing reads the operand" in ran.out


def test_mutants_of_no_case_are_refused(asyncnn_command: Command, shared: Path) -> None:
    options = ("--mutate", "--filter", "no such case", "--workers", 1)
    ran = asyncnn_command("conformance", shared / "vts" / "V1_1", *options)
    assert ran.status == 2
    assert "no case matches" in ran.err


def test_a_mutant_that_is_accepted_fails_the_command(
    asyncnn_command: Command, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asyncnn.cli.mutating.run_mutants",
        lambda specs, plan, workers: [
            [
                Tally(
                    "V1_0/add", "add", "VM9", plan.transport, failed=1, problems=("no",)
                )
            ]
        ],
    )
    ran = asyncnn_command("conformance", shared / "vts" / "V1_0", "--mutate")
    assert ran.status == 1
    assert "failed: add [VM9, inprocess]: no" in ran.out
    assert ran.out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
