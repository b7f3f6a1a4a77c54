"""Timeouts of the awaitable face as deadlines of the HAL."""

import time

from asyncnn.errors import InvalidArgumentError


def deadline_after(timeout: float | None) -> int | None:
    """Return the steady-clock time in nanoseconds ``timeout`` seconds from now.

    :raises InvalidArgumentError: if ``timeout`` is not a number or infinite.
    """
    duration = nanoseconds(timeout)
    return None if duration is None else time.monotonic_ns() + duration


def seconds_until(deadline: int | None) -> float | None:
    """Return the timeout that ends at ``deadline``; negative if that has passed."""
    return None if deadline is None else (deadline - time.monotonic_ns()) / 1e9


def nanoseconds(seconds: float | None) -> int | None:
    """Return a duration of the awaitable face as one of the HAL.

    :raises InvalidArgumentError: if ``seconds`` is not a number or infinite.
    """
    if seconds is None:
        return None
    try:
        return round(seconds * 1e9)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"{seconds} is no number of seconds") from None
