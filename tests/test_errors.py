import pytest

from asyncnn.hal.errors import AsyncnnError, error_for, failure_of
from asyncnn.hal.types import ErrorStatus


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
