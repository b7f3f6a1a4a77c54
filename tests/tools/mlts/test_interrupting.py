"""An interrupt leaves what was measured until then, and says so in each report."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncnn.tools.mlts.suite_csv import csv_of
from asyncnn.tools.mlts.suite_records import read_report
from tests.cli.conftest import Ran
from tests.tools.mlts.conftest import write_golden, write_model

FOREVER = ("--runs", "10000000", "--seconds", "600")


def interrupted(folder: Path, number: int, told: str, *options: object) -> Ran:
    """Return how measuring ends when a signal comes after standard error has said."""
    command = [sys.executable, "-m", "asyncnn", "mlts", str(folder), "--no-peers"]
    ways = ["--device", "reference", "--transport", "inprocess", "--path", "sync"]
    with subprocess.Popen(
        [*command, *ways, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"},
        # What is started in the background of a shell ignores interrupts otherwise.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        err = ""
        while told not in err:
            char = process.stderr.read(1)
            assert char, err
            err += char
        process.send_signal(number)
        out, rest = process.communicate(timeout=30)
    return Ran(process.returncode, out, err + rest)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_is_printed_and_written(
    folder: Path, tmp_path: Path, number: int
) -> None:
    write_golden(write_model(folder, "second"))
    write_model(folder, "third")
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "csv", "html")}
    options = [part for kind in files for part in (f"--{kind}", files[kind])]
    few = ("--seconds", 1, "--runs", 9999999)
    ran = interrupted(folder, number, "second, round 1", *few, *options)
    assert ran.status == 128 + number
    assert ran.err.endswith("interrupted\n")
    assert "Traceback" not in ran.err
    how_far = ran.out.splitlines()[-2]
    assert re.fullmatch(
        "interrupted after 1 of 3 models, and [1-5] of 5 rounds of second", how_far
    )
    assert "third: not measured" in ran.out
    report = read_report(files["json"])
    assert report.interrupted == how_far
    assert [row.model for row in report.rows] == ["absolute", "second"]
    assert all(row.latency and row.accuracy for row in report.rows)
    assert files["csv"].read_text() == csv_of(report)
    assert how_far.replace(",", "") in files["csv"].read_text().splitlines()[0]
    assert f"It was {how_far}" in files["html"].read_text()


def test_nothing_is_written_if_nothing_was_measured(
    folder: Path, tmp_path: Path
) -> None:
    old = tmp_path / "r.json"
    old.write_text("what was there")
    told = "absolute, prepared"
    ran = interrupted(folder, signal.SIGINT, told, *FOREVER, "--json", old)
    assert (ran.status, ran.out) == (130, "")
    assert old.read_text() == "what was there"
