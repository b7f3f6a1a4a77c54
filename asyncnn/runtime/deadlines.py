"""Timeouts of the awaitable face as deadlines of the HAL."""

import time

from asyncnn.errors import InvalidArgumentError


def deadline_after(timeout: float | None) -> int | None:
    """Return the steady-clock time in nanoseconds ``timeout`` seconds from now.

    :raises InvalidArgumentError: if ``timeout`` is not a number or infinite.
    """
    if timeout is None:
        return None
    try:
        return time.monotonic_ns() + round(timeout * 1e9)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"{timeout} is no number of seconds") from None


def nanoseconds(seconds: float | None) -> int | None:
    """Return a duration of the awaitable face as one of the HAL."""
    return None if seconds is None else round(seconds * 1e9)
