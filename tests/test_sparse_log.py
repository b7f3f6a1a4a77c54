"""Strangers cannot fill a log by doing the same again and again."""

import logging

import pytest

from asyncnn.logs import INTERVAL_S, SparseLogger


class FakeClock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> SparseLogger:
    return SparseLogger(logging.getLogger("tests.sparse"), clock)


def test_the_first_line_of_each_kind_is_logged_whatever_its_arguments(
    log: SparseLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        log.log(logging.WARNING, "burst %d", number)
        log.log(logging.WARNING, "packet %d", number)
    assert caplog.messages == ["burst 0", "packet 0"]


def test_the_next_line_says_how_many_were_left_out(
    log: SparseLogger, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        log.log(logging.WARNING, "burst %d", number)
        clock.now += INTERVAL_S / 4
    log.log(logging.WARNING, "burst %d", 7)
    clock.now += INTERVAL_S
    log.log(logging.WARNING, "burst %d", 8)
    assert caplog.messages == [
        "burst 0",
        "burst 4 (and 3 more)",
        "burst 8 (and 1 more)",
    ]


def test_a_traceback_and_the_place_of_the_call_are_kept(
    log: SparseLogger, caplog: pytest.LogCaptureFixture
) -> None:
    log.log(logging.ERROR, "it failed", error=ValueError("no"))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.funcName.startswith("test_a_traceback")
