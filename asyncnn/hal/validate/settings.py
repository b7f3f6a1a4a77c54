"""Checks what is said beside a model when it is prepared: rule M17."""

from enum import IntEnum

from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.hal.validate.wording import brief, broken


def validate_execution_preference(preference: int) -> None:
    """Check that ``preference`` is an `ExecutionPreference`.

    :raises InvalidArgumentError: if it is not.
    """
    _check(ExecutionPreference, preference, "an execution preference")


def validate_priority(priority: int) -> None:
    """Check that ``priority`` is a `Priority`.

    :raises InvalidArgumentError: if it is not.
    """
    _check(Priority, priority, "a priority")


def _check(enum: type[IntEnum], value: int, what: str) -> None:
    try:
        enum(value)
    except ValueError:
        raise broken("M17", f"{brief(value)} is not {what}") from None
