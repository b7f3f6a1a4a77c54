"""Quantised operations at the limits neither end the process nor come out wrong."""

from pathlib import Path

import pytest

from tests.processes import python

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
    module = "tests.devices.litert.extremes"
    ran = python("-m", module, first, first + SPAN, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > SPAN // 4  # of those that are claimed at all
