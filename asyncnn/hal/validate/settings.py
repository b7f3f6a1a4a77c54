"""Checks what is said beside a model or a request: rule M17 and the measurement."""

from enum import IntEnum

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import ExecutionPreference, MeasureTiming, Priority
from asyncnn.hal.validate.wording import brief, broken

_TIMINGS = tuple(MeasureTiming)


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


def validate_measure_timing(measure: int) -> None:
    """Check that ``measure`` is a `MeasureTiming`.

    :raises InvalidArgumentError: if it is not.
    """
    if measure not in _TIMINGS:
        raise InvalidArgumentError(f"{measure} is not a MeasureTiming")


def _check(enum: type[IntEnum], value: int, what: str) -> None:
    try:
        enum(value)
    except ValueError:
        raise broken("M17", f"{brief(value)} is not {what}") from None
