"""Queues and bursts keep their distance from other ways between processes.

A machine that is busy with something else can spoil a measurement but not improve one:
a gate counts as passed if it was in one of a few attempts.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncnn.fmq import IS_COMPILED

ATTEMPTS = 4


def measure(report: Path) -> dict[str, Any]:
    command = ["bench", "burst", "--gates", "--rounds", "5", "--json", str(report)]
    subprocess.run(
        [sys.executable, "-m", "asyncnn", *command],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return msgspec.json.decode(report.read_bytes())


@pytest.mark.alone
@pytest.mark.exhaustive
@pytest.mark.timeout(1300)
@pytest.mark.skipif(not IS_COMPILED, reason="the gates are those of the compiled ring")
def test_every_gate_is_passed(tmp_path: Path) -> None:
    closed: dict[tuple[str, str, str], float] = {}
    for attempt in range(ATTEMPTS):
        report = measure(tmp_path / "report.json")
        verdicts = [
            (placed["placement"], verdict)
            for placed in report["placements"]
            for verdict in placed["verdicts"]
        ]
        if report["headline"] is not None:
            verdicts.append(("all placements", report["headline"]))
        assert len(verdicts) >= 6
        missed = {
            (placement, verdict["figure"], verdict["peer"]): verdict["ratio"]
            for placement, verdict in verdicts
            if not verdict["met"]
        }
        closed = {
            gate: ratio
            for gate, ratio in missed.items()
            if attempt == 0 or gate in closed
        }
        if not closed:
            break
    assert not closed
