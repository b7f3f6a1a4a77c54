"""Deadlines: points of the steady clock, and how long past one an answer may come.

Also durations in words, as messages and commands have them.

A driver keeps deadlines itself, at boundaries of operations. One that is stopped, or
stuck in native code, keeps none: its client gives up a little later by itself. The HAL
counts in nanoseconds, applications in seconds.
"""

import math
import time

from asyncnn.hal.errors import (
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    WrongTypeError,
)

DEADLINE_GRACE_S = 0.1
"""Seconds from a deadline until a client no longer waits for the driver's answer."""


PASSED = "the deadline has passed already"
"""The message of a call that is made too late."""

_UNITS = (
    ("ns", 1e-3, 1e3),
    ("us", 1.0, 1e3),
    ("ms", 1e3, 1e3),
    ("s", 1e6, 120.0),
    ("min", 6e7, math.inf),
)
"""Units of durations, in microseconds, and how many read worse than the next unit."""


def format_duration(us: float, digits: int = 3) -> str:
    """Return microseconds in the unit that reads best, such as 8.31 us or 2.08 s.

    There are so many ``digits``, unless more stand before the point, and no zeros at
    the end.
    """
    if not us:
        return "0 s"
    texts = (
        (f"{us / size:.{max(0, digits - len(str(int(us / size))))}f}", unit, most)
        for unit, size, most in _UNITS
    )
    # As rounded: 999.9 us are 1 ms, not 1000 us.
    text, unit = next((text, unit) for text, unit, most in texts if float(text) < most)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def check_grace(grace_s: float) -> float:
    """Return ``grace_s``; infinity waits for the driver, however long that takes.

    :raises InvalidArgumentError: if it is negative or not a number.
    """
    if math.isnan(grace_s) or grace_s < 0:
        raise InvalidArgumentError(
            f"deadline_grace is {grace_s} s", hint="it is 0 or more; math.inf waits"
        )
    return grace_s


def check_deadline(deadline_ns: int | None) -> None:
    """Check that a deadline on the steady clock has not passed.

    :raises MissedDeadlinePersistentError: if it has.
    """
    if deadline_ns is not None and time.monotonic_ns() >= deadline_ns:
        raise MissedDeadlinePersistentError(PASSED)


def earlier(deadline_ns: int | None, from_ns: int, duration_ns: int) -> int:
    """Return a deadline, or the end of a duration that began, whichever comes first."""
    end_ns = from_ns + duration_ns
    return end_ns if deadline_ns is None else min(deadline_ns, end_ns)


def lateness(deadline_ns: int, asked_ns: int) -> str:
    """Say how late it is by now for a call that was made at ``asked_ns``."""
    if deadline_ns <= asked_ns:
        return PASSED
    late_ns = time.monotonic_ns() - deadline_ns
    # A few digits: the call has come here a little later than it was made.
    given = format_duration((deadline_ns - asked_ns) / 1000, 2)
    if late_ns < 0:  # it was given up before, as it could not end in time
        return f"the deadline of {given} could not be met any more"
    return f"the deadline of {given} was missed by {format_duration(late_ns / 1000)}"


def late_for_fences(
    deadline_ns: int | None, asked_ns: int
) -> MissedDeadlineTransientError:
    """Return the error for a call that waits for fences at its deadline."""
    late = lateness(deadline_ns or 0, asked_ns)
    return MissedDeadlineTransientError(f"{late}; it was waiting for fences")


def unanswered(grace_s: float) -> MissedDeadlineTransientError:
    """Return the error for a call that the driver has left unanswered."""
    return MissedDeadlineTransientError(
        f"the driver has not answered {format_duration(grace_s * 1e6)} after the "
        "deadline; it may be stopped, and go on with the call once it runs again"
    )


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
    except (ValueError, OverflowError, TypeError) as error:
        wrong = WrongTypeError if isinstance(error, TypeError) else InvalidArgumentError
        raise wrong(
            f"{seconds!r} is no number of seconds", hint="None sets no limit"
        ) from None
