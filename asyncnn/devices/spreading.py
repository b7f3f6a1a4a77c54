"""Whether an execution uses several threads of an engine: by load, and by its gain.

Several threads help only where processors have nothing else to do, and are a nuisance
to all else where they have: each of them spins while it waits for the others. So they
are used by models for FAST_SINGLE_ANSWER alone, only while lanes have been idle for
some executions, and only as long as executions take less time by them. That is learnt
from executions themselves; a few are made the other way now and then.
"""

import logging
from collections.abc import Callable
from math import inf

from asyncnn.engine import Program
from asyncnn.hal.errors import AsyncnnError
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

WORTH_SPREADING_NS = 1_000_000
"""Shorter executions gain little: at each barrier, threads fall asleep and wake up."""

CALM, CALM_OF_LONG = 8, 2
"""Executions in a row that found enough idle lanes, after which that is expected.

Of those that take `LONG_NS` or more, fewer say as much.
"""

LONG_NS = 5_000_000

FORGETTING = 1.02
"""Growth, per execution, of the least duration seen.

So one slow run does not count, and a slow model is noticed within some tens of runs.
"""

_GAIN = 1.1
_TRIALS = 4
_FEWEST_TURNS, _MOST_TURNS = 64, 4096
"""Of so many executions, one is made the other way, to see what that takes by now.

Ever fewer are, as long as that is no better: several threads on busy processors may
take many times as long.
"""


class Spreading:
    """Decides on the threads of each execution of ``program``, up to ``most``.

    Asked by those alone that take long enough; see `Executable.may_spread`.
    ``in_background`` takes steps on another thread: they compile the program for
    several threads, once executions have shown that it may be worth it. `threads` is
    for lanes, `observe` for the event loop.
    """

    def __init__(
        self, program: Program, most: int, in_background: Callable[[Steps[None]], None]
    ) -> None:
        self._program = program
        self.most = most
        self._in_background = in_background
        self._is_begun = self._is_ready = False
        self._calm = 0
        self._trials = _TRIALS
        self._turns = self._turns_left = _FEWEST_TURNS
        self._is_spread = False
        # Of one thread and of several; as `Executable` has it, so that slow ones are
        # seen.
        self._least_ns = [inf, inf]
        self._latest_ns = inf

    def threads(self, lanes_each: int) -> int:
        """Return the threads of an execution that begins now, or goes on.

        ``lanes_each`` is the number of lanes for each execution that runs.
        """
        if lanes_each < self.most:
            self._calm = 0
            return 1
        self._calm += 1
        if not self._is_ready or self._calm <= self._needed:
            return 1
        if self._trials:
            self._trials -= 1
            return self.most
        one_ns, several_ns = self._least_ns
        is_spread = several_ns * _GAIN < one_ns
        if is_spread is not self._is_spread:
            self._is_spread = is_spread
            self._turns = self._turns_left = _FEWEST_TURNS
        self._turns_left -= 1
        if not self._turns_left:
            self._turns = self._turns_left = min(2 * self._turns, _MOST_TURNS)
            is_spread = not is_spread
        return self.most if is_spread else 1

    def observe(self, threads: int, run_ns: int) -> None:
        """Learn from an execution of ``run_ns`` nanoseconds that was not preempted."""
        kind = int(threads > 1)
        is_cold = self._least_ns[kind] == inf
        self._least_ns[kind] = min(self._least_ns[kind] * FORGETTING, run_ns)
        if not kind:
            self._latest_ns = run_ns
        # Beside what ran just before: busy processors make both kinds slow.
        elif not is_cold and run_ns > 2 * self._latest_ns:
            self._trials = 0
        is_calm = self._calm >= self._needed
        is_worth_it = is_calm and self._least_ns[0] >= WORTH_SPREADING_NS
        if is_worth_it and not self._is_begun:
            self._is_begun = True
            self._in_background(self._widening())

    @property
    def _needed(self) -> int:
        is_long = LONG_NS <= self._least_ns[0] < inf
        return CALM_OF_LONG if is_long else CALM

    def begin_anew(self) -> None:
        """Keep to one thread until executions come again: the program was trimmed."""
        if self._is_ready:
            self._is_begun = self._is_ready = False
            self._calm = 0

    def _widening(self) -> Steps[None]:
        try:
            yield from self._program.widening(self.most)
        # One thread does as well where there is no memory or descriptor for more.
        except (AsyncnnError, OSError, MemoryError) as error:
            logger.info("a model keeps to one thread: %s", error)
            return
        self._is_ready = True
