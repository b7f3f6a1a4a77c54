"""Where a run can stop: between two operations, and inside those that allow it.

A `IPause` asks for that. `ThreadYielder` gives other threads the interpreter between
short operations.
"""

import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

import numpy as np

CALLS_PER_CHECK = 64
"""Calls between two readings of the clock."""

MOST_INTERRUPTED = 4
"""Times that one call of another engine is interrupted, and begun anew, for a pause."""

YIELD_AFTER_NS = 3_000_000
"""Nanoseconds of short calls after which others get a turn."""

_YIELD_S = 1e-6
"""The system makes some 50 us of it: about what it takes to wake a thread."""


class ThreadYielder:
    """Pauses a thread every few milliseconds that it spends on many short calls.

    A thread that computes gives up the interpreter when another has waited for a switch
    interval in vain. But short operations of NumPy release it for a microsecond or two
    of their own accord, BLAS on small matrices above all. Each time the thread that
    waits is woken, finds it taken again, and waits anew, so that the interval never
    ends: event loops were seen to stand still for 100 ms. So a series of short
    operations pauses now and then for long enough to be relieved. Longer calls need no
    pause.
    """

    __slots__ = ("_calls", "_since_ns")

    def __init__(self) -> None:
        self._calls = 0
        self._since_ns = time.monotonic_ns()

    def count(self, calls: int) -> None:
        """Note that so many calls were made; pause if others are due."""
        self._calls += calls
        if self._calls < CALLS_PER_CHECK:
            return
        self._calls = 0
        if time.monotonic_ns() - self._since_ns >= YIELD_AFTER_NS:
            time.sleep(_YIELD_S)
            self._since_ns = time.monotonic_ns()


QUIET = Context()
"""Here NumPy does not complain of overflow and the like. Running something in a copy
takes a tenth of what `numpy.errstate` does around it.
"""
QUIET.run(np.seterr, all="ignore")


class IPause(Protocol):
    """Asks an execution to stop at its next boundary.

    That is between two operations, or between two parts of one that takes long.
    ``interrupt`` is called, on any thread, when that is asked while another engine
    computes, which may use ``threads``. From ``from_ns`` on it is asked by itself.
    """

    interrupt: Callable[[], None] | None
    threads: int
    from_ns: int | None

    @property
    def requested(self) -> bool:
        """Whether it is to stop."""


class Unpaused:
    """A pause that nobody requests."""

    interrupt: Callable[[], None] | None = None
    requested = False
    threads = 1
    from_ns: int | None = None
