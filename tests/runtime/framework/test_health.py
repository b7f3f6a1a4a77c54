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
from asyncnn.runtime.framework.fallback import Health, Member

FAILED = ErrorStatus.GENERAL_FAILURE
DEAD = ErrorStatus.DEVICE_UNAVAILABLE
SETTINGS = FrameworkSettings(failures_to_leave_out=3, pause_s=1.0, longest_pause_s=5.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_device_is_left_out_after_some_failures_in_a_row() -> None:
    health = Health(SETTINGS, Clock())
    assert not health.failed()
    assert not health.failed()
    health.succeeded()
    assert not health.has_failed
    assert not health.failed()
    assert not health.failed()
    assert health.allows()
    assert health.failed()
    assert not health.allows()


def test_pauses_grow_and_one_caller_tries_after_each() -> None:
    clock = Clock()
    health = Health(SETTINGS, clock)
    assert health.failed(has_died=True)
    for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert health.left_out_s == pause
        clock.now += pause - 0.01
        assert not health.allows()
        clock.now += 0.01
        assert health.allows()
        assert not health.allows(), "a second caller while the first one tries"
        assert health.failed()
    health.succeeded()
    assert health.allows()
    assert health.left_out_s == 0


def test_a_trial_that_is_never_told_of_does_not_leave_it_out_for_good() -> None:
    clock = Clock()
    health = Health(SETTINGS, clock)
    health.failed(has_died=True)
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
