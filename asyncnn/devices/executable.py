"""What executions of a model have in common: how long they take, and on what."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Protocol

from asyncnn.callbacks import ExecutionResult
from asyncnn.devices.process_wide import NOTHING
from asyncnn.engine import Program
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import NO_TIMING, ErrorStatus, Priority
from asyncnn.pacing import Steps
from asyncnn.qos import Work, WorkAccounting
from asyncnn.qos.work import IBatching

logger = logging.getLogger(__name__)

WORTH_SPREADING_NS = 1_000_000
"""Shorter executions gain little: at each barrier, threads fall asleep and wake up."""

CALM, CALM_OF_LONG, CALM_OF_LONGEST = 8, 2, 1
"""Executions in a row that found enough idle lanes, after which that is expected.

Of those that take `LONG_NS` or `LONGEST_NS` or more, fewer say as much.
"""

LONG_NS, LONGEST_NS = 5_000_000, 20_000_000

FORGETTING = 1.02
"""Growth, per execution, of the least duration seen.

So one slow run does not count, and a slow model is noticed within some tens of runs.
"""

_GAIN = 1.1
_TRIALS = 4
_FEWEST_TURNS, _FEWEST_TURNS_OF_LONG, _MOST_TURNS = 64, 16, 4096
"""Of so many executions, one is made the other way, to see what that takes by now.

Ever fewer are, as long as that is no better: several threads on busy processors may
take many times as long. Of long ones, whose trials may have met such, more at first.
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
        self._is_begun = self._is_ready = self._has_rested = False
        self._calm = 0
        self._trials = _TRIALS
        self._turns = self._turns_left = 0
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
        is_spread = self._gains
        if is_spread is not self._is_spread or not self._turns:
            self._is_spread = is_spread
            is_long = self._least_ns[0] >= LONG_NS
            self._turns = _FEWEST_TURNS_OF_LONG if is_long else _FEWEST_TURNS
            self._turns_left = self._turns
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
            self._is_begun, self._has_rested = True, False
            self._in_background(self._widening())

    @property
    def is_worth_keeping(self) -> bool:
        """Whether long executions gain by what the program was widened for.

        To make that anew may take as long as several of them.
        """
        return self._is_ready and self._gains and self._least_ns[0] >= LONGEST_NS

    @property
    def _gains(self) -> bool:
        one_ns, several_ns = self._least_ns
        return several_ns * _GAIN < one_ns

    @property
    def _needed(self) -> int:
        least_ns = self._least_ns[0]
        if least_ns < LONG_NS or least_ns == inf:
            return CALM
        return CALM_OF_LONG if least_ns < LONGEST_NS else CALM_OF_LONGEST

    def begin_anew(self) -> None:
        """Keep to one thread until executions come again: the program is trimmed.

        What is just being made for several is given back when it is there.
        """
        # First: who makes it ready sees this afterwards, or has done so already.
        self._has_rested = True
        if self._is_ready:
            self._is_begun = self._is_ready = False
            self._calm = 0

    def _widening(self) -> Steps[None]:
        try:
            yield from self._program.widening(self.most)
            self._is_ready = True
        # One thread does as well where there is no memory or descriptor for more.
        except (AsyncnnError, OSError, MemoryError) as error:
            logger.info("a model keeps to one thread: %s", error)
        if self._has_rested:
            self.begin_anew()
            self._program.trim()


class IModelBatching(IBatching[Any], Protocol):
    """What models of one content have in common whose runs may go in batches.

    ``why_not`` says why none do, ``words`` that, or how many. ``kind`` are the runs.
    """

    why_not: str

    @property
    def words(self) -> str:
        """How many runs are one batch at most, and how equal; or why none are."""

    @property
    def kind(self) -> type[Any]:
        """The class of runs that go in batches."""

    def use(self, make: "Callable[[Program], Executable]") -> None:
        """Have ``make`` say how the program of each size is executed."""

    def trim(self) -> None:
        """Free what no batch uses."""


_FAR = 2.0
"""Multiple of ``inline_below_ns`` beyond which processor time is not measured."""

SHORT_NS = 5_000_000
"""Executions that take less stop so soon that who waits for one may wait for that."""

MOST_LESSONS, _YOUNG = 16, 32
"""Executions that are learnt from together, and first ones that are as they end."""

_CERTAIN = 0.75
"""Share of the least duration seen that any execution takes, as far as one can know."""


class Executable:
    """What all executions of one prepared model have in common, and have taught.

    ``spreading`` decides on threads, if there may be several, ``batching`` on what runs
    as one with others. ``cost`` is as in
    `Work`; ``cancel`` stops one, also while it waits for its plan. Kernels run
    within ``computing``, on any number of threads at a time. It ``goes_native`` once an
    engine has computed one. ``result`` is what the last that succeeded unmeasured was
    awaited for. ``lessons`` have yet to be learnt; while it ``is_young``, none wait.
    Native runs are copied from ``blanks``, by their class.

    ``should_inline`` says whether executions have lately taken less than
    ``inline_below_ns`` nanoseconds of a thread: on a lane they also wait for the
    interpreter, which they would not have to on the loop. ``takes_far_longer`` says
    whether they have taken `_FAR` times that: then it does not matter how much of it
    was of a thread. ``are_short`` says whether they are known to have taken less than
    `SHORT_NS`, ``may_spread`` whether ``spreading`` is to be asked. Before the first,
    which a lane runs, nothing is known: an estimate would be wrong at times, and block
    the loop.
    """

    def __init__(
        self,
        program: Program,
        inline_below_ns: float,
        priority: Priority,
        accounting: WorkAccounting,
        cancel: Callable[[Work, ErrorStatus], None],
        *,
        refuses_unmeetable_deadlines: bool = False,
        computing: AbstractContextManager[object] = NOTHING,
    ) -> None:
        self.program = program
        self.priority = priority
        self.accounting = accounting
        self.cancel = cancel
        self.computing = computing
        self.spreading: Spreading | None = None
        self.batching: IModelBatching | None = None
        self.cost = 1.0
        self.goes_native = False
        self.lessons: list[tuple[int, int, int]] = []
        self.blanks: dict[type, Any] = {}
        self.result = ExecutionResult(ErrorStatus.NONE, (), NO_TIMING)
        self._refuses_unmeetable_deadlines = refuses_unmeetable_deadlines
        self._below_ns = inline_below_ns
        # The first execution decides: it may have to restore a plan.
        self._is_foreseeable: bool | None = None
        self._least_ns = self._least_cpu_ns = float("inf")
        self.should_inline = self.takes_far_longer = self.are_short = False
        self.may_spread = False
        self._observed, self.is_young = 0, True

    @property
    def min_runtime_ns(self) -> int:
        """Nanoseconds that the next execution takes at least; 0 if that is open."""
        if self._refuses_unmeetable_deadlines and self._is_foreseeable:
            return int(self._least_ns * _CERTAIN)
        return 0

    def learn(self) -> None:
        """Learn from all ``lessons``, which are what `observe` takes."""
        lessons, self.lessons[:] = tuple(self.lessons), ()
        for lesson in lessons:
            self.observe(*lesson)

    def observe(self, run_ns: int, cpu_ns: int, threads: int = 0) -> None:
        """Learn from an execution of ``run_ns`` nanoseconds, ``cpu_ns`` of a thread.

        It says nothing of several threads if ``threads`` is 0.
        """
        if self._is_foreseeable is None:
            self._is_foreseeable = self.program.is_foreseeable
            # Without fixed shapes, or with loops, one says little of the next.
            self._below_ns *= self._is_foreseeable
        least_ns = self._least_ns * FORGETTING
        self._least_ns = least_ns = run_ns if run_ns < least_ns else least_ns
        self.takes_far_longer = least_ns > _FAR * self._below_ns
        self.are_short = self._is_foreseeable and least_ns < SHORT_NS
        least_cpu_ns = self._least_cpu_ns * FORGETTING
        self._least_cpu_ns = cpu_ns if cpu_ns < least_cpu_ns else least_cpu_ns
        if self.should_inline is not (self._least_cpu_ns < self._below_ns):
            self.should_inline = not self.should_inline
            self.blanks.clear()
        self._observed += 1
        self.is_young = self._observed < _YOUNG
        spreading = self.spreading
        if spreading is not None:
            if threads:
                spreading.observe(threads, run_ns)
            self.may_spread = least_ns * spreading.most >= WORTH_SPREADING_NS
