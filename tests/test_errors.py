import pytest

from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineError,
    ResourceExhaustedError,
    error_for,
    failure_of,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.pages import os_errors


@pytest.mark.parametrize(
    "status", [s for s in ErrorStatus if s is not ErrorStatus.NONE]
)
def test_every_status_has_an_exception_of_its_own(status: ErrorStatus) -> None:
    error = error_for(status, "why")
    assert error.status is status
    assert type(error) is not AsyncnnError
    assert str(error) == "why"


def test_success_is_no_error() -> None:
    with pytest.raises(ValueError, match="NONE"):
        error_for(ErrorStatus.NONE)


def test_the_hint_follows_the_message() -> None:
    assert str(AsyncnnError("too big", hint="split it")) == "too big (split it)"


def test_a_failure_that_cannot_be_described_is_one_nevertheless() -> None:
    class UndescribedError(Exception):
        def __str__(self) -> str:
            raise ValueError

    error = failure_of(UndescribedError())
    assert error.status is ErrorStatus.GENERAL_FAILURE
    assert "Undescribed" in str(error)


@pytest.mark.parametrize(
    "status",
    [ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT],
)
def test_one_class_catches_every_missed_deadline(status: ErrorStatus) -> None:
    error = error_for(status)
    assert isinstance(error, MissedDeadlineError)
    assert isinstance(error, TimeoutError)
    assert str(error) == "the deadline passed"


@pytest.mark.parametrize(
    "status",
    [
        ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
        ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
    ],
)
def test_one_class_catches_all_that_runs_out(status: ErrorStatus) -> None:
    assert isinstance(error_for(status), ResourceExhaustedError)


def test_a_missed_deadline_is_not_taken_for_an_error_of_the_system() -> None:
    with pytest.raises(MissedDeadlineError, match="too late"), os_errors("a file"):
        raise MissedDeadlineError("too late")
