import errno

import numpy as np
import pytest

from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineError,
    ResourceExhaustedError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/some/file"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (ImportError("lib.so: cannot open it: Too many open files"), "ulimit -n"),
        (OSError("lib.so: cannot map it: Cannot allocate memory"), "ulimit -v"),
        (MemoryError(), "Cannot allocate memory"),
        (MemoryError("no room for a workspace"), "no room for a workspace"),
    ],
)
def test_what_the_system_has_run_out_of_may_be_there_again(
    error: Exception, words: str
) -> None:
    for failure in (failure_of(error), failure_of(error, "a pool of 3 bytes", 3)):
        assert type(failure) is ResourceExhaustedTransientError
        assert words in str(failure)
    assert str(failure).startswith("a pool of 3 bytes: ")
    with (
        pytest.raises(ResourceExhaustedTransientError, match="here"),
        os_errors("here"),
    ):
        raise error


def test_more_memory_than_there_is_will_not_be_there_either() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(2**50, np.uint8)
    for failure in (
        failure_of(caught.value),
        failure_of(MemoryError(), wanted_bytes=2**50),
    ):
        assert type(failure) is ResourceExhaustedPersistentError
    # What is no matter of memory is not for ever.
    full = OSError(errno.EMFILE, "Too many open files")
    assert not isinstance(
        failure_of(full, wanted_bytes=2**50), ResourceExhaustedPersistentError
    )


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "No such file"), ImportError("no such module")]
)
def test_other_errors_of_the_system_are_failures(error: Exception) -> None:
    assert failure_of(error, "it").status is ErrorStatus.GENERAL_FAILURE


def test_a_missed_deadline_is_not_taken_for_an_error_of_the_system() -> None:
    with pytest.raises(MissedDeadlineError, match="too late"), os_errors("a file"):
        raise MissedDeadlineError("too late")
