"""Letting other threads have the interpreter between short operations.

A thread that computes is asked to give up the interpreter when another one has waited
for a switch interval in vain. But many short operations of NumPy release it for a
microsecond or two of their own accord, BLAS on small matrices above all. Each time the
one that waits is woken, finds it taken again, and waits anew, so that the interval
never ends: an event loop beside such a thread has been seen to stand still for 100 ms.
Hence a series of short operations pauses now and then for long enough to be relieved.
"""

import time

MANY_CALLS = 64
"""Calls between two looks at the clock."""

TURN_NS = 3_000_000
"""Nanoseconds of short calls after which others get a turn."""

_RELIEF_S = 1e-6
"""The system makes some 50 us of it: about what it takes to wake a thread."""


class Turns:
    """Pauses a thread every few milliseconds that it spends on many short calls.

    Fewer calls are longer ones, from which it is taken over as it should be.
    """

    __slots__ = ("_calls", "_since_ns")

    def __init__(self) -> None:
        self._calls = 0
        self._since_ns = time.monotonic_ns()

    def count(self, calls: int) -> None:
        """Note that so many calls were made; pause if others are due."""
        self._calls += calls
        if self._calls < MANY_CALLS:
            return
        self._calls = 0
        if time.monotonic_ns() - self._since_ns >= TURN_NS:
            time.sleep(_RELIEF_S)
            self._since_ns = time.monotonic_ns()
