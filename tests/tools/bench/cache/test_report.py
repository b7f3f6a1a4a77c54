"""Goals of ``asyncnn bench cache``."""

import pytest

from asyncnn.tools.bench.cache.report import (
    MATTERS_ABOVE_BYTES,
    MATTERS_ABOVE_US,
    CacheReport,
)
from tests.tools.bench.cache.reports import report

LARGE = MATTERS_ABOVE_BYTES


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (report(20_000, 4_000, 199_000, LARGE), True),
        (report(20_000, 6_000), False),
        (report(1_000, 400, weights_bytes=LARGE), False),
        (report(20_000, 4_000, 200_000, LARGE), False),
        (report(MATTERS_ABOVE_US - 1, 9_000, 900), True),
        (report(1_000, 400, is_largest=True), False),
        (report(1_000, 100, 200, is_largest=True), False),
        (report(1_000, 100, 199, is_largest=True), True),
    ],
    ids=[
        "both met",
        "slow",
        "slow though quickly prepared",
        "copied",
        "too small to matter",
        "the largest is slow",
        "the largest is copied",
        "the largest meets both",
    ],
)
def test_goals_hold_where_there_is_something_to_gain(
    measured: CacheReport, met: bool
) -> None:
    assert measured.met is met
