"""Deadlines: points of the steady clock, and how long past one an answer may come.

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
)

DEADLINE_GRACE_S = 0.1
"""Seconds from a deadline until a client no longer waits for the driver's answer."""


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
        raise MissedDeadlinePersistentError("the deadline has passed already")


def told_late(deadline_ns: int, asked_ns: int) -> str:
    """Say how late it is by now for a call that has come at ``asked_ns``."""
    late_ns = time.monotonic_ns() - deadline_ns
    given = told_ms(deadline_ns - asked_ns)
    return f"the deadline, {given} after the call, was missed by {told_ms(late_ns)}"


def late_for_fences(
    deadline_ns: int | None, asked_ns: int
) -> MissedDeadlineTransientError:
    """Return the error for a call that waits for fences at its deadline."""
    late = told_late(deadline_ns or 0, asked_ns)
    return MissedDeadlineTransientError(f"{late}; it was waiting for fences")


def told_ms(duration_ns: int) -> str:
    """Return a duration for people, in whole milliseconds unless it is short."""
    ms = duration_ns / 1e6
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def unanswered(grace_s: float) -> MissedDeadlineTransientError:
    """Return the error for a call that the driver has left unanswered."""
    return MissedDeadlineTransientError(
        f"the driver has not answered {grace_s:g} s after the deadline; it may be "
        "stopped, and go on with the call once it runs again"
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
    except (ValueError, OverflowError, TypeError):
        raise InvalidArgumentError(
            f"{seconds!r} is no number of seconds", hint="None sets no limit"
        ) from None
