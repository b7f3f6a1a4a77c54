"""Durations in words."""

import time

import pytest

from asyncnn.deadlines import format_duration, lateness


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 s"),
        (0.0302, "30.2 ns"),
        (0.9996, "1 us"),
        (8.314, "8.31 us"),
        (300, "300 us"),
        (999.6, "1 ms"),
        (1_500, "1.5 ms"),
        (511_700, "512 ms"),
        (2_078_354, "2.08 s"),
        (119_000_000, "119 s"),
        (125_000_000, "2.08 min"),
        (86_400_000_000, "1440 min"),
    ],
)
def test_durations_are_in_the_unit_that_reads_best(us: float, text: str) -> None:
    assert format_duration(us) == text


@pytest.mark.parametrize(
    ("us", "text"), [(131_072, "131 ms"), (1.024, "1 us"), (99_500, "100 ms")]
)
def test_they_have_as_many_digits_as_asked_for(us: float, text: str) -> None:
    assert format_duration(us, digits=2) == text


def test_what_was_given_up_before_its_deadline_is_not_told_to_be_late() -> None:
    now_ns = time.monotonic_ns()
    told = lateness(now_ns + 60_000_000_000, now_ns)
    assert told == "the deadline of 60 s could not be met any more"
