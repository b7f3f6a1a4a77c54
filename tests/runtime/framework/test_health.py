"""Devices that keep failing are left out for a while, on an injected clock."""

import logging

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.framework import (
    PARTITION_VARIABLE,
    Fallback,
    FrameworkSettings,
    Partitioning,
    chosen_fallback,
    chosen_partitioning,
)
from asyncnn.runtime.framework.fallback import Health, Member, had_ample_time

FAILED = ErrorStatus.GENERAL_FAILURE
DEAD = ErrorStatus.DEVICE_UNAVAILABLE
LATE = ErrorStatus.MISSED_DEADLINE_TRANSIENT
SETTINGS = FrameworkSettings(failures_to_leave_out=3, pause_s=1.0, longest_pause_s=5.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_device_is_left_out_after_some_failures_in_a_row() -> None:
    health = Health(SETTINGS, Clock())
    assert not health.failed(FAILED)
    assert not health.failed(FAILED)
    health.succeeded()
    assert not health.has_failed
    assert not health.failed(FAILED)
    assert not health.failed(FAILED)
    assert health.allows()
    assert health.failed(FAILED)
    assert not health.allows()


def test_causes_are_counted_apart() -> None:
    health = Health(SETTINGS, Clock())
    for cause in (FAILED, LATE, FAILED, LATE):
        assert not health.failed(cause)
    assert health.allows()
    assert health.failed(LATE)
    assert not health.allows()


def test_what_requests_are_the_cause_of_does_not_count() -> None:
    member = Member("odd", object(), SETTINGS, clock=Clock())  # type: ignore[arg-type]
    for status in ErrorStatus:
        if status not in (FAILED, DEAD):
            for _ in range(5):
                member.fell_back(status, "so it was asked")
            assert not member.health.has_failed, status.name
    for _ in range(3):
        assert member.health.allows()
        member.fell_back(LATE, "it hangs", had_time=True)
    assert not member.health.allows()


@pytest.mark.parametrize(
    ("given_s", "needed_s", "had_time"),
    [
        (-1.0, (0.001, 0.0), False),
        (0.099, (0.001, 0.0), False),
        (0.1, (0.001, 0.01), True),
        (0.1, (0.011, 0.001), False),
        (0.1, (0.001, 0.011), False),
        (30.0, (3.1, 0.0), False),
        (30.0, (3.0, 0.0), True),
    ],
)
def test_ample_time_is_measured_by_the_cpu_and_by_the_device(
    given_s: float, needed_s: tuple[float, float], had_time: bool
) -> None:
    needed_ns = [round(each * 1e9) for each in needed_s]
    assert had_ample_time(round(given_s * 1e9), *needed_ns) is had_time


def test_what_was_begun_before_a_pause_does_not_lengthen_it() -> None:
    clock = Clock()
    health = Health(SETTINGS, clock)
    assert health.failed(DEAD)
    for _ in range(20):
        assert not health.failed(DEAD), "it was under way when the device died"
    assert health.left_out_s == 1.0
    clock.now += 1.0
    assert health.allows()


def test_a_trial_that_tells_nothing_leaves_it_to_the_next() -> None:
    clock = Clock()
    member = Member("odd", object(), SETTINGS, clock=clock)  # type: ignore[arg-type]
    member.fell_back(DEAD, "it died")
    member.fell_back(LATE, "it was begun before")
    assert not member.health.allows()
    clock.now += 1.0
    assert member.health.allows()
    assert not member.health.allows()
    member.fell_back(LATE, "the deadline was hopeless")
    assert member.health.allows()
    member.health.succeeded()
    assert not member.health.has_failed


def test_pauses_grow_and_one_caller_tries_after_each() -> None:
    clock = Clock()
    health = Health(SETTINGS, clock)
    assert health.failed(DEAD)
    for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert health.left_out_s == pause
        clock.now += pause - 0.01
        assert not health.allows()
        clock.now += 0.01
        assert health.allows()
        assert not health.allows(), "a second caller while the first one tries"
        assert health.failed(DEAD)
    health.succeeded()
    assert health.allows()
    assert health.left_out_s == 0


def test_a_trial_that_is_never_told_of_does_not_leave_it_out_for_good() -> None:
    clock = Clock()
    health = Health(SETTINGS, clock)
    health.failed(DEAD)
    clock.now += 1.0
    assert health.allows()
    clock.now += 1.0
    assert health.allows()


def test_each_reason_is_logged_once_and_each_fallback_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = Member("odd", object(), SETTINGS, clock=Clock())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            member.fell_back(FAILED, "it is odd")
        member.passed_over(DEAD, "left out")
        member.passed_over(DEAD, "left out")
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert "odd" in messages[0]
    assert [(c.status, c.count) for c in member.fallbacks()] == [(DEAD, 2), (FAILED, 3)]


def test_the_environment_decides_on_partitioning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen_partitioning(None) is Partitioning.WITH_FALLBACK
    monkeypatch.setenv(PARTITION_VARIABLE, "2")
    assert chosen_partitioning(None) is Partitioning.ONLY
    assert chosen_partitioning(0) is Partitioning.NO
    monkeypatch.setenv(PARTITION_VARIABLE, "often")
    with pytest.raises(InvalidArgumentError, match=PARTITION_VARIABLE):
        chosen_partitioning(None)
    with pytest.raises(InvalidArgumentError, match="partition is 7"):
        chosen_partitioning(7)


def test_settings_are_checked() -> None:
    assert chosen_fallback("full") is Fallback.FULL
    with pytest.raises(InvalidArgumentError, match="forbid, partial, full"):
        chosen_fallback("maybe")
    for wrong in (
        {"pause_s": 0.0},
        {"pause_s": 2.0, "longest_pause_s": 1.0},
        {"failures_to_leave_out": 0},
        {"moving_weight": -1.0},
        {"max_intermediate_bytes": 0},
    ):
        name = f"FrameworkSettings.{list(wrong)[-1]} is"
        with pytest.raises(InvalidArgumentError, match=name):
            FrameworkSettings(**wrong)  # type: ignore[arg-type]


def test_without_fallback_when_models_are_only_divided() -> None:
    only = FrameworkSettings(partition=Partitioning.ONLY, fallback=Fallback.FULL)
    assert only.effective_fallback is Fallback.FORBID
