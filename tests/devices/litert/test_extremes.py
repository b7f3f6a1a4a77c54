"""Quantised operations at the limits neither end the process nor come out wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SPAN = 250
SPANS = 12


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "span",
    [
        pytest.param(span, marks=[pytest.mark.exhaustive] if span else [])
        for span in range(SPANS)
    ],
)
def test_what_is_claimed_is_computed(span: int) -> None:
    first = span * SPAN
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tests.devices.litert.extremes"),
            *(str(first), str(first + SPAN)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > SPAN // 4  # of those that are claimed at all
